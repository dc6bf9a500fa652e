"""A population: many policies side by side in one program, who play at tables and are selected in generations.

A trainer's runs are the tables. With a recipe of L seats, a learner each, P runs are n = P L policies. After each
update `evolve` keeps the best, copies them in place of the others, and seats everybody anew:

  trainer = Trainer(recipe, [recipe.all_hparams] * 50, range(50))      # a hundred policies of two seats
  generation = society(trainer, survivors=50, noise=0.02)
  state, metrics = generation(trainer.init(), 0)

Time and memory grow with n, as every policy plays at one table: `experiments/benchmarks/population.py`. For policies of
a single run, which meet in its line-ups, there is `generations.evolving`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices.compiling import OFTEN, options
from jaxmarl_llm.keys import SELECT, UPDATE, key_for
from jaxmarl_llm.methods.generations import Selection, next_generation
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.optimiser import check_common
from jaxmarl_llm.training.records import Run
from jaxmarl_llm.training.step import Metrics
from jaxmarl_llm.training.trainer import Trainer, check_state
from jaxmarl_llm.training.update import Learners

SCORE = "score/seat_"


def seat_scores(episodes: Episodes) -> dict[str, jax.Array]:
    """A recipe's `measure`: each seat's mean return, with components added; `society` selects by it."""
    returns = mean_of_kept(episodes, episodes.reward.sum((1, 3)), axis=0)
    return {"return": returns.mean()} | {f"{SCORE}{seat}": x for seat, x in enumerate(returns)}


def evolve(
    learners: Learners, score: jax.Array, key: jax.Array, *, survivors: int, noise: Any = 0.0, selection: Selection
) -> tuple[Learners, jax.Array]:
    """(the next generation, seated anew; parent int32 [P, L], the place from which each policy's weights were copied).

    `learners` have leaves [P, ...] by name, with L names of weights of one shape; score is float32 [P, L]. Place p L +
    l belongs to name l in run p. `generations.next_generation` selects among all n = P L policies. Survivors keep their
    weights. Copies get their parent's weights plus normal noise times `noise`, and its moments. Then all places are
    drawn anew.
    """
    names, (tables, seats) = tuple(learners.weights), score.shape
    select, sit = jax.random.split(key)

    def flat(trees: dict[str, Any]) -> Any:
        stacked = jax.tree.map(lambda *x: jnp.stack(x, 1), *(trees[name] for name in names))
        return jax.tree.map(lambda x: x.reshape(tables * seats, *x.shape[2:]), stacked)

    def assign_seats(tree: Any) -> dict[str, Any]:
        at = jax.tree.map(lambda x: x.reshape(tables, seats, *x.shape[1:]), tree)
        return {name: jax.tree.map(lambda x, i=i: x[:, i], at) for i, name in enumerate(names)}

    settings: dict[str, Any] = {"survivors": survivors, "noise": noise, "selection": selection}
    weights, parent = next_generation(flat(learners.weights), score.ravel(), select, **settings)
    place = jax.random.permutation(sit, tables * seats)  # the policy that moves to each place
    moments = jax.tree.map(lambda x: x[parent[place]], flat(learners.optimiser))
    weights = jax.tree.map(lambda x: x[place], weights)
    new = learners.replace(weights=assign_seats(weights), optimiser=assign_seats(moments))
    return new, parent[place].reshape(tables, seats)


def society(
    trainer: Trainer, *, survivors: int, noise: float = 0.0, selection: Selection = "top"
) -> Callable[..., tuple[Run, Metrics]]:
    """generation(state, number, share=0.0) -> (state, metrics [P]; `parent` int32 [P, L]): a compiled program of one
    update of every policy and the next generation. The old state is donated. A policy's score is its own mean return
    plus `share` times the sum of the others' at its table: with 1, the table's return decides who survives.

    Raises ValueError unless every learner has one seat of one line-up, the policies are tiny, and the recipe measures
    `seat_scores`.
    """
    recipe, names = trainer.recipe, trainer.learners
    if not trainer.tiny or len(set(recipe.seats)) != 1 or recipe.seats[0] != names:
        raise ValueError(f"In a society each of {names} is tiny and has one seat of one line-up, not {recipe.seats}.")

    check_common(recipe.optimiser)

    @partial(jax.jit, donate_argnums=0, compiler_options=options(OFTEN if trainer.small else None))
    def program(state: Run, keys: jax.Array, number: Any, share: Any) -> tuple[Run, Metrics]:
        state, metrics = trainer.update(state, number)
        if f"{SCORE}0" not in metrics:
            raise ValueError("A society selects by what each seat earned: give the recipe measure=seat_scores.")
        score = jnp.stack([metrics[f"{SCORE}{seat}"] for seat in range(len(names))], 1)
        score += share * (score.sum(1, keepdims=True) - score)
        key = key_for(key_for(keys[0], UPDATE, number), SELECT)
        learners, parent = evolve(state.learners, score, key, survivors=survivors, noise=noise, selection=selection)
        return state.replace(learners=learners), metrics | {"parent": parent}

    def generation(state: Run, number: Any, share: Any = 0.0) -> tuple[Run, Metrics]:
        check_state(state)
        return program(state, trainer.keys, jnp.int32(number), jnp.float32(share))

    return generation
