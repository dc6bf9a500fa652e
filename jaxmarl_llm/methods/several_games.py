"""Several games in one update: a batch of each, advantages within each game, and one step of every policy from all.

  recipe = together({"kuhn": KUHN, "tic_tac_toe": TIC_TAC_TOE}, updates=200)
  after_imitation = replace(recipe, warm_start=imitation_recipe(games))

A policy's loss is the mean over the tokens of all games, each with its own recipe's loss. A game with more or longer
answers weighs more. Advantages are not compared between games.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.keys import GAME, UPDATE, key_for
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.team import strings
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training import past, step
from jaxmarl_llm.training.estimator import Estimator
from jaxmarl_llm.training.measured import measure
from jaxmarl_llm.training.recipe import Parts, Recipe, check_games, no_state
from jaxmarl_llm.training.records import Advantages, Common, Experience
from jaxmarl_llm.training.setup import parts_of, rollout_of
from jaxmarl_llm.training.update import update
from jaxmarl_llm.training.warm_start import TINY_RATE, lessons

Metrics = dict[str, jax.Array]
Games = Mapping[str, Recipe]


def together(games: Games, also: Sequence[Any] = (), **changed: Any) -> Recipe:
    """A recipe that trains in all of these games; `changed` are other fields of it, e.g. `updates` or `evaluate`.

    Each game keeps its recipe's line-ups, advantage, loss, budget, arrangement, measure and number of games. Policies,
    hparams and all else are from the first recipe. Tiny policies have one vocabulary for all games, and for the games
    `also`, in which they can be evaluated. Metrics of a game are called GAME/METRIC. Raises ValueError for recipes with
    other learners or options, with past selves or with a step of their own.
    """
    check_games(games)
    first = next(iter(games.values()))
    for name, recipe in games.items():
        if set(recipe.learners) != set(first.learners):
            raise ValueError(
                f"Games of one update have the same learners: {name} has {recipe.learners}, not {first.learners}."
            )
        if (recipe.choices, recipe.all_choices) != (first.choices, first.all_choices):
            raise ValueError(f"Games of one update take the same options: {name} has {recipe.all_choices}.")
        alike = (recipe.critic, recipe.reference) == (first.critic, first.reference)
        if recipe.past or recipe.step is not None or not alike:
            raise ValueError(
                f"{name}: a game of several has no past selves and no step of its own, and a critic and a reference "
                "only where the first has them."
            )
    fields = {
        "games": games,
        "step": several_games,
        "init_state": states,
        "tokenizer": partial(one_vocabulary, games=(*(recipe.game for recipe in games.values()), *also)),
        "arrange": None,
    }
    return dataclasses.replace(first, **{**fields, **changed})


def imitation_recipe(games: Games, also: Sequence[Any] = (), updates: int = 100, **changed: Any) -> Recipe:
    """A recipe that imitates scripts in all of these games, as named by each recipe's `Common` warm start. It is a
    common start for `together` and for recipes that train in one of the games. Its single policy is tiny; the rate
    falls to 0.

    Raises ValueError for games without such a warm start or with several learners, and as `together` does.
    """
    check_games(games)
    if without := [name for name, recipe in games.items() if not isinstance(recipe.warm_start, Common)]:
        raise ValueError(f"{without[0]} names no scripts to imitate: give it warm_start=Common(line_ups).")
    if more := [name for name, recipe in games.items() if len(recipe.learners) != 1]:
        raise ValueError(f"One policy imitates in all games: {more[0]} has {games[more[0]].learners}.")
    rate = {"learning_rate": partial(_falling, updates=updates)}
    fields = {"step": imitate_games, "updates": updates, "warm_start": (), "init_state": no_state}
    return together(games, also, **{**fields, "hparams": rate, **changed})


def _falling(number: int, *, updates: int) -> float:
    return TINY_RATE * (1 - number / updates)


def imitate_games(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[step.Run, Metrics]:
    """A recipe's step for one learner: one update by cross-entropy on the scripts' tokens in a batch of every game, as
    a mean over the tokens of all games. Metrics: GAME/cross_entropy."""
    key = key_for(key, UPDATE, number)
    (student,) = parts.policy_sets.values()
    (name,) = parts.learners
    taught = {
        game: lessons(recipe, student, (name,), recipe.groups, recipe.group_size)
        for game, recipe in parts.recipe.games.items()
    }
    drawn = {game: lesson.draw(key_for(key, GAME, i))[:2] for i, (game, lesson) in enumerate(taught.items())}

    def loss(weights: dict, drawn: dict) -> tuple[dict[str, Mean], dict[str, Mean]]:
        total, means = Mean(jnp.float32(0), jnp.float32(0)), {}
        for game, (rows, sampled) in drawn.items():
            scores = taught[game].scorer(weights[name]["policy"], rows, sampled)
            mean, statistics = losses.cross_entropy(scores.logp, sampled.mask)
            total = jax.tree.map(jnp.add, total, mean)
            means[f"{game}/cross_entropy"] = statistics["cross_entropy"]
        return {name: total}, means

    prompts = math.gcd(*(len(rows.prompts.tokens) for rows, _ in drawn.values()))
    learners, metrics = update(parts.optimiser, loss, run.learners, drawn, prompts, hparams["learning_rate"], key)
    return run.replace(learners=learners), metrics


def from_teacher(experience: Experience, hparams: Hparams, teacher: dict) -> Advantages:
    """On-policy distillation: the log-probability of each sampled token under a teacher minus the policy's own. The
    estimator's state is {learner: its teacher's weights}; several games can have several teachers.

    Agarwal et al., On-Policy Distillation of Language Models (2023), https://arxiv.org/abs/2306.13649
    """
    weights = {name: {"policy": tree} for name, tree in teacher.items()}
    said = {name: experience.score(name, weights=weights).logp for name in experience.sampled}
    return Advantages({name: x - experience.sampled[name].behaviour_logp for name, x in said.items()}, state=teacher)


def points_won(
    parts: Parts, games: Games, key: jax.Array, episodes: int, weights: dict[str, dict]
) -> dict[str, jax.Array]:
    """Mean points of a learner's seat in each game, with the estimator's weights of reward components. The mean is over
    at least `episodes` episodes of the recipe's line-ups, each with its own deal. `weights` are of tiny policies."""
    result = {}
    for name, recipe in games.items():
        line_ups, weigh = len(recipe.seats), None
        if isinstance(recipe.advantage, Estimator):
            weigh = recipe.advantage.components
        groups = line_ups * -(-episodes // line_ups)
        play = rollout_of(parts, dataclasses.replace(recipe, groups=groups, group_size=1))
        reward = play({home: {"params": weights[home]} for home in play.layouts}, key).episodes.reward.sum(1)
        won = reward.sum(-1) if weigh is None else reward @ jnp.array(weigh, jnp.float32)  # [episodes, seats]
        learns = np.array([[player in recipe.learners for player in seats] for seats in play.lineup.seats])
        result[name] = jnp.where(learns, won, 0).sum() / learns.sum()
    return result


def one_vocabulary(game: Any, *, games: Sequence[Any], in_words: Sequence[Any] = ()) -> SymbolTokenizer:
    """A tokenizer with the texts of all games, in place of the texts of `game` alone. For the games `in_words` it has
    their words and marks, which they may share. Rules, the first field of a game's rules, stay one symbol a seat."""
    texts = [text for source in games for text in strings(source)]
    for source in in_words:
        rules = source.rules[0]
        texts += rules
        texts += [word for text in strings(source) if text not in rules for word in re.findall(r" ?\w+|\W", text)]
    return SymbolTokenizer(texts)


def states(parts: Parts, key: jax.Array) -> dict[str, Any]:
    """{game: the initial state of its estimator}."""
    return {name: recipe.init_state(parts_of(parts, recipe), key) for name, recipe in parts.recipe.games.items()}


def several_games(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[step.Run, Metrics]:
    """A recipe's step: plays a batch of every game, and updates every learner once from all of them."""
    key = key_for(key, UPDATE, number)
    all_parts = {name: parts_of(parts, recipe) for name, recipe in parts.recipe.games.items()}
    batches, given, estimates = {}, {}, {}
    metrics: Metrics = {}
    for i, (name, game_parts) in enumerate(all_parts.items()):
        game_key = key if i == 0 else key_for(key, GAME, i)  # the first game's batch is the same as without the others
        game_run = run.replace(state=run.state[name])
        arranged = step.arrange(game_parts, game_run, hparams, game_key, number)
        played = step.play(game_parts, run.learners.weights, game_key, arranged)
        played = played.replace(episodes=played.episodes.replace(game=jnp.full_like(played.episodes.game, i)))
        experience = step.make_experience(game_parts, game_run, played, game_key, {}, arranged)
        estimates[name] = step.estimate(game_parts, game_run, hparams, experience)
        batches[name], given[name] = (
            step.make_batches(game_parts, experience, estimates[name]),
            {**hparams, **estimates[name].hparams},
        )
        of_game = measure(game_parts, experience, played, estimates[name])
        metrics |= {f"{name}/{metric}": x for metric, x in of_game.items()}

    def loss(weights: dict, batches: dict[str, dict[str, step.Part]]) -> tuple[dict[str, Mean], dict[str, Mean]]:
        totals: dict[str, Mean] = {}
        means: dict[str, Mean] = {}
        for name, game_parts in all_parts.items():
            of_game, more = step.joint_loss(game_parts, given[name], {}, weights, batches[name])
            for policy, mean in of_game.items():
                totals[policy] = jax.tree.map(jnp.add, totals[policy], mean) if policy in totals else mean
            means |= {f"{name}/{metric}": mean for metric, mean in more.items()}
        return totals, means

    rates = {name: hparams.get(f"learning_rate/{name}", hparams["learning_rate"]) for name in parts.learners}
    prompts = math.gcd(*(game_parts.prompts for game_parts in all_parts.values()))
    with jax.named_scope(scopes.UPDATE):
        learners, learnt = update(parts.optimiser, loss, run.learners, batches, prompts, rates, key)
    state = {name: step.next_state(estimates[name], run.state[name], learnt) for name in all_parts}
    return past.keep(parts.recipe, run.replace(learners=learners, state=state), hparams, number), metrics | learnt
