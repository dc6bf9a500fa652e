"""A panel against plain Python; what each member knows; what no seat may see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.tasks import Arithmetic, Questions
from jaxmarl_llm.environments.teams.panel import Member, Panel
from tests.environments.teams.test_team_tasks import solved
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals

SUMS = Arithmetic(7, "+")
ALIKE = (Member("one", 0.5, 0.8, 0.4, 1, 1), Member("same", 0.5, 0.8, 0.4, 1, 1), Member("other", 0.5, 0.8, 0.4, 2, 2))
WRONG = Member("wrong", 0.0, sure=1.0, beliefs=3)


@pytest.mark.parametrize("views", (1, 2))
def test_a_panel_against_python(views):
    game = Panel(Arithmetic(7, "+*"), 3, views)
    check_game(game)
    record = played(game, "random")
    for g in range(60):
        rows = [row(game, record, g, seat) for seat in range(3)]
        truths = {solved(told[0]) for told in rows}
        assert len(truths) == 1  # also of the paraphrase
        assert rows[0] == rows[2] and (views == 2 or rows[0] == rows[1])
        said = acted(game, record, g)
        assert [seat for seat, _ in said] == [0, 1, 2]
        assert record["reward"][0, g, :, 0].tolist() == [float(word in truths) for _, word in said]
    assert (totals(played(game, "correct")) == 1).all()
    assert deals_are_what_reset_draws(game)


def test_a_paraphrase_is_the_same_question_in_other_words():
    tasks = Arithmetic(5, "+*")
    numbers = jnp.arange(tasks.size)
    other = jax.vmap(tasks.paraphrase)(numbers)
    (told, truth), (reworded, same) = jax.vmap(tasks.task)(numbers), jax.vmap(tasks.task)(other)
    np.testing.assert_array_equal(truth, same)
    np.testing.assert_array_equal(reworded, np.asarray(told)[:, ::-1])
    np.testing.assert_array_equal(jax.vmap(tasks.paraphrase)(other), numbers)


def shares(member, *others, tasks=SUMS, views=1, n=400):
    """How often a member gives each answer to each question as seat 1 is asked it, [size, answers]; the truth."""
    game = Panel(tasks, 2, views, (member, *others))
    script = game.scripts[member.name]
    states, _ = game.initial_states()
    keys = jax.random.split(jax.random.key(0), n)
    said = jax.jit(jax.vmap(lambda s: jax.vmap(lambda key: script(s, jnp.int32(1), key))(keys)))(states)
    truth = np.asarray(jax.vmap(lambda s: tasks.task(s.task)[1])(states))
    return np.stack([(np.asarray(said) == a).mean(1) for a in range(len(tasks.answers))], 1), truth


def test_a_member_is_as_good_as_said():
    found, truth = shares(ALIKE[0])
    right = found[np.arange(49), truth]
    known = right > 0.5
    assert known.sum() == round(0.5 * 49)
    np.testing.assert_allclose(right[known], 0.8, atol=0.1)
    for answers, own in zip(found[known], truth[known], strict=True):
        np.testing.assert_allclose(np.delete(answers, own), 0.2 / 6, atol=0.05)  # other answers, all alike
    belief = found[~known].argmax(1)
    assert (belief != truth[~known]).all()
    np.testing.assert_allclose(found[~known].max(1), 0.4 + 0.6 / 7, atol=0.1)
    np.testing.assert_allclose(right[~known], 0.6 / 7, atol=0.07)


def test_errors_are_shared_or_not():
    one, same, other = (shares(member)[0].argmax(1) for member in ALIKE)
    np.testing.assert_array_equal(one, same)
    assert 0.2 < (one == other).mean() < 0.6  # both know a quarter, and chance
    found, truth = shares(WRONG)
    assert (found.max(1) == 1).all() and (found.argmax(1) != truth).all()


def test_knowledge_is_of_the_question_as_it_is_worded():
    told, _ = shares(ALIKE[0])
    reworded, _ = shares(ALIKE[0], views=2)
    paraphrase = np.asarray(jax.vmap(SUMS.paraphrase)(jnp.arange(49)))
    np.testing.assert_array_equal(reworded.argmax(1), told.argmax(1)[paraphrase])
    assert (reworded.argmax(1) != told.argmax(1)).any()


def test_an_answer_that_is_none_is_not_right():
    game = Panel(SUMS, 2)
    state, _ = game.reset(jax.random.key(3), jnp.int32(0))
    _, view, reward = game.step(state, jnp.array([-1, int(SUMS.task(state.task)[1])]), jax.random.key(0))
    assert view.terminated and reward[:, 0].tolist() == [0, 1]


def test_settings_that_cannot_be_are_named():
    questions = Questions((("Capital of France?", "Paris"), ("Capital of Italy?", "Rome")))
    for make, says in (
        (lambda: Panel(agents=0), "agents must be at least 1"),
        (lambda: Panel(views=3), "one view or in two, not in 3"),
        (lambda: Panel(questions, views=2), "Questions cannot be asked in other words"),
        (lambda: Panel(Arithmetic(5, "+-"), views=2), "Only \\+ and \\* allow"),
        (lambda: Panel(members=(Member("a", 1.5),)), "within"),
        (lambda: Panel(members=(Member("a", 0.5), Member("a", 0.2))), "already"),
        (lambda: Panel(members=(Member("correct", 0.5),)), "already"),
    ):
        with pytest.raises(ValueError, match=says):
            make()


def test_a_deal_draws_what_members_know_and_believe():
    game = Panel(SUMS, 1, members=(*ALIKE, WRONG))
    states, _ = game.initial_states()

    def known(name, minds):
        say = lambda state, key: game.scripts[name](state.replace(minds=jnp.int32(minds)), jnp.int32(0), key)
        keys = jax.random.split(jax.random.key(1), 40)
        said = np.asarray(jax.vmap(lambda key: jax.vmap(say, (0, None))(states, key))(keys))
        truth = np.asarray(jax.vmap(lambda state: SUMS.task(state.task)[1])(states))
        return (said == truth).mean(0) > 0.5, said[0]

    draws = np.stack([known("one", minds)[0] for minds in range(20)])
    assert (draws.sum(1) == round(0.5 * 49)).all()
    assert draws.mean(0).min() > 0.1 and draws.mean(0).max() < 0.9  # no question is known in all draws
    np.testing.assert_array_equal(known("one", 7)[0], known("same", 7)[0])
    assert 0.2 < (known("one", 7)[0] == known("other", 7)[0]).mean() < 0.8
    assert (known("wrong", 7)[1] != known("wrong", 8)[1]).mean() > 0.5
