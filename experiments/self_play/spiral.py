"""Baselines for self-play: SPIRAL compares a seat with the running mean of its role.

One policy has both seats of a zero-sum game and learns from its own returns, in Kuhn poker and in tic-tac-toe:

  role        R less the running mean of the returns of its role (decay 0.95), which starts at the first batch's mean
  zero_start  the same, but it starts at 0, as in the release
  pooled      R less one running mean of both roles; what one seat wins the other loses, so that it is 0 whatever is
              learned, and this is REINFORCE without a baseline
  rloo        R less the mean of the other games with the same cards (Kuhn poker alone: tic-tac-toe has one deal)

Stated before any run, of 200 updates in Kuhn poker and 100 in tic-tac-toe: the role's baseline leaves less than pooled
of the mean square return as mean square advantage (1 - d^2 if the roles win +-1 with means +-d), in both games, and
does not bring the policy to equilibrium: in every arm of Kuhn poker the last iterate ends at a NashConv of 0.1 chips or
more, and has risen by 0.1 or more from where it had been (it cycles). Whether it ends nearer with a baseline is not
claimed, nor whether thinking collapses without one: these answers have one token.

Found (10 seeds): no arm of Kuhn poker converges: NashConv ends at 0.45 with the role's mean, 0.51 with zero_start, 0.58
pooled and 0.43 with rloo, after rises of 0.5 to 0.6 in each. In tic-tac-toe the role's mean leaves 0.90 of the square
(p = 0.002); in Kuhn poker, worth 1/18 of a chip, no difference was shown (0.999, p = 0.41), where rloo leaves 0.17.
That NashConv would end lower with the role's mean than pooled, found once and not stated before (0.35 against 0.56, p =
0.008), was not found again when rounding had changed (p = 0.20): where a cycle stands at the end is chance.

  python -m experiments spiral --seeds 10    # 9 to 14 minutes on two quiet cores
  python -m experiments spiral --model smollm2 --seeds 1

NashConv is exact. So it could be in tic-tac-toe, where a policy has a choice in 166,906 histories (10 seconds of a core
to ask it), but a game that one mistake loses says little that way: it is 1.93 of a random policy and 1.89 and 1.97 of
two after 150 updates of 128 games. There the policy plays 256 games each with `random` and `greedy` (who wins where it
can, blocks where it must, and likes the centre) instead, in both seats.

Liu et al. 2025, SPIRAL: baseline read in the released code; its discount by the turns that are left, and that turns
with advantage 0 are dropped, are left out. The rules of Kuhn poker are not those of its release, which never charges a
bet.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.board_games import TicTacToe
from jaxmarl_llm.environments.card_games import KuhnPoker
from jaxmarl_llm.evaluation import solve
from jaxmarl_llm.evaluation.policy_table import tabulate
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe, estimator, no_state
from jaxmarl_llm.training.trainer import Trainer, jit_rollout

ROLES = 2


def running(
    played: Experience, hparams: Hparams, state: advantages.RoleBaselineState, *, roles: int = ROLES
) -> Advantages:
    """The episode's return less the running mean of its role; with one role, of everyone."""
    episodes = played.episodes
    role = episodes.role if roles > 1 else jnp.zeros_like(episodes.role)
    advantage, state = advantages.role_baseline(
        episodes.reward[..., 0], *played.acts, role=role, num_roles=roles, state=state, decay=hparams["decay"]
    )
    return Advantages(advantage, state=state)


def baseline(parts: Any, key: jax.Array, *, roles: int = ROLES) -> advantages.RoleBaselineState:
    """Nothing known yet of the roles' returns."""
    return advantages.init_role_baseline(roles)


def zero_start(parts: Any, key: jax.Array) -> advantages.RoleBaselineState:
    """A mean of 0 for both roles, held to be known."""
    return advantages.init_role_baseline(ROLES)._replace(known=jnp.ones((1, ROLES), bool))


def squares(episodes: Episodes) -> dict[str, jax.Array]:
    """What the first seat wins, and the mean square return over acts, averaged over the seats."""
    won, acts = episodes.reward[..., 0].sum(1), episodes.acted.sum(1)
    return {"first_seat": won[:, 0].mean(), "square_return": ((acts * won**2).sum(0) / acts.sum(0)).mean()}


def exploited(trainer: Trainer) -> Callable[[dict], dict[str, float]]:
    """What best responses would win more than the policy."""
    tree, (name,) = solve.tree(trainer.recipe.game), trainer.learners
    table = tabulate(tree, trainer.policy_sets[name], budget=1, batch=len(tree.owner))
    return lambda weights: {"nash_conv": solve.nash_conv(tree, table(weights[name]))}


def tried(trainer: Trainer) -> Callable[[dict], dict[str, float]]:
    """What the policy wins of scripted players, both seats together."""
    (name,), scripts = trainer.learners, ("random", "greedy")
    pairs = tuple(pair for script in scripts for pair in ((name, script), (script, name)))
    play = jit_rollout(Rollout(trainer.recipe.game, {name: trainer.policy_sets[name]}, Lineup(pairs, 128), budget=1))

    def evaluate(weights: dict) -> dict[str, float]:
        won = np.asarray(play({name: weights[name]}, jax.random.key(0)).episodes.reward[..., 0].sum(1))  # [B, 2]
        means = won.reshape(len(scripts), ROLES, -1, ROLES).mean(2)  # by script and by the seat taken
        return {f"against {script}": float(np.trace(x)) / ROLES for script, x in zip(scripts, means, strict=True)}

    return evaluate


KUHN = Recipe(
    KuhnPoker(),
    seats=(("learner", "learner"),),
    advantage=running,
    init_state=baseline,
    hparams={"decay": 0.95},
    budget=1,
    updates=200,
    groups=32,
    group_size=8,
    measure=squares,
    evaluate=exploited,
    eval_every=10,
    pretrained={"budget": 8},
)
TIC_TAC_TOE = replace(
    KUHN,
    game=TicTacToe(),
    hparams={**KUHN.hparams, "learning_rate": 3e-3},
    updates=100,
    groups=8,
    evaluate=tried,
    eval_every=25,
)
POOLED = {"advantage": partial(running, roles=1), "init_state": partial(baseline, roles=1)}


def left(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean square advantage over mean square return, of all updates together."""
    seats = range(ROLES)
    square = sum(curves[f"advantage_variance/seat_{i}"] + curves[f"advantage_mean/seat_{i}"] ** 2 for i in seats)
    return np.asarray(square / ROLES).mean(1) / curves["square_return"].mean(1)


def relapse(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """The most that NashConv rose above where it had been before; NaN where it was not judged."""
    if "nash_conv" not in curves:
        return np.full(len(curves["loss"]), np.nan)
    judged = curves["nash_conv"][:, ~np.isnan(curves["nash_conv"]).all(0)]
    return (judged - np.minimum.accumulate(judged, 1)).max(1)


ARMS: dict[str, dict[str, Any]] = {"role": {}, "zero_start": {"init_state": zero_start}, "pooled": POOLED}
RLOO: dict[str, Any] = {"advantage": estimator(advantages.rloo, per_agent=True), "init_state": no_state}
KUHN_ARMS = {f"kuhn/{name}": replace(KUHN, **changed) for name, changed in {**ARMS, "rloo": RLOO}.items()}
SHARE, RELAPSE = "share of square left", "relapse"
STUDY = Study(
    paper="SPIRAL (Liu et al. 2025)",
    claim="Less of the mean square return is left as mean square advantage with the role's running mean than with one "
    "mean of both roles, in both games; in Kuhn poker no arm's last iterate converges to equilibrium (NashConv at "
    "least 0.1 at the end, after a rise of at least 0.1).",
    arms=KUHN_ARMS | {f"tic_tac_toe/{name}": replace(TIC_TAC_TOE, **ARMS[name]) for name in ("role", "pooled")},
    method="kuhn/role",
    metrics=("nash_conv", RELAPSE, SHARE, "against random", "against greedy"),
    stated=(
        *(
            {"metric": SHARE, "a": f"{game}/role", "b": f"{game}/pooled", "sign": -1}
            for game in ("kuhn", "tic_tac_toe")
        ),
        *({"metric": metric, "arm": arm, "at_least": 0.1} for metric in ("nash_conv", RELAPSE) for arm in KUHN_ARMS),
    ),
    derived={SHARE: left, RELAPSE: relapse},
)
