"""How large a task can be learnt, and does what is learnt on small ones hold in larger ones? A guide's sizes, in rooms.

One seat looks for things in rooms in a row and takes some of them in an order (`Rooms`), from scratch, by PPO with GAE
from turn to turn (lambda 0.95). A size is changed at a time:

  small   3 rooms, 3 things, of which 1 is wanted, 8 turns
  rooms   7 rooms in place of 3, 16 turns      things  6 things in place of 3
  quest   3 wanted in place of 1, 16 turns     large   7 rooms, 6 things, 3 wanted, 32 turns

  dense/SIZE    paid 1 / wanted for each thing in its turn      sparse/SIZE  paid 1 for the last thing
  untrained     plays as it was made, and is judged like all others

Every arm is judged in 256 fresh games of each size (columns), `own` of them the one that it was trained in. Words are
tokens: who never saw a fourth thing has not learnt its name. Rooms, things and quests that a small game lacks are what
a larger one adds.

  python -m experiments sizes --seeds 10

Paper: A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu) 2025, https://arxiv.org/abs/2510.01132,
whose TextWorld has these sizes, and whose policies are pretrained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax

from jaxmarl_llm.environments.rooms import Rooms
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe, component_returns
from jaxmarl_llm.training.several_games import one_vocabulary
from jaxmarl_llm.training.trainer import Trainer, jit_rollout

SMALL = Rooms(rooms=3, objects=3, quest=1, budget=8, dense=True)
SIZES = {
    "small": SMALL,
    "rooms": dataclasses.replace(SMALL, rooms=7, budget=16),
    "things": dataclasses.replace(SMALL, objects=6),
    "quest": dataclasses.replace(SMALL, quest=3, budget=16),
    "large": dataclasses.replace(SMALL, rooms=7, objects=6, quest=3, budget=32),
}
JUDGED, UPDATES = 256, "updates to 50%"


def by_turn(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE from turn to turn, of points where `dense` is 1, and of the last thing alone where it is 0."""
    points, won = experience.episodes.reward[..., 0], experience.episodes.reward[..., 1]
    reward = hparams["dense"] * points + (1 - hparams["dense"]) * won
    return Advantages(*returns.gae(reward, experience.turn_value, experience.episodes.acted, lam=0.95))


def judged(trainer: Trainer) -> Callable[[dict], dict[str, float]]:
    """The share of games that are won, in every size and in the trainer's own."""
    lineup, recipe = Lineup((("learner",),) * JUDGED, 1), trainer.recipe
    plays = {
        name: jit_rollout(Rollout(game, trainer.policy_sets, lineup, recipe.budget)) for name, game in SIZES.items()
    }

    def evaluate(weights: dict) -> dict[str, float]:
        won = {
            name: float(play(weights, jax.random.key(0)).episodes.reward[..., 1].sum(1).mean())
            for name, play in plays.items()
        }
        return won | {"own": next(won[name] for name, game in SIZES.items() if game == recipe.game)}

    return evaluate


SMALL_TRAINED = Recipe(
    SMALL,
    seats=(("learner",),),
    advantage=by_turn,
    critic=True,
    hparams={"learning_rate": 3e-3, "value": 0.1, "dense": 1.0},
    tokenizer=partial(one_vocabulary, games=tuple(SIZES.values())),
    budget=1,
    updates=150,
    groups=8,
    group_size=4,
    measure=partial(component_returns, won=1),
    evaluate=judged,
    eval_every=150,
    pretrained={"budget": 4},
)
DENSE = {f"dense/{name}": dataclasses.replace(SMALL_TRAINED, game=game) for name, game in SIZES.items()}
SPARSE = {f"sparse/{name}": DENSE[f"dense/{name}"].with_hparams(dense=0.0) for name in ("quest", "large")}
STUDY = Study(
    paper=Paper(
        "A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu)",
        "https://arxiv.org/abs/2510.01132",
        2025,
        checked="abstract",
    ),
    question="How large a task can be learnt, and does what is learnt on small ones hold in larger ones?",
    claim="More rooms, things and wanted things are harder; points on the way help; small tasks teach larger ones.",
    arms=DENSE | SPARSE | {"untrained": SMALL_TRAINED.with_hparams(learning_rate=0.0)},
    method="dense/large",
    metrics=("own", UPDATES, *SIZES),
    predictions=(
        *(Lower("own", f"dense/{name}", than="dense/small") for name in ("rooms", "things", "quest")),
        Lower("own", "dense/large", than="dense/quest"),
        *(Lower(UPDATES, f"dense/{name}", than=f"sparse/{name}") for name in ("quest", "large")),
        *(Higher("large", f"dense/{name}", than="untrained") for name in ("small", "quest")),
    ),
    derived={UPDATES: partial(updates_to, of="won", bound=0.5)},
)
