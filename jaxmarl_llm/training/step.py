"""One update of one run, as pure functions in the order of the loop: play, experience, advantages, batches, update.

`on_policy_step` is the standard step. A method with another order (several plays, a second network, ordered updates)
composes its own step from the same functions, as `Recipe.step`. `learn` and `learn_from` leave past selves as they are:
a step that uses some ends with `past.keep`, as `on_policy_step` does. `Parts` is fixed when the programs are compiled.
A `Run` changes in training, and a checkpoint holds it.

Shapes as in `recipe`. Weights are {policy: {"policy": tree, "value": head}}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.keys import ARRANGE, ESTIMATE, UPDATE, key_for
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Batch, Scores
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout import branching, policy
from jaxmarl_llm.rollout.trajectory import Rows, Trajectory, gather_sampled, per_token
from jaxmarl_llm.training import past
from jaxmarl_llm.training.left_out import leave_out
from jaxmarl_llm.training.measured import measure
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Advantages, Arranged, Experience, Given, Run
from jaxmarl_llm.training.scoring import (
    Part,
    Weights,
    buckets_of,
    by_micro_batch,
    narrowly,
    reference,
    score_policies,
    scored_again,
)
from jaxmarl_llm.training.update import Learners, update

Metrics = dict[str, jax.Array]
Apply = Callable[..., tuple[Learners, Metrics]]  # the signature of `apply_update`
ARRANGED = Arranged()  # the recipe's own settings


def on_policy_step(
    parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, apply: Apply | None = None
) -> tuple[Run, Metrics]:
    """Plays a batch of games, estimates advantages, updates every learner. Returns the run after update `number` and
    its metrics.

    `apply` replaces `apply_update`, e.g. `sequential.in_order`.
    """
    key = key_for(key, UPDATE, number)
    games = collect_experience(parts, run, hparams, key, number)
    run, metrics = learn_from(parts, run, hparams, *games[:3], key, games.frozen, apply)
    return past.keep(parts.recipe, run, hparams, number), metrics


def only_play(parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple[Run, Metrics]:
    """(the run unchanged, metrics of the games of `on_policy_step`): measures policies without an update."""
    return run, collect_experience(parts, run, hparams, key_for(key, UPDATE, number), number).metrics(parts)


def learn(
    parts: Parts,
    run: Run,
    hparams: Hparams,
    trajectory: Trajectory,
    key: jax.Array,
    frozen: Weights,
    arranged: Arranged = ARRANGED,
    apply: Apply | None = None,
) -> tuple[Run, Metrics]:
    """Estimates the recipe's advantages for games that were played, and updates the learners. `frozen` holds the
    weights of players that do not learn."""
    experience = make_experience(parts, run, trajectory, key, frozen, arranged)
    advantages = estimate(parts, run, hparams, experience)
    return learn_from(parts, run, hparams, trajectory, experience, advantages, key, frozen, apply)


def learn_from(
    parts: Parts,
    run: Run,
    hparams: Hparams,
    trajectory: Trajectory,
    experience: Experience,
    advantages: Advantages,
    key: jax.Array,
    frozen: Weights,
    apply: Apply | None = None,
) -> tuple[Run, Metrics]:
    """The update from given advantages, with the metrics of games and update.

    The run's state becomes `advantages.state`, unless an update was skipped or the new state is not finite.
    """
    batches = make_batches(parts, experience, advantages)
    apply = apply or apply_update
    learners, metrics = apply(parts, run.learners, {**hparams, **advantages.hparams}, batches, key, frozen)
    state = next_state(advantages, run.state, metrics)
    return run.replace(learners=learners, state=state), metrics | measure(parts, experience, trajectory, advantages)


def next_state(advantages: Advantages, state: Any, metrics: Metrics) -> Any:
    """The estimator's new state, or the old one if an update was skipped or the new one is not finite."""
    new, sound = advantages.state, jnp.bool_(True)
    if advantages.remember is not None:
        new = advantages.remember(new, metrics)
    for leaf in jax.tree.leaves(new):
        sound &= jnp.isfinite(leaf).all()
    return unless_skipped(new, state, metrics, sound)


def unless_skipped(new: Any, old: Any, metrics: Metrics, sound: jax.Array | bool = True) -> Any:
    """`new`, or `old` if an update was skipped or `new` is not `sound`; both have the same leaves."""
    sound = (metrics["skipped"] == 0) & sound
    return jax.tree.map(lambda new, old: jnp.where(sound, new, old), new, old)


def inspect(
    parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[Trajectory, dict[str, Part], Metrics]:
    """(games, {policy set: batch}, metrics with the gradient norm of each leaf) of the standard step of an update."""
    key = key_for(key, UPDATE, number)
    games = collect_experience(parts, run, hparams, key, number)
    batches = make_batches(parts, games.experience, games.advantages)
    hparams = {**hparams, **games.advantages.hparams}
    _, metrics = apply_update(parts, run.learners, hparams, batches, key, games.frozen, leaves=True)
    return games.trajectory, batches, metrics


# play


class Played(NamedTuple):
    """A batch of games, its experience and advantages, and the weights of players that do not learn."""

    trajectory: Trajectory
    experience: Experience
    advantages: Advantages
    frozen: Weights

    def metrics(self, parts: Parts) -> Metrics:
        """Metrics of the games, without metrics of an update."""
        return measure(parts, self.experience, self.trajectory, self.advantages)


def collect_experience(parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> Played:
    """Plays the games of update `number` and estimates their advantages; `key` is the update's."""
    arranged = arrange(parts, run, hparams, key, number)
    frozen = past.weights(parts.recipe, run, past.choose_snapshot(parts.recipe, key, number, arranged))
    trajectory = play(parts, run.learners.weights | frozen, key, arranged)
    experience = make_experience(parts, run, trajectory, key, frozen, arranged)
    return Played(trajectory, experience, estimate(parts, run, hparams, experience), frozen)


def arrange(parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> Arranged:
    """The arrangement of `Recipe.arrange`; a scalar in it applies to every group. Raises ValueError for a result that
    is no `Arranged`, and for a leaf whose first axis is not [groups]."""
    if parts.recipe.arrange is None:
        return ARRANGED
    arranged = parts.recipe.arrange(Given(hparams), run.state, key_for(key, ARRANGE), number)
    groups = parts.recipe.groups
    if not isinstance(arranged, Arranged):
        raise ValueError(f"Recipe.arrange returns Arranged(...), not {type(arranged).__name__}.")
    if arranged.turns is not None and not jnp.issubdtype(jnp.asarray(arranged.turns).dtype, jnp.integer):
        raise ValueError(f"Arranged turns are whole numbers, got {jnp.asarray(arranged.turns).dtype}.")
    if arranged.snapshot is not None and parts.recipe.snapshots is None:
        raise ValueError("A snapshot is arranged, and the recipe keeps none: give Recipe.snapshots.")

    def of_groups(leaf: Any) -> jax.Array:
        if jnp.shape(leaf)[:1] not in ((), (groups,)):
            raise ValueError(f"In an arrangement every leaf needs {groups} entries, one a group: {jnp.shape(leaf)}.")
        return jnp.broadcast_to(leaf, (groups,)) if jnp.ndim(leaf) == 0 else leaf

    of_group = {name: jax.tree.map(of_groups, getattr(arranged, name)) for name in ("deal", "turns")}
    return arranged._replace(**of_group, branch=branching.branch_arrays(arranged.branch))


def rollout_weights(parts: Parts, weights: Weights) -> dict[str, dict]:
    """Weights by policy in the form of a rollout: by policy set, {"params": tree, "adapters": (tree, ...)}. Those of
    frozen policies are added."""
    result, weights = {}, parts.frozen | weights
    for name, policy_set in parts.policy_sets.items():
        trees = tuple(weights[policy]["policy"] for policy in policy_set.policies)
        result[name] = {"params": parts.base[name], "adapters": trees} if policy_set.lora else {"params": trees[0]}
    return result


def play(parts: Parts, weights: Weights, key: jax.Array, arranged: Arranged = ARRANGED) -> Trajectory:
    """Plays a batch of whole games in the recipe's line-ups; another key gives other games."""
    of_game = (arranged.deal, arranged.turns, arranged.branch)
    shaped = () if parts.shaping is None else (parts.shaping,)
    return parts.rollout(rollout_weights(parts, weights), key, *of_game, *shaped)


# experience and advantages


@jax.named_scope(scopes.ADVANTAGES)
def make_experience(
    parts: Parts,
    run: Run,
    trajectory: Trajectory,
    key: jax.Array,
    frozen: Weights | None = None,
    arranged: Arranged = ARRANGED,
) -> Experience:
    """The record of a batch for the estimator, with the critics' values and the reference's log-probabilities.
    Behaviour log-probabilities are computed anew where sampler and update round differently (`scored_again`).

    The reference of a tiny policy, or of a policy with a warm start, is the policy before training. The reference of
    another pretrained policy is its base without the adapter. `key` is the update's; `frozen` holds the weights of
    players that do not learn. Episodes with rewards that are not finite are left out.
    """
    trajectory, left_out = leave_out(trajectory)
    episodes, weights = trajectory.episodes, parts.frozen | run.learners.weights | (frozen or {})
    sampled = {
        name: gather_sampled(rows, episodes.legal, parts.rollout.max_sampled_tokens(name))
        for name, rows in trajectory.rows.items()
    }
    token_value = {name: jnp.zeros(tokens.mask.shape) for name, tokens in sampled.items()}
    batch, turns, agents = episodes.acted.shape
    turn_value = jnp.zeros((batch, turns, agents))
    for name, rows in trajectory.rows.items():
        valued = parts.recipe.critic and not set(parts.policy_sets[name].policies) <= set(parts.frozen)
        wanted = ("value",) * valued + ("logp",) * scored_again(parts, name)
        if not wanted:
            continue

        def score_rows(*inputs: Any, name: str = name, wanted: tuple[str, ...] = wanted) -> dict[str, jax.Array]:
            scores = score_policies(parts, weights, name, *inputs)[0]
            return {field: getattr(scores, field) for field in wanted}

        whole = partial(narrowly, parts, score_rows)
        with jax.named_scope(scopes.SCORING):
            again = "logp" in wanted
            fields = by_micro_batch(parts, whole, rows, sampled[name]) if again else whole(rows, sampled[name])
        if "value" in fields:
            token_value[name] = fields["value"]
            turn_value += policy.by_turn(fields["value"], rows, sampled[name], (batch, turns, agents))[0]
        if "logp" in fields:
            as_sampled = sampled[name].behaviour_logp
            sampled[name] = sampled[name].replace(behaviour_logp=fields["logp"], sampler_logp=as_sampled)

    def score(name: str, weights: Weights = weights, rows: Rows | None = None, sampled: Any = sampled) -> Scores:
        chosen = sampled[name] if isinstance(sampled, dict) else sampled
        with jax.named_scope(scopes.SCORING):
            return score_policies(parts, weights, name, rows or trajectory.rows[name], chosen)[0]

    lineup = parts.rollout.lineup
    learns = np.array([[name in parts.learners for name in seats] for seats in lineup.seats])
    return Experience(
        episodes=episodes,
        rows=trajectory.rows,
        sampled=sampled,
        token_value=token_value,
        turn_value=turn_value,
        groups=parts.recipe.groups,
        learns=jnp.repeat(learns, lineup.group_size, 0),
        key=key_for(key, ESTIMATE),
        arranged=arranged,
        reference_logp=reference(parts, run.initial, trajectory.rows, sampled) if parts.recipe.reference else {},
        score=score,
        left_out=left_out,
    )


@jax.named_scope(scopes.ADVANTAGES)
def estimate(parts: Parts, run: Run, hparams: Hparams, experience: Experience) -> Advantages:
    """The recipe's advantages. Raises ValueError for advantages of a wrong type or shape, for a critic without value
    targets, and for a state whose shapes change."""
    assert parts.recipe.advantage is not None  # `Recipe.check`
    advantages = parts.recipe.advantage(experience, Given(hparams), run.state)
    if not isinstance(advantages, Advantages):
        raise ValueError(f"An estimator returns Advantages(...), not {type(advantages).__name__}.")
    if parts.recipe.critic and advantages.value_target is None:
        raise ValueError("The recipe has a critic, which learns nothing unless its estimator returns a value_target.")
    for array in (advantages.advantage, advantages.value_target, advantages.trained, *advantages.extra.values()):
        if array is not None and not isinstance(array, dict) and jnp.shape(array) != experience.episodes.acted.shape:
            wanted = "[episodes, turns, seats], here " + str(list(experience.episodes.acted.shape))
            raise ValueError(f"An estimator's output by turn is {wanted}, got {list(jnp.shape(array))}.")
    old, new = (jax.tree.map(jnp.shape, state) for state in (run.state, advantages.state))
    if old != new:
        raise ValueError(
            f"An estimator's state keeps its shapes, {old}, and is returned as Advantages.state; got {new}."
        )
    return advantages


@jax.named_scope(scopes.ADVANTAGES)
def make_batches(parts: Parts, experience: Experience, advantages: Advantages) -> dict[str, Part]:
    """{policy set: rows and sampled tokens, with the advantages of the tokens} for the policy sets that learn."""
    return {name: make_part(name, experience, advantages) for name in parts.learner_sets}


def make_part(name: str, experience: Experience, advantages: Advantages) -> Part:
    """Rows and sampled tokens of one policy set, with the advantages of the tokens."""
    rows, sampled, old_value = experience.rows[name], experience.sampled[name], experience.token_value[name]

    def by_token(x: Any) -> jax.Array:
        return x[name] if isinstance(x, dict) else per_token(x, rows, sampled)

    target = old_value if advantages.value_target is None else by_token(advantages.value_target)
    batch = Batch(
        token=sampled.token,
        turn=sampled.turn,
        behaviour_logp=sampled.behaviour_logp,
        mask=sampled.mask if advantages.trained is None else sampled.mask & by_token(advantages.trained),
        advantage=by_token(advantages.advantage),
        value_target=target,
        old_value=old_value,
        episode=rows.episode,
        seat=rows.seat,
        policy=rows.policy,
        role=experience.episodes.role[rows.episode[:, None], sampled.turn, rows.seat[:, None]],
        reference_logp=experience.reference_logp.get(name),
        extra={key: by_token(x) for key, x in advantages.extra.items()},
    )
    return Part(rows, sampled, batch)


# update


def apply_update(
    parts: Parts,
    learners: Learners,
    hparams: Hparams,
    batches: dict[str, Part],
    key: jax.Array,
    frozen: Weights,
    leaves: bool = False,
    tie: Callable[[Weights], Weights] = lambda weights: weights,
) -> tuple[Learners, Metrics]:
    """Updates the learners over all epochs and minibatches (`update.update`), and returns metrics. The loss sees
    `tie(weights)`."""
    rates = {name: hparams.get(f"learning_rate/{name}", hparams["learning_rate"]) for name in parts.learners}
    buckets = buckets_of(parts)
    loss = lambda weights, batches: joint_loss(parts, hparams, frozen, tie(weights), batches)
    with jax.named_scope(scopes.UPDATE):
        prompts = math.gcd(parts.prompts, *(len(part.rows.prompts.tokens) for part in batches.values()))
        return update(parts.optimiser, loss, learners, batches, prompts, rates, key, buckets, leaves)


def joint_loss(
    parts: Parts, hparams: Hparams, frozen: Weights, weights: dict, batches: dict[str, Part]
) -> tuple[dict[str, Mean], dict[str, Mean]]:
    """({policy: loss over the policy's own tokens}, {metric/policy: mean})."""
    totals: dict[str, Mean] = {}
    metrics: dict[str, Mean] = {}
    for name, part in batches.items():
        scores, masks = score_policies(parts, weights | frozen, name, part.rows, part.sampled)
        if part.same is not None:
            scores, masks = jax.tree.map(lambda x, same=part.same: x[same], (scores, masks))
        for learner, mask in masks.items():
            if learner not in parts.learners:
                continue
            totals[learner], more = losses.check_loss(
                parts.recipe.loss(scores, part.batch.replace(mask=part.batch.mask & mask), Given(hparams))
            )
            metrics |= {f"{metric}/{learner}": mean for metric, mean in more.items()}
    return totals, metrics
