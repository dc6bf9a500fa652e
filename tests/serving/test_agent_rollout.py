"""Agent programs as games: what they ask and pay is recorded, they learn, and their failures are counted.

The long cases train: a program learns what the compiled game learns.
"""

import asyncio
import dataclasses

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.agent_programs import AgentEpisode, AgentProgram, paid_by_turn
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.text.grammar import Choice
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer

LETTERS = "abc"


def symbols(game):
    return SymbolTokenizer([*LETTERS, *"w?"], ends=True)


async def echo(episode):
    """Both seats are told a letter; the first is asked twice in one dialogue, through OpenAI's client."""
    letter = LETTERS[episode.seed % 3]
    dialogue = [{"role": "user", "content": letter}]
    answer = await episode.client("first").chat.completions.create(model="any", messages=dialogue)
    said = answer.choices[0].message.content or ""
    other = await episode.say("second", letter)
    dialogue += [{"role": "assistant", "content": said}, {"role": "user", "content": "w"}]
    again = await episode.say("first", dialogue)
    return {"first": [float(said == letter), float(again == letter)], "second": float(other == letter)}


RECIPE = Recipe(
    AgentProgram(echo, seats=("first", "second"), turns=3),
    seats=(("me", "me"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    hparams={"learning_rate": 1e-2},
    tokenizer=symbols,
    budget=3,
    updates=24,
    groups=4,
    group_size=4,
)


def trainer_of(play=echo, seeds=(0,), **changed):
    game = dataclasses.replace(RECIPE.game, play=play, **changed)
    recipe = dataclasses.replace(RECIPE, game=game)
    return Trainer(recipe, [recipe.all_hparams] * len(seeds), list(seeds))


@pytest.fixture(scope="module")
def played():
    """A batch of the program and its trainer; the weights are those before training."""
    trainer = trainer_of()
    state = trainer.init()
    return trainer, state, jax.device_get(trainer.rollout(trainer.weights(state, 0), jax.random.key(6)))


def test_every_answer_is_a_turn_and_is_paid(played):
    _, _, trajectory = played
    episodes, tokenizer = trajectory.episodes, symbols(None)
    assert episodes.acted[:, :, 0].tolist() == [[True, False, True]] * 16
    assert episodes.acted[:, :, 1].tolist() == [[False, True, False]] * 16
    assert episodes.terminated.all() and (episodes.group == np.repeat(np.arange(4), 4)).all()
    (rows,) = trajectory.rows.values()
    assert (rows.loss_mask.sum(1) > 0).all()
    for row in range(len(rows.tokens)):
        episode, seat = rows.episode[row], rows.seat[row]
        letter = tokenizer.decode(rows.prompts.tokens[row, :1])
        assert rows.prompts.length[row] == 1 and letter in LETTERS
        for turn in np.flatnonzero(episodes.acted[episode, :, seat]):
            mine = rows.loss_mask[row] & (rows.turn[row] == turn)
            said = [token for token in rows.tokens[row, mine].tolist() if token != tokenizer.end]
            text = b"".join(tokenizer.token_bytes[token] for token in said).decode()
            assert episodes.reward[episode, turn, seat, 0] == (text == letter)
    paid = np.where(episodes.acted[..., None], 0, episodes.reward)
    assert not paid.any()
    letters = {(rows.episode[r] // 4, rows.prompts.tokens[r, 0]) for r in range(len(rows.tokens))}
    assert len(letters) == 4  # a group shares its seed


def test_tokens_that_others_wrote_are_not_trained_and_the_others_have_the_scorers_probabilities(played):
    trainer, state, trajectory = played
    (name,) = trajectory.rows
    rows, tokenizer = trajectory.rows[name], symbols(None)
    heard = ~rows.loss_mask & (rows.tokens == tokenizer.encode("w")[0])
    assert (heard.sum(1) == (rows.seat == 0)).all() and not rows.logp[~rows.loss_mask].any()
    sampled = gather_sampled(rows, trajectory.episodes.legal, trainer.rollout.max_sampled_tokens(name))
    weights = trainer.weights(state, 0)[name]["params"]
    scores = trainer.parts.scorer(name)(weights, rows, sampled)
    mask = np.asarray(sampled.mask)
    assert mask.sum() == rows.loss_mask.sum()
    np.testing.assert_allclose(np.asarray(scores.logp)[mask], np.asarray(sampled.behaviour_logp)[mask], atol=2e-5)


def test_the_same_key_plays_the_same_episodes_however_many_play_at_once(played):
    trainer, state, before = played
    one_by_one = trainer_of(at_once=1, slots=2)
    after = jax.device_get(one_by_one.rollout(trainer.weights(state, 0), jax.random.key(6)))
    same = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5)
    jax.tree.map(same, before.replace(utilisation={}), after.replace(utilisation={}))


def failing(kind: str):
    """A program of which every second group fails in one way. A program that waits lets the others end before, and
    then turns the clock on: no second of the real clock decides what a slow machine gets done.
    """
    at_work = []

    async def play(episode):
        at_work.append(episode)
        paid = await fail(episode)
        at_work.remove(episode)
        return paid

    async def fail(episode):
        if kind == "asks for another temperature" and not episode.seed % 2:
            ask = episode.client("second").chat.completions.create
            episode.rewards = {"second": -1.0}
            await episode.say("first", "a")
            await episode.say("second", "a")
            await ask(model="any", messages=[{"role": "user", "content": "a"}], temperature=0.5)
        paid = await echo(episode)
        if episode.seed % 2:
            return paid
        episode.rewards = {"second": -1.0}
        if kind == "raises":
            raise RuntimeError("no luck")
        if kind == "waits":
            while any(other.seed % 2 for other in at_work):
                await asyncio.sleep(0.01)
            loop = asyncio.get_running_loop()
            loop.time = lambda now=loop.time: now() + TIMEOUT
            await asyncio.sleep(60)
        if kind == "asks too often":
            await episode.say("first", "a")
        wrong = {
            "pays nobody": {"nobody": 1.0},
            "pays too few": {"first": [1.0], "second": 0.0},
            "pays one": {"first": 1},
        }
        return wrong.get(kind, paid)

    return play


TIMEOUT = 3600.0
FAILURES = {
    "raises": "RuntimeError: no luck",
    "waits": "it took more than 3600 seconds",
    "asks too often": "has had its 3 answers",
    "asks for another temperature": "temperature",
    "pays nobody": "It pays 'nobody'",
    "pays too few": "The rewards of seat 'first' are 1 in number, its answers 2.",
    "pays one": "It gives no reward to seat 'second': give every seat one, 0 too.",
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_program_that_fails_ends_its_episode_and_the_others_go_on(played, kind):
    trainer, state, before = played
    other = trainer_of(failing(kind), timeout=TIMEOUT)
    other.rollout.wrong_rewards.tell = (told := []).append
    after = jax.device_get(other.rollout(trainer.weights(state, 0), jax.random.key(6)))
    failed = after.episodes.truncated
    assert 0 < failed.sum() < len(failed) and (after.episodes.terminated == ~failed).all()
    (sentence,) = told
    assert FAILURES[kind] in sentence and f"Episodes that failed: {failed.sum()} of 16." in sentence
    np.testing.assert_array_equal(after.episodes.reward[~failed], before.episodes.reward[~failed])
    own = after.episodes.reward[failed][..., 0]
    assert (own[:, 1, 1] == -1).all() and own.sum() == -failed.sum()


def test_an_update_in_which_every_episode_failed_is_skipped():
    """The entropy bonus would move the weights, and nothing was learnt. Pay in case of a failure is learnt from."""

    async def play(episode):
        await episode.say("first", "a")
        await episode.say("second", "a")
        raise RuntimeError("boom")

    async def paying(episode):
        episode.rewards = {"first": float(episode.seed % 2), "second": -1.0}
        await play(episode)

    async def speechless(episode):
        raise RuntimeError("boom")

    async def halfway(episode):
        await episode.say("first", "a")
        raise RuntimeError("boom")

    async def any_of_them(episode):
        return await program(episode)

    program, trainer = RECIPE.game.play, trainer_of(any_of_them)
    state, _ = trainer.update(trainer.init(), 0)  # with momentum, which would move the weights without a gradient
    before = jax.tree.map(np.array, trainer.weights(state, 0))
    for program, skipped in ((play, 1), (speechless, 1), (halfway, 1), (paying, 0)):  # noqa: B007
        with pytest.warns(UserWarning, match="RuntimeError: boom"):
            state, metrics = trainer.update(state, 0)
        assert int(metrics["skipped"].sum()) == skipped and float(metrics["cut_off"].mean()) == 1
        same = jax.tree.map(np.array_equal, before, jax.tree.map(np.array, trainer.weights(state, 0)))
        assert all(jax.tree.leaves(same)) == bool(skipped)


def test_a_program_without_its_package_ends_the_run_at_once():
    async def play(episode):
        await episode.say("first", "a")
        import a_package_that_is_missing  # noqa: F401

    trainer = trainer_of(play)
    with pytest.raises(ValueError, match=r"The program lacks a package\. No module named 'a_package_that_is_missing'"):
        trainer.update(trainer.init(), 0)


def test_a_client_of_an_unknown_seat_is_refused_at_once():
    episode = AgentEpisode(0, ("first", "second"), say=print, client=print)
    with pytest.raises(ValueError, match=r"There is no seat 'frist': possible are first, second\."):
        episode.client("frist")


def test_a_seat_that_never_spoke_is_a_failure():
    async def play(episode):
        await episode.say("first", "a")
        return 1.0

    trainer = trainer_of(play)
    trainer.rollout.wrong_rewards.tell = (told := []).append
    trajectory = jax.device_get(trainer.rollout(trainer.weights(trainer.init(), 0), jax.random.key(0)))
    reward = trajectory.episodes.reward
    assert trajectory.episodes.truncated.all() and np.isnan(reward).sum() == 16 * 2 and not np.nansum(np.abs(reward))
    assert told == ["Episode 0 failed: second never spoke. Episodes that failed: 16 of 16."]


def test_a_dialogue_that_begins_again_gets_a_row_of_its_own():
    async def play(episode):
        for _ in range(2):
            await episode.say("first", "a")
        await episode.say("second", "b")
        return {"first": [0.0, 1.0], "second": 0.0}

    trainer = trainer_of(play)
    trajectory = jax.device_get(trainer.rollout(trainer.weights(trainer.init(), 0), jax.random.key(0)))
    (rows,) = trajectory.rows.values()
    own = rows.seat == 0
    trained = rows.loss_mask.any(1)
    assert len(rows.tokens) == 64 and (own & trained).sum() == 32 and (~own & trained).sum() == 16
    turns = [sorted(set(rows.turn[row, rows.loss_mask[row]])) for row in np.flatnonzero(own & trained)]
    assert sorted(turns) == [[0]] * 16 + [[1]] * 16


def test_rewards_by_turn():
    spoke, seats = [0, 1, 0], ("first", "second")
    assert paid_by_turn(2.0, seats, spoke) == {(2, 0): 2.0, (1, 1): 2.0}
    assert paid_by_turn({"first": [1, 3]}, seats, spoke, whole=False) == {(0, 0): 1, (2, 0): 3}
    assert paid_by_turn({"second": 1.0}, seats, [0], whole=False) == {}
    wrong = {
        "It pays 'third', and the seats are first, second": {"third": 1.0, "first": 0.0, "second": 0.0},
        "rewards of seat 'first' are 1 in number, its answers 2": {"first": [1.0], "second": 0.0},
        "It gives no reward to seat 'second'": {"first": [1.0, 0.0]},
        "reward of seat 'first' is None": None,
        "reward of seat 'first' is 'good'": "good",
    }
    for sentence, paid in wrong.items():
        with pytest.raises(ValueError, match=sentence):
            paid_by_turn(paid, seats, spoke)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"seats": ("a", "a")}, "different names"),
        ({"seats": ("a/b",)}, "no slash"),
        ({"turns": 0}, "turns is a whole number"),
        ({"play": 3}, "play is an async function"),
        ({"play": lambda episode: 1.0}, "play is an async function"),
        ({"scripts": {"x": len}}, "no scripted players"),
        ({"turns": 1}, "Each of 2 seats speaks: turns must be at least as many, got 1"),
    ],
)
def test_a_program_is_refused_in_a_sentence(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        AgentProgram(**{"play": echo, "seats": ("first", "second"), **changed})


@dataclasses.dataclass(frozen=True)
class FourAnswers(MatrixGame):
    """The dilemma as the program plays it: the same texts, and two names for each move, as many as a free answer of
    one symbol has (D stands for the end token)."""

    labels: tuple[str, ...] = ("A", "B")
    exchange: bool = False
    actions = 4

    rules = (("?",) * 4,)
    observation = (("", "A", "B"),)

    @property
    def grammars(self):
        return ((Choice(((0, "A"), (1, "B"), (2, "?"), (3, "D"))),),) * 2

    def reset(self, key, group):
        return self._wide(*super().reset(key, group))

    def step(self, state, action, key):
        state, view, reward = super().step(state, action % 2, key)
        return *self._wide(state, view), reward

    def _wide(self, state, view):
        return state, view.replace(legal=np.ones((2, 4), bool) & view.acting[:, None])


def dilemma(payoff, rounds: int):
    async def play(episode):
        dialogues = [[{"role": "user", "content": "?"}] for _ in range(2)]
        paid = [[], []]
        for _ in range(rounds):
            said = await asyncio.gather(*map(episode.say, episode.seats, dialogues))
            moves = [int(text[:1] not in ("A", "?") or not text) for text in said]
            for seat, dialogue in enumerate(dialogues):
                paid[seat].append(payoff[moves[0]][moves[1]][seat])
                news = "AB"[moves[1 - seat]]
                dialogue += [{"role": "assistant", "content": said[seat]}, {"role": "user", "content": news}]
        return dict(zip(episode.seats, paid, strict=True))

    return play


def curve(recipe: Recipe, seeds) -> np.ndarray:
    """Mean return [updates, seeds]."""
    trainer = Trainer(recipe, [recipe.all_hparams] * len(seeds), list(seeds))
    state, returns = trainer.init(), []
    for number in range(recipe.updates):
        state, metrics = trainer.update(state, number)
        returns.append(np.asarray(metrics["return"]))
    return np.array(returns)


@pytest.mark.slow
def test_a_dilemma_learns_what_the_compiled_one_learns():
    """Six seeds each: the curves' means differ by less than the 99% interval of a difference at nine of ten updates."""
    game = FourAnswers(rounds=3)
    common = {
        "seats": (("first", "second"),),
        "advantage": estimator(advantages.rloo, per_agent=True),
        "hparams": {"learning_rate": 3e-3},
        "groups": 8,
        "group_size": 8,
        "updates": 24,
    }
    told = lambda game: SymbolTokenizer([*"AB?"], ends=True)
    program = AgentProgram(dilemma(game.payoff, 3), ("one", "two"), turns=6)
    free = curve(Recipe(program, tokenizer=told, budget=2, **common), range(6))
    compiled = curve(Recipe(game, tokenizer=lambda game: SymbolTokenizer("AB?D"), budget=1, **common), range(6))
    error = np.sqrt((free.var(1, ddof=1) + compiled.var(1, ddof=1)) / 6)
    apart = np.abs(free.mean(1) - compiled.mean(1)) / error
    print(np.round(free.mean(1), 2).tolist(), np.round(compiled.mean(1), 2).tolist(), np.round(apart, 1).tolist())
    assert free[0].mean() > 6 and free[-1].mean() < 3.9
    assert (apart < 2.9).mean() >= 0.9


@pytest.mark.long
def test_a_program_learns():
    returns = curve(dataclasses.replace(RECIPE, groups=8, group_size=8), [0])
    assert returns[-3:].mean() > returns[0] + 0.5


def test_a_failure_names_the_line_of_the_program():
    async def play(episode):
        await episode.say("first", "a")
        return {}["answer"]

    trainer = trainer_of(play)
    trainer.rollout.wrong_rewards.tell = (told := []).append
    trainer.rollout(trainer.weights(trainer.init(), 0), jax.random.key(0))
    line = play.__code__.co_firstlineno + 2
    assert told[0].startswith(f"Episode 0 failed: KeyError: 'answer' (test_agent_rollout.py, line {line}).")


def test_a_budget_as_long_as_the_context_is_refused():
    with pytest.raises(ValueError, match=r"An answer of 512 tokens, the budget, leaves no room in the context of me"):
        Trainer(dataclasses.replace(RECIPE, budget=512), [RECIPE.all_hparams], [0])


def test_what_was_said_before_all_programs_failed_stays_in_the_record():
    async def play(episode):
        await episode.say("second", "b")
        raise RuntimeError("boom")

    trainer = trainer_of(play)
    trainer.rollout.wrong_rewards.tell = [].append
    trajectory = jax.device_get(trainer.rollout(trainer.weights(trainer.init(), 0), jax.random.key(0)))
    (rows,) = trajectory.rows.values()
    letter = symbols(None).encode("b")[0]
    heard = rows.prompts.tokens[:, 0] == letter
    assert heard.sum() == 16 and (rows.seat[heard] == 1).all() and (rows.logp[heard] < 0).any(1).all()
    assert trajectory.episodes.acted[:, 0, 1].all() and trajectory.episodes.acted[:, 1, 0].all()
    assert np.isnan(trajectory.episodes.reward[:, [0, 1], [1, 0]]).all()
