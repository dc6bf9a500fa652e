"""Python games: rows hold the texts of the environment, and the environment hears the sampled texts.

The environment replays every batch one game at a time, from the texts decoded from the rows. A Python loop then writes
the expected dialogue of each row.

"market" is a game of this file with every special case: seats that speak at once, in turn and never, chance during
play, and letters outside the tokenizer. Seats that did not speak are paid. Its players are two models, two adapters, a
script and a recorded script. "kuhn" is TextArena's, "sums" reasoning_gym's.

The long cases compile scores or play further games; the short ones read every row of the other games.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges import python_games
from jaxmarl_llm.environments.bridges.python_games import Turn
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.losses import ppo_clip
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Trajectory, gather_sampled, per_token
from jaxmarl_llm.serving.python_rollout import PythonRollout
from jaxmarl_llm.training import update
from tests.support.toys import ByteTokenizer

BYTES = ByteTokenizer()
MISSING = bytes(set(range(256)) - set(b"\nsua ?[]chektb01"))  # so few tokens that answers end early
FEW, SHORT = ByteTokenizer((), MISSING), ByteTokenizer((b"??", b"????", b"?" * 8, b" ????", b"check"), MISSING)
BUDGET = 5
SEED = 3
CASES = ("market", "kuhn", "sums")
FAST = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles in half the time


class Market:
    """Seats 0 and 1 speak at once or in turn, and hear each other in every turn. Seat 2 speaks and hears in some turns.

    Chance ends the game; an answer of even length is invalid; seat 2 is paid in even turns, also without speaking.
    """

    agents = 3

    def reset(self, seed: int) -> tuple[Sequence[str], Turn]:
        self.secret, self.turn = random.randrange(1000), 0
        rules = [f"Trade for {self.secret} ¥.", "Trade.", f"Watch {np.random.randint(1000)}."]  # noqa: NPY002
        rules = [text + " Be brief." * 44 for text in rules]  # 470 tokens: in the next turn 512 slots are too few
        return rules, Turn({0: "Begin.", 1: f"Begin {seed % 7}."}, (0, 1))

    def step(self, said: dict[int, str]) -> Turn:
        self.turn += 1
        noise = np.random.rand()  # noqa: NPY002
        number = [random.randrange(50) for _ in range(3)]
        others = ["".join(text for seat, text in said.items() if seat != a) for a in range(3)]
        news = {a: f" {self.turn}:{number[a]} é{others[a]}" for a in range(3)}
        if len(said) == 1:
            del news[2]  # told nothing, while the others are told something that they may not answer yet
        wrong = tuple(seat for seat, text in said.items() if len(text) % 2 == 0)
        reward = {seat: sum(text.encode()) % 11 / 2 for seat, text in said.items()}
        if self.turn % 2 == 0:
            reward[2] = 0.25 * self.turn
        if noise < 0.2:
            return Turn(reward=reward, done=True, invalid=wrong)
        acting = {0: (0, 1), 1: (0,), 2: (0, 1), 3: (2, 0)}[self.turn % 4]
        return Turn(news, acting, reward, invalid=wrong)


class Recorded:
    """An environment that keeps what it said and heard."""

    def __init__(self, inner: Any, log: list):
        self.inner, self.agents, self.said, self.turns = inner, inner.agents, [], []
        log.append(self)

    def reset(self, seed: int):
        self.seed = seed
        self.rules, turn = self.inner.reset(seed)
        self.turns.append(turn)
        return self.rules, turn

    def step(self, said: dict[int, str]) -> Turn:
        self.said.append(dict(said))
        self.turns.append(self.inner.step(said))
        return self.turns[-1]


@dataclass(frozen=True, eq=False)
class Case:
    make: Any
    rollout: PythonRollout
    log: list


def tiny(tokenizer: ByteTokenizer, context: int) -> Config:
    return Config(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8, context)


def polite(seen: Sequence[str]) -> str:
    return f"{len(seen)} {random.random():.2f} é"  # longer than the budget


def caller(seen: Sequence[str]) -> str:
    """Checks, or calls where it may not check."""
    return "[call]" if "'[call]'" in seen[-1].rsplit("available", 1)[-1] else "[check]"


@cache
def case(name: str) -> Case:
    scripts = {"polite": polite, "caller": caller}
    if name == "market":
        make, turns = Market, 4
        loras = Lora(2, 4.0), Lora(1, 2.0, ("q_*",))
        policy_sets = {
            "lora": PolicySet(BYTES, ("one", "two"), tiny(BYTES, 1024), loras, sampling=Sampling(0.7)),
            "full": PolicySet(FEW, ("whole",), tiny(FEW, 1024)),
            "teacher": PolicySet(FEW, ("polite",)),
        }
        seats: tuple = (("one", "whole", "two"), ("whole", "caller", "whole"), ("polite", "two", "whole"))
        lineup = Lineup((*seats, ("one", "whole", "polite")), 3)
    elif name == "kuhn":
        pytest.importorskip("textarena")
        make, turns = python_games.textarena("KuhnPoker-v0", 2), 2
        policy_sets = {"us": PolicySet(SHORT, ("us",), tiny(SHORT, 1024))}
        lineup = Lineup((("us", "us"), ("us", "caller"), ("caller", "us")), 2)
    else:
        pytest.importorskip("reasoning_gym")
        make, turns = (
            python_games.reasoning_gym("chain_sum", "Answer with a number.", max_terms=2, max_digits=1, size=50),
            1,
        )
        policy_sets = {"us": PolicySet(BYTES, ("us",), tiny(BYTES, 512))}
        lineup = Lineup((("us",),) * 3, 4)
    log: list = []
    rollout = PythonRollout(
        lambda: Recorded(make(), log),
        policy_sets,
        lineup,
        turns,
        BUDGET,
        scripts=scripts,
    )
    log.clear()
    return Case(make, rollout, log)


@cache
def weights(rollout: PythonRollout) -> dict[str, dict]:
    """Random weights, large enough that tokens are far from equally likely; adapters that are not zero."""

    def of(index: int, policy_set: PolicySet) -> dict:
        if policy_set.config is None:
            return {}
        key = jax.random.key(index)
        init = FAST(partial(decoder.init, policy_set.config))
        params = jax.tree.map(lambda x: x * (3.0 if x.ndim == 2 else 1.0), init(key))
        if policy_set.lora is None:
            return {"params": params}
        own = (lora.init(jax.random.fold_in(key, i), params, how) for i, how in enumerate(policy_set.loras))
        return {"params": params, "adapters": tuple(jax.tree.map(lambda x: x + 0.2, adapter) for adapter in own)}

    return {name: of(index, policy_set) for index, (name, policy_set) in enumerate(rollout.policy_sets.items())}


@cache
def played(name: str) -> Trajectory:
    one = case(name)
    return jax.device_get(one.rollout(weights(one.rollout), jax.random.key(SEED)))


def whole_row(name: str, policy_set: str, row: int) -> tuple[list[int], np.ndarray]:
    rows = played(name).rows[policy_set]
    prompts, o = rows.prompts, rows.prompt[row]
    prompt = prompts.tokens[o, : prompts.length[o]].tolist()
    return prompt, rows.tokens[row, : rows.length[row]]


def written(tokenizer: ByteTokenizer, text: str) -> list[int]:
    single = {token for token in tokenizer.token_bytes if token and len(token) == 1}
    fits = lambda c: all(bytes([byte]) in single for byte in c.encode())
    return tokenizer.encode("".join(c if fits(c) else "?" for c in text))


@pytest.mark.parametrize("name", [pytest.param("market", marks=pytest.mark.long), *CASES[1:]])
def test_rows_are_the_dialogue_of_a_game_played_alone(name):
    """Also: games of a batch do not disturb each other's chance, nor anybody else's."""
    episodes, one = played(name).episodes, case(name)
    assert len(one.log) == one.rollout.lineup.episodes
    for index, logged in enumerate(one.log):
        random.seed(logged.seed)
        np.random.seed(logged.seed)  # noqa: NPY002
        alone = one.make()
        rules, turn = alone.reset(logged.seed)
        assert list(rules) == list(logged.rules) and turn == logged.turns[0]
        dialogue = {seat: [("rules", 0, rules[seat])] for seat in range(alone.agents)}
        for t in range(one.rollout.turns):
            for seat in range(alone.agents):
                if turn.told.get(seat) or seat in turn.acting:
                    dialogue[seat].append(("heard", t, turn.told.get(seat, "")))
            assert np.flatnonzero(episodes.acted[index, t]).tolist() == sorted(turn.acting)
            assert sorted(logged.said[t]) == sorted(turn.acting)
            for seat, text in logged.said[t].items():
                dialogue[seat].append(("said", t, text))
            turn = alone.step(logged.said[t])
            assert turn == logged.turns[t + 1]
            paid = [turn.reward.get(seat, 0) for seat in range(alone.agents)]
            np.testing.assert_allclose(episodes.reward[index, t, :, 0], paid)
            for seat in range(alone.agents):
                right = bool(episodes.acted[index, t, seat]) and seat not in turn.invalid
                assert episodes.valid[index, t, seat] == right
                assert episodes.action[index, t, seat] == right - int(episodes.acted[index, t, seat])
            if turn.done:
                break
        assert len(logged.said) == t + 1 and not episodes.acted[index, t + 1 :].any()
        assert not episodes.reward[index, t + 1 :].any()
        assert episodes.terminated[index] == turn.done and episodes.truncated[index] == (not turn.done)
        for policy_set, rows in played(name).rows.items():
            for row in np.flatnonzero(rows.episode == index):
                check_row(name, policy_set, row, dialogue[int(rows.seat[row])])


def check_row(name: str, policy_set: str, row: int, dialogue: list) -> None:
    """Writes the row from the dialogue; answers are read from it, as a text has several spellings, and compared."""
    rows, layout = played(name).rows[policy_set], case(name).rollout.layouts[policy_set]
    tokenizer, markers = layout.policy_set.tokenizer, layout.policy_set.tokenizer.markers
    prompt, tokens = whole_row(name, policy_set, row)
    expected: list[int] = [*markers.before_rules]
    turns, loss_mask, spoke, heard_any = [0] * len(expected), [False] * len(expected), False, False
    acted = [t for kind, t, _ in dialogue if kind == "said"]
    for kind, turn, text in dialogue:
        if kind == "rules":
            new = written(tokenizer, text)
        elif kind == "heard":
            before = markers.hear if spoke else () if heard_any else markers.hear_first
            new = [*before, *written(tokenizer, text), *(markers.speak if turn in acted else ())]
            spoke, heard_any = turn in acted, True
        else:
            start = len(expected) - len(prompt)
            end = start + tokens[start:].tolist().index(tokenizer.end)
            new = tokens[start : end + 1].tolist()
            assert len(new) <= BUDGET
            spelled = b"".join(tokenizer.token_bytes[t] for t in new[:-1]).decode(errors="replace")
            assert spelled == text
        expected += new
        turns += [turn] * len(new)
        loss_mask += [kind == "said" and i < BUDGET - 1 for i in range(len(new))]
    assert [*prompt, *tokens] == expected
    n = len(prompt)
    assert (
        rows.turn[row, : len(tokens)].tolist() == turns[n:]
        and rows.loss_mask[row, : len(tokens)].tolist() == loss_mask[n:]
    )
    assert not rows.loss_mask[row, len(tokens) :].any() and not rows.tokens[row, len(tokens) :].any()


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_scored_again_the_log_probabilities_agree(name):
    one, trajectory = case(name), played(name)
    given = weights(one.rollout)
    for policy_set, layout in one.rollout.layouts.items():
        if layout.policy_set.config is None:
            assert not trajectory.rows[policy_set].logp.any()
            continue
        rows = jax.tree.map(jnp.asarray, trajectory.rows[policy_set])
        sampled = gather_sampled(
            rows, jnp.asarray(trajectory.episodes.legal), one.rollout.max_sampled_tokens(policy_set)
        )
        joined = lora.concatenate(given[policy_set].get("adapters", ()), layout.policy_set.loras)
        which = None if joined is None else rows.policy
        scores = FAST(layout.scorer())(given[policy_set]["params"], rows, sampled, joined, which)
        assert int(sampled.mask.sum()) == int(rows.loss_mask.sum()) > 0
        np.testing.assert_allclose(scores.logp, np.where(sampled.mask, sampled.behaviour_logp, 0), atol=1e-4)
        assert float(jnp.abs(sampled.behaviour_logp).max()) > 0.1
        assert 0 < float(trajectory.utilisation[policy_set]) <= 1


def test_a_reward_between_two_acts_belongs_to_the_earlier():
    episodes = played("market").episodes
    got = np.asarray(jax.jit(returns.credit_to_acts)(episodes.reward[..., 0], episodes.acted))
    late = 0
    for index, logged in enumerate(case("market").log):
        for seat in range(3):
            expected, last = np.zeros(episodes.acted.shape[1]), None
            for t, (before, after) in enumerate(zip(logged.turns, logged.turns[1:], strict=False)):
                last = t if seat in before.acting else last
                if seat in after.reward:
                    # what comes before the first act goes to that
                    first = [u for u, turn in enumerate(logged.turns[: len(logged.said)]) if seat in turn.acting][:1]
                    to = first if last is None else [last]
                    expected[to] += after.reward[seat]
                    late += bool(to) and to != [t]
            np.testing.assert_allclose(got[index, :, seat], expected, atol=1e-6)
    assert late > 3


@pytest.mark.parametrize("name", CASES)
def test_groups_share_their_deal_and_groups_differ(name):
    one = case(name)
    group_size = one.rollout.lineup.group_size
    played(name)
    groups = [one.log[i : i + group_size] for i in range(0, len(one.log), group_size)]
    for group in groups:
        assert len({(g.seed, *g.rules, *sorted(g.turns[0].told.items())) for g in group}) == 1
    assert len({group[0].seed for group in groups}) == len(groups)
    assert len({(*g[0].rules, *g[0].turns[0].told.values()) for g in groups}) > 1


def test_cards_of_textarena_are_shared_by_a_group_though_its_games_are_played_side_by_side():
    """TextArena draws from Python's global generator, also between the rounds of a game (KuhnPokerEnv._init_round)."""
    played("kuhn")
    one, cards = case("kuhn"), []
    for logged in one.log:
        told = " ".join(text for turn in logged.turns for _, text in sorted(turn.told.items()))
        cards.append(re.findall(r"Your card is: '(\w)'", told))
    assert all(cards)
    for group in range(0, len(cards), 2):
        shared = min(map(len, cards[group : group + 2]))
        assert cards[group][:shared] == cards[group + 1][:shared]
    assert len({tuple(c[:1]) for c in cards}) > 1


def test_the_same_key_plays_the_same_games_whatever_others_have_drawn():
    one, before = case("market"), played("market")
    games = len(one.log)
    random.seed(99)
    state, numbers = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    after = jax.device_get(one.rollout(weights(one.rollout), jax.random.key(SEED)))
    assert random.getstate() == state and (np.random.get_state()[1] == numbers).all()  # noqa: NPY002
    jax.tree.map(np.testing.assert_array_equal, before, after)
    del one.log[games:]  # as other tests expect them


@pytest.mark.long
def test_an_update_runs_on_it():
    one, trajectory = case("market"), jax.tree.map(jnp.asarray, played("market"))
    layout, given = one.rollout.layouts["full"], weights(one.rollout)["full"]["params"]
    rows, episodes = trajectory.rows["full"], trajectory.episodes
    sampled = gather_sampled(rows, episodes.legal, one.rollout.max_sampled_tokens("full"))
    groups = len(one.rollout.lineup.seats)
    advantage = advantages.rloo(episodes.reward[..., 0], episodes.acted, episodes.group, groups, per_agent=True)

    def loss(learners, batch):
        rows, sampled, advantage = batch
        scores = layout.scorer()(learners["whole"], rows, sampled)
        return ppo_clip(scores.logp, sampled.behaviour_logp, advantage, sampled.mask)

    settings = update.Optimiser()
    batch = (rows, sampled, per_token(advantage, rows, sampled))
    step = FAST(partial(update.update, settings, loss), static_argnums=2)
    learners, metrics = step(settings.init({"whole": given}), batch, len(layout.assignments), 1e-3, jax.random.key(0))
    assert float(metrics["ratio"]) == pytest.approx(1, abs=1e-4) and int(metrics["skipped"]) == 0
    assert float(metrics["gradient_norm/whole"]) > 0
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), learners.weights["whole"], given)
    assert max(jax.tree.leaves(moved)) > 1e-4


def test_widths_are_powers_of_two():
    trajectory = played("market")
    for rows in trajectory.rows.values():
        for width in (rows.tokens.shape[1], rows.prompts.tokens.shape[1]):
            assert width & (width - 1) == 0
