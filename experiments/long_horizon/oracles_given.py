"""What does a given player of long games lack: the plan, the next subgoal or the state? LUMINA's oracles.

The study `oracles` trains a policy for each oracle. Here one policy a game is trained, and an oracle speaks to it in
half of the games, each oracle in turn (`Switched`). Then it only plays: in the same games each arm tells it one thing
in half of them. An oracle speaks before each answer:

  none     nothing, in both halves
  plan     the answer of a player who knows everything
  subgoal  the thing to take next, which the rules say once; in the rooms alone
  state    the hidden state: the room of each thing, or the player's place in the maze

Games:

  rooms  three rooms in a row and three things, two of which are to be taken in an order, ten turns; 1 point at the end
  maze   16 open cells and the goal, 12 steps; the player is told only the open ways; 1 point at the goal

Metrics:

  solved told    share of games that end with the point, among those in which the arm's oracle speaks
  solved untold  the same among the others
  gain           solved told less solved untold, of one policy

  python -m experiments oracles_given --seeds 20
  python -m experiments oracles_given --model smollm2 --seeds 1 --arms rooms/plan rooms/state text/rooms/history

A pretrained model plays as it comes. In `text/GAME/history`, its arm alone, it is told the state and reads only the
rules and the present turn. A tiny policy, trained on whole histories, cannot read a pruned one.

Paper: LUMINA (Rakhsha et al.) 2026, https://arxiv.org/abs/2601.16649. There players are pretrained, in other games.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from experiments.long_horizon.oracles import MAZE, ROOMS
from jaxmarl_llm.environments.around.forgetful import Forgetful
from jaxmarl_llm.environments.around.oracle import Switch, Switched, Tells
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import AtMost, Higher, Paper, Study
from jaxmarl_llm.training.left_out import are_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Arranged
from jaxmarl_llm.training.step import only_play

TOLD, UNTOLD, GAIN = "solved told", "solved untold", "gain"
ORACLES: dict[str, tuple[Tells, ...]] = {"rooms": ("plan", "subgoal", "state"), "maze": ("plan", "state")}
TAUGHT, JUDGED = 4, 8  # groups of an update


def teach(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array, *, oracles: tuple[Tells, ...]) -> Arranged:
    """Each oracle in turn speaks in the even groups."""
    group = jnp.arange(TAUGHT)
    speaks = (group // 2 + number) % len(oracles)
    even = group[:, None] % 2 == 0
    return Arranged(Switch(even & (speaks[:, None] == jnp.arange(len(oracles))[None])))


def judge(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array, *, oracles: tuple[Tells, ...]) -> Arranged:
    """The arm's oracle speaks in the even groups."""
    numbers = jnp.arange(len(oracles))
    on = select(hparams, "told", none=numbers < 0, **{name: numbers == i for i, name in enumerate(oracles)})
    return Arranged(Switch((jnp.arange(JUDGED)[:, None] % 2 == 0) & on[None]))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    solved, kept = episodes.reward[..., 0].sum((1, 2)), are_kept(episodes)
    even = episodes.group % 2 == 0
    told, untold = (jnp.where(x, solved, 0).sum() / jnp.maximum(x.sum(), 1) for x in (kept & even, kept & ~even))
    return {TOLD: told, UNTOLD: untold, GAIN: told - untold}


def agent(recipe: Recipe, oracles: tuple[Tells, ...]) -> Recipe:
    """A policy that learns with and without each oracle."""
    game = Switched(recipe.game, oracles)
    arrange = partial(teach, oracles=oracles)
    return replace(recipe, game=game, arrange=arrange, measure=measure, updates=150, groups=TAUGHT, pretrained={})


def examine(trained: Recipe, oracles: tuple[Tells, ...]) -> Recipe:
    """The trained policy, or a pretrained model, which does not learn any more."""
    return replace(
        trained,
        warm_start=trained,
        arrange=partial(judge, oracles=oracles),
        choices={"told": ("none", *oracles)},
        step=only_play,
        updates=20,
        groups=JUDGED,
        group_size=4,
        pretrained={"groups": JUDGED, "group_size": 2, "updates": 2, "step": only_play},
    )


def forget(arm: Recipe) -> Recipe:
    """A player who is told the state and reads only the rules and the present turn."""
    game = Forgetful(arm.game)
    return replace(arm.with_choice(told="state"), game=game, seats=(game.line_up("learner"),), warm_start=())


JUDGES = {name: examine(agent(game, ORACLES[name]), ORACLES[name]) for name, game in (("rooms", ROOMS), ("maze", MAZE))}
PLANNING = "abstract: some interventions, as planning, consistently improve performance across settings"
MEMORY = "A plan without the answer: told the next thing, a policy need not remember the quest."
ALL = "Ours: who solves all lacks nothing."
LACKS = "The walker lacks only its place. The state of the rooms is three facts a turn, of which one is of use."
STUDY = Study(
    paper=Paper("LUMINA (Rakhsha et al.)", "https://arxiv.org/abs/2601.16649", 2026, checked="abstract"),
    question="What does a given player of long games lack: the plan, the next subgoal or the state?",
    claim="Told a plan, a trained policy solves more games of both kinds; the worth of the state depends on the game.",
    arms={
        f"{name}/{told}": arm.with_choice(told=told)
        for name, arm in JUDGES.items()
        for told in ("none", *ORACLES[name])
    },
    extra={f"text/{name}/history": forget(arm) for name, arm in JUDGES.items()},
    method="rooms/plan",
    metrics=(TOLD, UNTOLD, GAIN),
    predictions=(
        *(Higher(TOLD, f"{name}/plan", than=f"{name}/none", source="paper", where=PLANNING) for name in ORACLES),
        Higher(TOLD, "rooms/subgoal", than="rooms/none", source="theory", where=MEMORY),
        *(AtMost(TOLD, f"{name}/none", 0.9, source="theory", where=ALL, condition=True) for name in ORACLES),
        Higher(GAIN, "maze/state", than="rooms/state", source="theory", where=LACKS),
    ),
    x="batch of 32 games without learning",
    derived={name: partial(mean_over_updates, metric=name) for name in (TOLD, UNTOLD, GAIN)},
)
