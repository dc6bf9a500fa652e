"""Rollouts of questions: rows hold prompts and answers, rewards are of the texts, and a prompt is read once a group.

The long cases compile rollouts with other settings.
"""

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.prompt_rewards import Exact
from jaxmarl_llm.environments.bridges.prompts import Prompts
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.serving.prompt_rollout import PromptRollout
from jaxmarl_llm.training.left_out import leave_out
from tests.support.serving import Said, policies, rescore

SIZE, BUDGET, SLOTS = 4, 9, 4
RECORDS = [{"prompt": "cooper " * (1 + number % 3) + str(number), "answer": number} for number in range(10)]
CALLS: list[list[str]] = []


def bytes_of(completions):
    CALLS.append(completions)
    return [len(text.encode()) for text in completions]


def after(completions, answer):
    return [sum(map(ord, text)) % 7 + 10 * right for text, right in zip(completions, answer, strict=True)]


GAME = Prompts(RECORDS, {"bytes": bytes_of, "after": after}, system="tell", held_out=0.4, answers=3, slots=SLOTS)
SEATS = (("adapter0",), ("adapter1",))


def rollout_of(game=GAME, seats=SEATS, budget=BUDGET) -> PromptRollout:
    return PromptRollout(game, {"toy": policies("toy", 2)[0]}, Lineup(seats, SIZE), budget)


@pytest.fixture(scope="module")
def rollout():
    return rollout_of()


def weights() -> dict:
    return {"toy": policies("toy", 2)[1]}


@pytest.fixture(scope="module")
def played(rollout):
    return jax.tree.map(np.asarray, rollout(weights(), jax.random.key(5)))


def rows_of(played) -> list[tuple[list[int], list[int], int]]:
    """(prompt, answer, policy) of every row."""
    rows = played.rows["toy"]
    prompts = [tokens[:n].tolist() for tokens, n in zip(rows.prompts.tokens, rows.prompts.length, strict=True)]
    answers = [tokens[:n].tolist() for tokens, n in zip(rows.tokens, rows.length, strict=True)]
    return [(prompts[at], said, int(who)) for at, said, who in zip(rows.prompt, answers, rows.policy, strict=True)]


def test_rows_hold_the_questions_and_the_answers_and_rewards_are_of_their_texts(played):
    tokenizer, rows = policies("toy", 2)[0].tokenizer, played.rows["toy"]
    text = lambda tokens: b"".join(tokenizer.token_bytes[t] or b"" for t in tokens).decode(errors="replace")
    marks, encode = tokenizer.markers, tokenizer.encode
    write = lambda prompt: [*marks.before_rules, *encode("tell"), *marks.hear_first, *encode(prompt), *marks.speak]
    asked = []
    for row, (prompt, said, _) in enumerate(rows_of(played)):
        (question,) = [q for q in GAME.training if write(q.prompt) == prompt]
        episode, answer = rows.episode[row], text(said)
        paid = [len(answer.encode()), sum(map(ord, answer)) % 7 + 10 * question.fields["answer"]]
        assert played.episodes.reward[episode, 0, 0].tolist() == paid
        asked.append(question.prompt)
    assert asked[:SIZE] == asked[:1] * SIZE and asked[SIZE:] == asked[SIZE:][:1] * SIZE and len({*asked}) == 2
    assert len({tuple(said) for _, said, _ in rows_of(played)}) > SIZE
    assert played.episodes.terminated.all() and not played.episodes.truncated.any()
    assert played.episodes.group.tolist() == [0] * SIZE + [1] * SIZE
    told = played.episodes.told[:, 0, 0]
    assert len({*told[:SIZE].tolist()}) == 1 and told[0] != told[SIZE]


def test_probabilities_are_the_scorers_and_every_token_is_trained(played):
    rows = played.rows["toy"]
    answers = [Said(prompt, said, budget=BUDGET - 1, policy=who) for prompt, said, who in rows_of(played)]
    for row, scored in enumerate(rescore("toy", 2, answers)):
        n = rows.length[row]
        np.testing.assert_allclose(rows.logp[row, :n], scored, atol=2e-4)
        assert rows.loss_mask[row].tolist() == [i < n for i in range(len(rows.loss_mask[row]))]
        assert rows.tokens_left[row, :n].tolist() == [BUDGET - i for i in range(n)] and 1 <= n <= BUDGET - 1


def test_a_group_reads_its_prompt_once(rollout):
    rollout(weights(), jax.random.key(6))
    before = rollout.engines["toy"].tokens_read
    rows = rollout(weights(), jax.random.key(7)).rows["toy"]
    read = rollout.engines["toy"].tokens_read - before
    assert int(rows.prompts.length.sum()) <= read <= int(rows.prompts.length.sum()) + 2 * SIZE


def test_the_width_of_prompts_is_that_of_the_longest_question_that_is_trained(played):
    width = lambda **more: rollout_of(Prompts([*RECORDS, {"prompt": "x" * 150, "answer": 9}], bytes_of, **more))
    assert width().prompt_width("toy") == 256
    assert width(held_out=[{"prompt": "y" * 300, "answer": 9}]).prompt_width("toy") == 256
    assert rollout_of().prompt_width("toy") == played.rows["toy"].prompts.tokens.shape[1] == 32


@pytest.mark.long
def test_a_batch_has_the_same_bits_after_any_other(rollout, played):
    long = [*RECORDS[:-1], {"prompt": "x" * 300, "answer": 9}]
    other = rollout_of(Prompts(long, GAME.reward, "tell", slots=SLOTS), SEATS * 5)
    assert other(weights(), jax.random.key(1)).rows["toy"].prompts.tokens.shape[1] == 512
    other._prompts, other.game, other.lineup, other.layouts = (
        getattr(rollout, name) for name in ("_prompts", "game", "lineup", "layouts")
    )  # the engine stays, with its wide caches
    for one, two in zip(jax.tree.leaves(other(weights(), jax.random.key(5))), jax.tree.leaves(played), strict=True):
        np.testing.assert_array_equal(one, two)


def test_held_out_questions_are_answered_by_every_policy(rollout):
    CALLS.clear()
    measured = rollout.held_out(weights(), jax.random.key(0))
    said = [list(texts) for texts in CALLS]
    assert len(said) == 2 and all(len(texts) == 4 * GAME.answers for texts in said)
    for policy, texts in zip(("adapter0", "adapter1"), said, strict=True):
        right = [question.fields["answer"] for question in GAME.testing for _ in range(GAME.answers)]
        paid = np.array([bytes_of(texts), after(texts, right)], np.float64).reshape(2, 4, GAME.answers).mean(2)
        np.testing.assert_allclose(measured[f"held_out/bytes/{policy}"], paid[0])
        np.testing.assert_allclose(measured[f"held_out/after/{policy}"], paid[1])
        np.testing.assert_allclose(measured[f"held_out/return/{policy}"], paid.sum(0))
    assert len(measured) == 6 and len({*said[0]}) > 4 and said[0] != said[1]
    again = rollout.held_out(weights(), jax.random.key(0))
    assert all((again[name] == values).all() for name, values in measured.items())


def test_questions_are_drawn_without_repetition_as_far_as_they_go():
    few, many = rollout_of(), rollout_of(seats=SEATS * 10)  # 6 questions are trained
    draws = [few._draw(jax.random.key(seed)) for seed in range(40)]
    assert all(len({*drawn}) == 2 for drawn in draws) and draws[3] == few._draw(jax.random.key(3))
    assert {number for drawn in draws for number in drawn} == {*range(6)}
    counts = np.bincount(many._draw(jax.random.key(0)), minlength=6)
    assert counts.sum() == 20 and counts.min() == 3 and counts.max() == 4


def test_answers_whose_reward_fails_are_left_out_and_named():
    mine = lambda completions: [float("nan") if len(text) > 8 else 1.0 for text in completions]
    rollout = rollout_of(Prompts(RECORDS, mine, "tell", slots=SLOTS))
    with pytest.warns(
        UserWarning, match="Episode . failed: The reward 'reward' returned nan, no finite number"
    ) as told:
        played = rollout(weights(), jax.random.key(2))
    bad = np.isnan(played.episodes.reward).any((1, 2, 3))
    assert 0 < bad.sum() < len(bad) and f"Episodes that failed: {bad.sum()} of 8." in str(told[0].message)
    assert (np.asarray(played.episodes.truncated) == bad).all()
    kept, metrics = leave_out(played)
    assert metrics["left_out"] == bad.sum()
    assert (kept.rows["toy"].loss_mask.any(1) == ~bad[kept.rows["toy"].episode]).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budget": 1}, "budget is a whole number of at least 2"),
        ({"budget": 2.5}, "got 2.5"),
        ({"budget": "3"}, "got '3'"),
        ({"seats": (("adapter0", "adapter1"),)}, "The game has 1 seats"),
        ({"game": Prompts([*RECORDS, {"prompt": "x" * 500}], lambda completions: [0.0] * len(completions))},
         "Question 10 has 5.. tokens; with an answer of 9 the context of 512 has room for 1 to 503"),
        ({"game": Prompts([{"messages": [{"role": "user", "content": "a"}] * 2}], bytes_of)},
         "Question 0 cannot be asked: This policy reads a system message, then messages of user and assistant in turn"),
        ({"game": Prompts([*RECORDS, {"prompt": "a"}], Exact())}, "there is no field 'answer', for an empty answer"),
    ],
)  # fmt: skip
def test_questions_that_cannot_be_asked_are_said_before_anything_compiles(options, says, compiled_programs):
    with pytest.raises(ValueError, match=says):
        rollout_of(**options)
    assert not compiled_programs()


@pytest.mark.long
def test_nothing_is_held_out_by_default():
    with pytest.raises(ValueError, match="No question is held out: give Prompts held_out"):
        rollout_of(Prompts(RECORDS, Exact())).held_out(weights(), jax.random.key(0))
