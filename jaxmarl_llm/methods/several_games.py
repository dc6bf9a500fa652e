"""Several games in one update: a batch of each, advantages within each, and one step of every policy from all of them.

  recipe = together({"kuhn": KUHN, "tic_tac_toe": TIC_TAC_TOE}, updates=200)
  after_imitation = replace(recipe, warm_start=imitated(games))

A policy's loss is the mean over the tokens of all games, each by its own recipe's loss: a game with more or longer
answers weighs more. Nothing is compared between games.
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
    """One recipe that trains in all of these games; `changed` are its own fields, e.g. `updates` or `evaluate`.

    Game, line-ups, advantage, loss, budget, arrangement, measure and the number of games are each recipe's own; the
    policies, hparams and everything else are those of the first. Tiny policies have one vocabulary for all of them, and
    for the games `also`, in which they can then be judged. Metrics of a game are called GAME/METRIC.
    Raises ValueError for recipes with other learners, with past selves or with a step of their own.
    """
    check_games(games)
    first = next(iter(games.values()))
    for name, recipe in games.items():
        if set(recipe.learners) != set(first.learners):
            raise ValueError(
                f"Games of one update have the same learners: {name} has {recipe.learners}, not {first.learners}."
            )
        alike = (recipe.critic, recipe.reference) == (first.critic, first.reference)
        if recipe.past or recipe.step is not None or not alike:
            raise ValueError(
                f"{name}: a game of several has no past selves and no step of its own, and a critic and a reference "
                "only where the first has them."
            )
    own = {
        "games": games,
        "step": several_games,
        "init_state": states,
        "tokenizer": partial(one_vocabulary, games=(*(recipe.game for recipe in games.values()), *also)),
        "arrange": None,
    }
    return dataclasses.replace(first, **{**own, **changed})


def imitation_recipe(games: Games, also: Sequence[Any] = (), updates: int = 100, **changed: Any) -> Recipe:
    """One recipe that imitates scripts in all of these games, those that the `Common` warm start of each names: a
    common start for `together` and for what trains in one of them alone. Its one policy is tiny; the rate falls to 0.

    Raises ValueError for games without such a warm start or with more learners than one, and as `together` does.
    """
    check_games(games)
    if without := [name for name, recipe in games.items() if not isinstance(recipe.warm_start, Common)]:
        raise ValueError(f"{without[0]} names no scripts to imitate: give it warm_start=Common(line_ups).")
    if more := [name for name, recipe in games.items() if len(recipe.learners) != 1]:
        raise ValueError(f"One policy imitates in all games: {more[0]} has {games[more[0]].learners}.")
    rate = {"learning_rate": partial(_falling, updates=updates)}
    own = {"step": imitate_games, "updates": updates, "warm_start": (), "init_state": no_state}
    return together(games, also, **{**own, "hparams": rate, **changed})


def _falling(number: int, *, updates: int) -> float:
    return TINY_RATE * (1 - number / updates)


def imitate_games(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[step.Run, Metrics]:
    """A recipe's step: one update by the cross-entropy of what scripts say in a batch of every game, a mean over the
    tokens of all. Metrics: GAME/cross_entropy."""
    key = key_for(key, UPDATE, number)
    (student,) = parts.policy_sets.values()
    (name,) = parts.learners
    taught = {
        game: lessons(recipe, student, (name,), recipe.groups, recipe.group_size)
        for game, recipe in parts.recipe.games.items()
    }
    drawn = {game: own.draw(key_for(key, GAME, i))[:2] for i, (game, own) in enumerate(taught.items())}

    def loss(weights: dict, drawn: dict) -> tuple[dict[str, Mean], dict[str, Mean]]:
        total, means = Mean(jnp.float32(0), jnp.float32(0)), {}
        for game, (rows, sampled) in drawn.items():
            scores = taught[game].scorer(weights[name]["policy"], rows, sampled)
            mean, found = losses.cross_entropy(scores.logp, sampled.mask)
            total = jax.tree.map(jnp.add, total, mean)
            means[f"{game}/cross_entropy"] = found["cross_entropy"]
        return {name: total}, means

    prompts = math.gcd(*(len(rows.prompts.tokens) for rows, _ in drawn.values()))
    learners, metrics = update(parts.optimiser, loss, run.learners, drawn, prompts, hparams["learning_rate"], key)
    return run.replace(learners=learners), metrics


def from_teacher(experience: Experience, hparams: Hparams, teacher: dict) -> Advantages:
    """On-policy distillation: the log-probability that a teacher gives each sampled token less the policy's own. The
    estimator's state are the weights of a teacher for each learner: several games can have several.

    Agarwal et al., On-Policy Distillation of Language Models (2023), https://arxiv.org/abs/2306.13649
    """
    weights = {name: {"policy": own} for name, own in teacher.items()}
    said = {name: experience.score(name, weights=weights).logp for name in experience.sampled}
    return Advantages({name: x - experience.sampled[name].behaviour_logp for name, x in said.items()}, state=teacher)


def points_won(
    parts: Parts, games: Games, key: jax.Array, episodes: int, weights: dict[str, dict]
) -> dict[str, jax.Array]:
    """What a seat of the learners wins in each game, as its estimator weighs the reward's components: the mean over at
    least so many episodes of the recipe's line-ups, each with its own deal. `weights` are of tiny policies."""
    found = {}
    for name, recipe in games.items():
        line_ups, weigh = len(recipe.seats), None
        if isinstance(recipe.advantage, Estimator):
            weigh = recipe.advantage.components
        groups = line_ups * -(-episodes // line_ups)
        play = rollout_of(parts, dataclasses.replace(recipe, groups=groups, group_size=1))
        reward = play({home: {"params": weights[home]} for home in play.layouts}, key).episodes.reward.sum(1)
        won = reward.sum(-1) if weigh is None else reward @ jnp.array(weigh, jnp.float32)  # [episodes, seats]
        learns = np.array([[player in recipe.learners for player in seats] for seats in play.lineup.seats])
        found[name] = jnp.where(learns, won, 0).sum() / learns.sum()
    return found


def one_vocabulary(game: Any, *, games: Sequence[Any], in_words: Sequence[Any] = ()) -> SymbolTokenizer:
    """The texts of all games, in place of those of `game` alone; of the games `in_words` their words and marks, which
    they may share. Rules, the first field of a game's rules, stay one symbol a seat."""
    texts = [text for each in games for text in strings(each)]
    for each in in_words:
        rules = each.rules[0]
        texts += rules
        texts += [word for text in strings(each) if text not in rules for word in re.findall(r" ?\w+|\W", text)]
    return SymbolTokenizer(texts)


def states(parts: Parts, key: jax.Array) -> dict[str, Any]:
    """Of each game its estimator's state."""
    return {name: recipe.init_state(parts_of(parts, recipe), key) for name, recipe in parts.recipe.games.items()}


def several_games(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[step.Run, Metrics]:
    """A recipe's step: plays a batch of every game, and updates every learner once from all of them."""
    key = key_for(key, UPDATE, number)
    each = {name: parts_of(parts, recipe) for name, recipe in parts.recipe.games.items()}
    batches, given, found = {}, {}, {}
    metrics: Metrics = {}
    for i, (name, own) in enumerate(each.items()):
        own_key = key if i == 0 else key_for(key, GAME, i)  # the first plays what it would play alone
        own_run = run.replace(state=run.state[name])
        arranged = step.arrange(own, own_run, hparams, own_key, number)
        played = step.play(own, run.learners.weights, own_key, arranged)
        played = played.replace(episodes=played.episodes.replace(game=jnp.full_like(played.episodes.game, i)))
        experience = step.make_experience(own, own_run, played, own_key, {}, arranged)
        found[name] = step.estimate(own, own_run, hparams, experience)
        batches[name], given[name] = step.make_batches(own, experience, found[name]), {**hparams, **found[name].hparams}
        of_game = measure(own, experience, played, found[name])
        metrics |= {f"{name}/{metric}": x for metric, x in of_game.items()}

    def loss(weights: dict, batches: dict[str, dict[str, step.Part]]) -> tuple[dict[str, Mean], dict[str, Mean]]:
        totals: dict[str, Mean] = {}
        means: dict[str, Mean] = {}
        for name, own in each.items():
            of_game, more = step.joint_loss(own, given[name], {}, weights, batches[name])
            for policy, mean in of_game.items():
                totals[policy] = jax.tree.map(jnp.add, totals[policy], mean) if policy in totals else mean
            means |= {f"{name}/{metric}": mean for metric, mean in more.items()}
        return totals, means

    rates = {name: hparams.get(f"learning_rate/{name}", hparams["learning_rate"]) for name in parts.learners}
    prompts = math.gcd(*(own.prompts for own in each.values()))
    with jax.named_scope(scopes.UPDATE):
        learners, learnt = update(parts.optimiser, loss, run.learners, batches, prompts, rates, key)
    state = {name: step.next_state(found[name], run.state[name], learnt) for name in each}
    return past.keep(parts.recipe, run.replace(learners=learners, state=state), hparams, number), metrics | learnt
