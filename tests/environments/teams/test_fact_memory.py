"""Facts to keep: told texts and points against plain Python, exact shares of right answers by enumeration."""

import re
from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.fact_memory import FactMemory
from tests.support.team_plays import acted, close, given, played, row, totals

GAME, SMALL = FactMemory(), FactMemory(facts=3, kept=1, values=3, often=(2, 5), planned=0.7)
MISSING = -1


def exact(game: FactMemory, chooses) -> float:
    """The chance of a right answer if `chooses(mentions, plan)` is kept and read right. Every deal is counted."""
    total = weight = 0.0
    for often, level, plan, asked in product(
        combinations(range(game.facts), game.kept), game.often, range(game.facts), range(game.facts)
    ):
        mentions = [level if i in often else 1 for i in range(game.facts)]
        chance = game.planned if asked == plan else (1 - game.planned) / (game.facts - 1)
        kept = chooses(mentions, plan)
        total += chance * (1 if asked in kept else 1 / game.values)
        weight += chance
    return total / weight


def covering(mentions, plan):
    return sorted(range(len(mentions)), key=lambda i: -mentions[i])[: sum(x > 1 for x in mentions)]


def best(mentions, plan):
    others = sorted((i for i in range(len(mentions)) if i != plan), key=lambda i: -mentions[i])
    return [plan, *others[: sum(x > 1 for x in mentions) - 1]]


@pytest.mark.parametrize("game", (GAME, SMALL), ids=("plain", "small"))
@pytest.mark.parametrize("player", ("random", "unsure", "covering", "correct"))
def test_against_python(game, player):
    record = played(game, player)
    for g in range(60):
        rows, said = [row(game, record, g, seat) for seat in range(2)], acted(game, record, g)
        assert [seat for seat, _ in said] == [0, 1, 1]
        heard = [(x, 1 if n == "once" else int(n)) for x, n in re.findall(r"(\w) was heard (once|\d+)", rows[0][1])]
        plan = re.search(r" (\w) is on a plan", rows[0][1]).group(1)
        kept = said[0][1].split(" and ")
        assert rows[1][2].startswith(f"Kept: {said[0][1]}.") and rows[0][2:] == ["", ""]
        asked = re.search(r"The question is (\w)", rows[1][2]).group(1)
        mentions, facts = dict(heard), dict(zip("ABCDEF", record["state"].facts[0, g], strict=False))
        place = {"first": 0, "second": 1, "third": 2, "neither": MISSING}[said[1][1]]
        told = "Nothing is read." if place == MISSING else f"It is {facts[kept[place]]}."
        assert rows[1][3] == f"{told} Your answer?"
        wanted = np.zeros((3, 2, 4))
        wanted[0, 0, 0] = sum(mentions[x] for x in kept) / sum(mentions.values())
        right = int(said[2][1]) == facts[asked]
        wanted[2, 1, 1] = (right and kept[place] == asked) if place != MISSING else asked not in kept
        wanted[2, :, 2] = right
        wanted[2, :, 3] = asked in kept
        np.testing.assert_allclose(given(record)[:, g], wanted, atol=1e-6)
        if player in ("covering", "correct"):
            chosen = covering(list(mentions.values()), None) if player == "covering" else None
            at = best(list(mentions.values()), "ABCDEF".index(plan)) if chosen is None else chosen
            assert mentions[kept[0]] + mentions[kept[-1]] == sum(list(mentions.values())[i] for i in ([at[0], at[-1]]))


def test_exact_shares_of_right_answers():
    """The fact on a plan is among those heard often in half of the deals: .625 and .95, and a guess is right in .25."""
    assert exact(GAME, covering) == pytest.approx(0.625)
    assert exact(GAME, best) == pytest.approx(0.95)
    assert exact(GAME, lambda mentions, plan: []) == pytest.approx(0.25)
    assert exact(GAME, lambda mentions, plan: [0, 1]) == pytest.approx(0.625)
    for game in (GAME, SMALL):
        for player, chooses in (("covering", covering), ("correct", best)):
            right, known = totals(played(game, player))[:, 0, 2:].T
            share = exact(game, chooses)
            # a script that reads nothing says 0, which is right as often as any value
            assert close(right, share) and close(known, (share - 1 / game.values) / (1 - 1 / game.values))


def test_an_empty_memory_changes_nothing_else():
    """The same deal with the memory and without, under the same chance."""

    @jax.jit
    def play(key, works):
        state, view = GAME.reset(key, jnp.int32(0), works)
        rewards, seen = [], [view.phrases]
        for _ in range(3):
            says = jnp.stack([GAME.scripts["correct"](state, jnp.int32(i), key) for i in range(2)])
            state, view, reward = GAME.step(state, says, key)
            rewards.append(reward)
            seen.append(view.phrases)
        return jnp.stack(rewards).sum(0), jnp.stack(seen[:2]), state

    keys = jax.random.split(jax.random.key(1), 3000)
    batch = jax.vmap(play, (0, None))
    (paid, told, state), (paid_without, told_without, state_without) = batch(keys, True), batch(keys, False)
    same = lambda name: np.array_equal(getattr(state, name), getattr(state_without, name))
    assert all(map(same, ("counts", "plan", "asked", "facts", "kept")))
    np.testing.assert_array_equal(told[:, 0], told_without[:, 0])
    np.testing.assert_array_equal(paid[:, 0, 0], paid_without[:, 0, 0])
    assert set(np.asarray(told_without[:, 1, 1, -3])) == {len(GAME.sets)}
    assert close(np.asarray(paid_without[:, 0, 2]), 1 / GAME.values) and close(np.asarray(paid[:, 0, 2]), 0.95)
    np.testing.assert_array_equal(paid_without[:, 1, 1], 1.0)


def test_settings_that_cannot_be():
    for settings in ({"facts": 7}, {"kept": 4}, {"kept": 0}, {"values": 1}, {"often": ()}, {"often": (1,)}):
        with pytest.raises(ValueError, match=r"fact|must be"):
            FactMemory(**settings)
    with pytest.raises(ValueError, match="chance"):
        FactMemory(planned=1.5)
