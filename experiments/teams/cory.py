"""Two learners for one task: CORY's pioneer answers, its observer sees that and answers too, and they exchange roles.

Sums mod 5 (`PioneerObserver`), two policies, each answering every question of a batch once:

  cory    both earn the sum of their rewards; seat 0 is the pioneer in even groups, seat 1 in odd ones
  own     each earns its own reward
  fixed   the sum, but seat 0 is always the pioneer
  alone   one policy that answers alone

Stated before the run, from the paper's claim that sum and exchange each help: over 200 updates the mean success of the
pioneers, who are what one keeps, is higher with cory than with each of the other three arms, and that of the observers
higher than with own and fixed.

Found (10 seeds): all of it contradicted. Mean pioneer 0.53 with cory, 0.60 with own, 0.62 with fixed, 0.65 alone, and
the observers likewise (p = 0.002, each). A partner's reward is noise that the baseline does not hold, who plays two
roles practises each half as often, and after random starts a partner knows nothing worth hearing.

  python -m experiments cory --seeds 10    # 3 minutes on two quiet cores
  python -m experiments cory --model smollm2 --seeds 1

Ma et al. 2024, CORY, from the paper: summed reward, exchange, no gradient through what the pioneer said. There both
start as copies of one pretrained model, trained by PPO with a penalty for leaving it, and exchange every few updates;
here they start at random, the baseline is leave-one-out, nothing is penalised, and every batch holds both castings.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.team_tasks import PioneerObserver
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe

PIONEER, OBSERVER = 0, 1


def shared(played: Experience, hparams: Hparams, memory: tuple) -> Advantages:
    """A seat's own reward and `share` times its partner's, compared with the other episodes of the question."""
    own = played.episodes.reward[..., 0]
    partner = own.sum(2, keepdims=True) - own
    return Advantages(advantages.rloo(own + hparams["share"] * partner, *played.acts, per_agent=True))


def successes(episodes: Episodes, *, roles: tuple[int, ...] = (PIONEER, OBSERVER)) -> dict[str, jax.Array]:
    """Share of right answers of those who answer first, and of those who answer second."""
    names, right = ("pioneer", "observer"), episodes.reward[..., 0]
    where = {names[role]: episodes.acted & (episodes.role == role) for role in roles}
    return {name: jnp.where(acts, right, 0).sum() / acts.sum() for name, acts in where.items()}


CORY = Recipe(
    PioneerObserver(Arithmetic(5, "+"), exchange="group"),
    seats=(("one", "other"),),
    advantage=shared,
    hparams={"learning_rate": 1e-3, "share": 1.0},
    updates=200,
    measure=successes,
)
OWN = replace(CORY, hparams={**CORY.hparams, "share": 0.0})
FIXED = PioneerObserver(Arithmetic(5, "+"), exchange="never")
ARMS = {
    "cory": CORY,
    "own": OWN,
    "fixed": replace(CORY, game=FIXED),
    "alone": replace(OWN, game=FIXED, seats=(("one", "random"),), measure=partial(successes, roles=(PIONEER,))),
}


def mean(curves: dict[str, np.ndarray], *, role: str) -> np.ndarray:
    """Over all updates: who learns early is ahead; NaN where nobody learns the role."""
    return curves.get(role, np.full_like(curves["pioneer"], np.nan)).mean(1)


MEAN = {f"mean {role}": partial(mean, role=role) for role in ("pioneer", "observer")}

STUDY = Study(
    paper="CORY (Ma et al. 2024)",
    claim="Summed rewards and exchanged roles each raise the success of two learners over 200 updates, and the pioneer "
    "learns faster than a learner alone.",
    arms=ARMS,
    method="cory",
    metrics=("pioneer", "observer", *MEAN),
    stated=(
        {"metric": "mean pioneer", "a": "cory", "b": "own", "sign": 1},
        {"metric": "mean pioneer", "a": "cory", "b": "fixed", "sign": 1},
        {"metric": "mean pioneer", "a": "cory", "b": "alone", "sign": 1},
        {"metric": "mean observer", "a": "cory", "b": "own", "sign": 1},
        {"metric": "mean observer", "a": "cory", "b": "fixed", "sign": 1},
    ),
    derived=MEAN,
)
