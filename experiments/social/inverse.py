"""How many demonstrations does a reward take? Critics marginalised over the other agents, and critics of joint actions.

Agents play a soft equilibrium of a general-sum game, drawn with the seed, and are watched. From n steps of play each
agent's reward is recovered by inverse soft Q-learning, with a critic of one of three kinds (`rl.inverse`). A critic
knows the rules and the temperature, and estimates what the others do by counting. Nothing is trained on a policy's own
play: these arms are computed. The curve is over n, from 8 doubled to 32768.

  two, three, four   agents with 3 actions each and payoffs of their own, drawn from a normal law; one round
  grid               two agents on 3 x 3 cells move by 5 actions; either likes two cells of its own and one that the
                     other likes too, and both lose a point where they meet; episodes of 8 steps from random cells
  .../marginal       Q_i(s, a_i), of which the others' policies are averaged out: the paper's
  .../joint          Q_i(s, a_1 ... a_n); an agent answers softly to what the others do, as in MA-AIRL
  .../averaged       Q_i(s, a_1 ... a_n), and the policy reads its mean over the others

`error`: of the recovered reward, as its mean over what the others do, the root mean square relative to that of the true
one, both less the potential that play cannot reveal (`unshaped`); 1 is that of no reward at all. `correlation` of the
two. `error as stated`: of the soft advantages, the temperature times log pi, of own actions given what the others do,
as the critic has them: those of joint actions are not averaged. `samples`: the n at which the error is 0.3,
in the grid 0.7, interpolated, 32768 if never; `times`: of the marginal critic's in the same game.

  python -m experiments inverse --seeds 10

Paper: Multi-Agent Inverse Q-Learning from Demonstrations (Haynam et al.) 2025, https://arxiv.org/abs/2503.04679, whose
critics are networks and whose games are larger; its baselines are other methods than the two critics here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.tabular import inverse
from jaxmarl_llm.tabular.soft_equilibrium import demonstrations, others, side, soft_equilibrium
from jaxmarl_llm.tabular.tabular_games import Game, grid, matrix

SAMPLES = tuple(2**k for k in range(3, 16))
CRITICS = {"marginal": inverse.marginal_critic, "joint": inverse.joint_critic, "averaged": inverse.averaged_critic}


def samples(error: jax.Array, enough: jax.Array) -> jax.Array:
    """The n at which a curve of errors first is small enough: log n is interpolated; the largest if it never is."""
    below, at = error <= enough, jnp.log2(jnp.array(SAMPLES, jnp.float32))
    k = jnp.argmax(below)
    before = jnp.maximum(k - 1, 0)
    share = (error[before] - enough) / jnp.where(k > 0, error[before] - error[k], 1)
    return jnp.where(below.any(), 2 ** (at[before] + jnp.where(k > 0, share, 0) * (at[k] - at[before])), SAMPLES[-1])


def quality(counts: jax.Array, *, kind: str, rules: Game, policy: jax.Array, agent: int, numbers: Mapping) -> tuple:
    """(error, correlation, error as stated) of one agent's reward, by one critic from counts [S, A, ..., A]."""
    known = {"temperature": numbers["temperature"], "discount": rules.discount}
    then, truth = side(rules.following, agent), others(policy, agent)
    seen = jnp.stack([side(counts, k).sum(-1) + 1 for k in range(len(policy))])  # one more of each action
    rivals = others(seen / seen.sum(-1, keepdims=True), agent)
    strength = numbers[f"strength/{kind}"]
    found = inverse.recover(CRITICS[kind], side(counts, agent), rivals, then, **known, strength=strength)
    read = found.reward if found.reward.ndim == 2 else (rivals[:, None] * found.reward).sum(-1)
    true = (truth[:, None] * side(rules.reward[agent], agent)).sum(-1)
    read, true = (inverse.remove_shaping(x, truth, then, rules.discount) for x in (read, true))
    size, product = jnp.linalg.norm(true), jnp.linalg.norm(true) * jnp.linalg.norm(read)
    logp = jnp.log(policy[agent])
    away = (truth[:, None] * (found.logp - logp[..., None]) ** 2).sum()
    stated = jnp.sqrt(away / ((logp - logp.mean(1, keepdims=True)) ** 2).sum())
    return jnp.linalg.norm(read - true) / size, (read * true).sum() / jnp.maximum(product, 1e-9), stated


def compare_critics(key: jax.Array, hparams: Mapping[str, jax.Array], *, game: Callable[..., Game]) -> dict[str, dict]:
    """The curves of all critics, which see the same demonstrations."""
    draw, watch = jax.random.split(key)
    rules, found = game(draw), {}
    play = soft_equilibrium(rules.reward, rules.following, temperature=hparams["temperature"], discount=rules.discount)
    shown = demonstrations(rules.following, play.policy, watch, sizes=SAMPLES, length=rules.length)
    for kind in CRITICS:
        of = partial(quality, kind=kind, rules=rules, policy=play.policy, numbers=hparams)
        each = [jax.vmap(partial(of, agent=i))(shown) for i in range(len(rules.reward))]
        error, correlation, stated = jnp.array(each).mean(0)
        found[kind] = {"error": error, "correlation": correlation, "error as stated": stated, "gap": play.gap}
        for name in ("", " as stated"):
            found[kind][f"samples{name}"] = samples(found[kind][f"error{name}"], hparams["enough"])
            found[kind][f"times{name}"] = found[kind][f"samples{name}"] / found["marginal"][f"samples{name}"]
    return found


MATRIX = {"temperature": 0.5, "enough": 0.3, **{f"strength/{kind}": 0.5 for kind in CRITICS}}
GRID = {**MATRIX, "enough": 0.7}
GAMES: dict[str, tuple[Callable, dict[str, float]]] = {
    "two": (partial(matrix, agents=2), MATRIX),
    "three": (partial(matrix, agents=3), MATRIX),
    "four": (partial(matrix, agents=4), MATRIX),
    "grid": (grid, GRID),
}
# of a game's arms one, run once
ALL: dict[str, Any] = {name: partial(compare_critics, game=game) for name, (game, _) in GAMES.items()}
ARMS = {
    f"{name}/{kind}": Computed(ALL[name], own, updates=len(SAMPLES), part=kind)
    for name, (_, own) in GAMES.items()
    for kind in CRITICS
}
STUDY = Study(
    paper=Paper("MAMQL (Haynam et al.)", "https://arxiv.org/abs/2503.04679", 2025, checked="abstract"),
    question="How many demonstrations does a reward take, by a marginal or a joint critic?",
    claim="A critic marginalised over the other agents needs fewer demonstrations than one of joint actions: at most "
    "half of them as either states its reward, the less the more agents, and more than half once the joint one's is "
    "averaged over what the others do.",
    arms=ARMS,
    method="grid/marginal",
    metrics=("error", "error as stated", "samples", "samples as stated", "times", "times as stated"),
    predictions=(
        *(Lower("samples", f"{name}/marginal", than=f"{name}/joint") for name in ("three", "four", "grid")),
        *(AtLeast("times as stated", f"{name}/joint", 2.0) for name in ("two", "three", "four")),
        Higher("times as stated", "four/joint", than="two/joint"),
        AtMost("times", "three/joint", 2.0),
        AtMost("times", "four/joint", 2.0),
        Lower("samples", "grid/marginal", than="grid/averaged"),
    ),
)
