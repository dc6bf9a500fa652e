"""What learns a task of a hundred turns: a critic of turns, the mean of a group, or imitation first?

One seat opens locks in a row for a hundred turns and tries one key per turn. Each of four colours has one right key of
four.

  dense   a chain of 100 locks, each of which pays 1/100: a game pays its share of right keys
  sparse  a chain of 65 locks, the last of which pays 1

A run has 16 updates of two groups of four games. Advantages:

  critic               GAE from turn to turn with a value head on the policy's trunk, whitened
  exact                GAE with an exact value: the value of a player whose success rate is the batch's, given turns and
                       locks left
  discounted           GAE with the value 0: the return-to-go, discounted by gamma times lambda
  grpo                 the game's return minus the group's mean, over the group's standard deviation
  reinforce_plus_plus  the return-to-go, discounted by `to_go`, normalised over the batch

A policy first imitates the script `hasty`, which is right with probability 0.6 and else takes another key. In
`cold/...` the policy begins with random weights.

  paid      return of a game
  over all  mean of `paid` over all updates
  fall      `paid` at its peak minus `paid` at the end
  right     share of right keys
  off       root mean square difference of the value head and the exact value

  python -m experiments hundred_turns --seeds 10

Papers: Odysseus (Shi et al.) 2026, https://arxiv.org/abs/2605.00347, for the critic; WebAgent-R1 (Wei et al.) 2025,
https://arxiv.org/abs/2505.16421, for imitation first. Both train pretrained models. Odysseus compares estimators
in up to 80 turns, all paid for progress; its critic is a separate network, with lambda 1. WebAgent-R1 pays success at
the end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.studies.curves import fall_from_peak, mean_over_updates
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Common, Experience

TURNS, OVER_ALL = 100, "over all"
FREE, COLD_TOO = ("grpo", "reinforce_plus_plus"), ("critic", "grpo")
HASTY = Errs("hasty", "correct", 0.6)


def chain(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    return Arranged(deal=hparams["locks"].round().astype(jnp.int32))


def values(p: jax.Array, locks: jax.Array, dense: jax.Array, gamma: jax.Array) -> jax.Array:
    """Value, float32 [101, 101] by turns left and locks left, of a player who is right with probability p in each turn.

        V(t, n) = p (r(n) + gamma V(t-1, n-1)) + (1 - p) gamma V(t-1, n),  V(0, n) = V(t, 0) = 0

    The reward r(n) is 1 / locks with `dense`; else it is 1 for the last lock, n = 1, and 0 for the others."""
    paid = jnp.where(dense, 1 / locks, jnp.arange(1, TURNS + 1) == 1)

    def longer(value: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        value = jnp.pad(p * (paid + gamma * value[:-1]) + (1 - p) * gamma * value[1:], (1, 0))
        return value, value

    return jnp.pad(jax.lax.scan(longer, jnp.zeros(TURNS + 1), None, TURNS)[1], ((1, 0), (0, 0)))


def exact_value(right: jax.Array, acted: jax.Array, hparams: Hparams) -> jax.Array:
    """The value of `values` before each turn, float32 [B, T, A]; p is the batch's share of `right` turns.

    `right` and `acted` are bool [B, T, A]."""
    locks, turn = hparams["locks"].round().astype(jnp.int32), jnp.arange(acted.shape[1])[None, :, None]
    dense = select(hparams, "reward", dense=True, sparse=False)
    table = values(right.sum() / acted.sum(), hparams["locks"], dense, hparams["gamma"])
    return jnp.where(acted, table[TURNS - turn, locks - (jnp.cumsum(right, 1) - right)], 0)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Advantages by the arm's estimator from the arm's reward; `gae` uses the arm's critic."""
    solved, opened, acted = (episodes := experience.episodes).total_reward, episodes.measured[..., 0], episodes.acted
    paid, said, right = select(hparams, "reward", dense=opened, sparse=solved), experience.turn_value, opened > 0
    exact = exact_value(right, acted, hparams)
    value = select(hparams, "critic", none=jnp.zeros_like(said), head=said, exact=exact)
    by_turn = returns.gae(paid, value, acted, gamma=hparams["gamma"], lam=hparams["lambda"])
    advantage = select(
        hparams,
        "advantage",
        gae=whiten(by_turn.advantage, acted),
        grpo=advantages.grpo(paid, *experience.acts),
        reinforce_plus_plus=advantages.reinforce_plus_plus(paid, *experience.acts, gamma=hparams["to_go"]),
    )
    off = jnp.sqrt((jnp.where(acted, said - exact, 0) ** 2).sum() / acted.sum())
    metrics = {"paid": paid.sum(1).mean(), "right": right.sum() / acted.sum(), "off": off}
    return Advantages(advantage, by_turn.value_target, metrics=metrics)


PAY = {  # each estimator's best discount of two to four on other seeds
    "dense": {"locks": 100.0, "gamma": 0.95, "lambda": 0.9, "to_go": 0.95},
    "sparse": {"locks": 65.0, "gamma": 1.0, "lambda": 0.95, "to_go": 0.99},
}
CREDIT = {
    "critic": {"critic": "head"},
    "grpo": {"advantage": "grpo"},
    "exact": {"critic": "exact"},
    "discounted": {},
    "reinforce_plus_plus": {"advantage": "reinforce_plus_plus"},
}
COLD = Recipe(
    Noisy(LockChain(TURNS, turns=TURNS), (HASTY,)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=chain,
    critic=True,  # the value head learns nothing if `value` is 0
    hparams={"learning_rate": 3e-3, "value": 0.0, "entropy": 0.0},
    choices={
        "reward": ("dense", "sparse"),
        "advantage": ("gae", "grpo", "reinforce_plus_plus"),
        "critic": ("none", "head", "exact"),
    },
    budget=1,
    updates=16,
    groups=2,
    group_size=4,
    pretrained={"budget": 4},
)
WARM = replace(COLD, warm_start=Common(((HASTY.name,),), group_size=2), warm_start_updates=60)


def arm(base: Recipe, reward: str, name: str) -> Recipe:
    """An arm that trains the value head only if it is the critic."""
    chosen = base.with_choice(reward=reward, **CREDIT[name])
    return chosen.with_hparams(**PAY[reward], value=0.1 if name == "critic" else 0.0)


BETTER = (
    'Section 4.2, Figure 4a: PPO with the critic "substantially outperforms critic-free methods"; each turn is paid'
)
AT_END = "seeds 100 to 102: the critic was no better; predicted against this pilot. The paper pays each turn."
STABLE = (
    "A critic lowers the variance of advantages. Section 4.2 states stability, but PPO without its filter falls in "
    "Figure 7."
)
EXACT = "GAE with the exact value has no bias by a critic, and less variance than a return centred by a group of four."
NO_BETTER = "seeds 100 to 102: the critic was no better than the same discount; predicted against this pilot"
STUDY = Study(
    paper=Paper("Odysseus (Shi et al.)", "https://arxiv.org/abs/2605.00347", 2026, checked="release"),
    question="What learns a task of a hundred turns: a critic of turns, the mean of a group, or imitation first?",
    claim="A critic of turns earns more than what has none; where only the end pays, imitation must come first.",
    arms={f"{pay}/{name}": arm(WARM, pay, name) for pay in PAY for name in CREDIT}
    | {f"cold/{pay}/{name}": arm(COLD, pay, name) for pay in PAY for name in COLD_TOO},
    method="dense/critic",
    metrics=("paid", OVER_ALL, "fall", "right", "off"),
    predictions=(
        *(Higher(OVER_ALL, "dense/critic", than=f"dense/{other}", source="paper", where=BETTER) for other in FREE),
        *(Higher(OVER_ALL, "sparse/critic", than=f"sparse/{other}", source="pilot", where=AT_END) for other in FREE),
        Higher(
            "paid",
            "dense/critic",
            than="cold/dense/critic",
            source="paper",
            where="Section 7.1, Table 2: average progress 1512 with imitation before RL, 1355 with RL alone",
        ),
        *(
            Higher(OVER_ALL, f"{pay}/exact", than=f"{pay}/{other}", source="theory", where=EXACT)
            for pay in PAY
            for other in FREE
        ),
        *(Higher(OVER_ALL, f"{pay}/critic", than=f"{pay}/discounted", source="pilot", where=NO_BETTER) for pay in PAY),
        *(
            Lower("fall", f"{pay}/critic", than=f"{pay}/{other}", source="theory", where=STABLE)
            for pay, other in (("dense", "grpo"), ("dense", "reinforce_plus_plus"), ("sparse", "grpo"))
        ),
    ),
    checks=(
        AtMost("paid", "cold/sparse/critic", 0.1),
        *(Higher("paid", f"sparse/{name}", than=f"cold/sparse/{name}") for name in COLD_TOO),
        *(Higher("right", f"cold/dense/{name}", than=f"cold/sparse/{name}") for name in COLD_TOO),
    ),
    derived={OVER_ALL: partial(mean_over_updates, metric="paid"), "fall": partial(fall_from_peak, metric="paid")},
)
