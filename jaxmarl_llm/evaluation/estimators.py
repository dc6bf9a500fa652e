"""What an estimator does to the gradient: its advantages and gradients beside the exact ones, over batches of games.

The policy is a table and the game one that `solve.tree` enumerates, so that the truth is known. A batch's gradient is
that of the table's logits, [I, N]: the mean over its episodes of the sum over acts of the advantage times the gradient
of log policy. All of it is one program, which may be traced.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.evaluation.exact_gradient import Exact, Tables, exact
from jaxmarl_llm.rl.advantages import RoleBaselineState
from jaxmarl_llm.rl.advantages.registry import Estimate, apply, needs

WRONG = "/wrong_value"
CRITICS = ("value", "team_value")
METRICS = ("bias", "direction", "noise", "cosine", "correlation", "silent groups")


def variants(estimators: Mapping[str, Estimate]) -> dict[str, tuple[Estimate, bool]]:
    """{name: (estimator, whether its values are wrong)}: one that takes a value stands there twice."""
    found = {name: (of, False) for name, of in estimators.items()}
    return found | {name + WRONG: (of, True) for name, of in estimators.items() if {*needs(of)} & {*CRITICS}}


def play(game: Tables, policy: jax.Array, known: Exact, key: jax.Array, groups: int, group_size: int) -> dict[str, Any]:
    """Games of a policy [I, N] with itself, as the named inputs of estimators (`rl.advantages.registry`).

    `known` is what `exact` says of the policy. The episodes of a group have one deal. `observation` is the information
    set, so that equal ones are the same knowledge; roles are seats; `state` holds the exact means; `correct` is there
    if the sums of episodes are from 0 to 1, `beta` if there are two seats. An answer is an episode's last action.
    """
    tree, seats = game.tree, jnp.arange(game.tree.payoff.shape[1])
    deal_key, key = jax.random.split(key)
    deal = jax.random.choice(deal_key, len(game.chance), (groups,), p=jnp.asarray(game.chance, jnp.float32))
    group = jnp.repeat(jnp.arange(groups), group_size)
    seat_of, set_of, child, paid = map(jnp.asarray, (tree.seat, tree.information, game.child, game.rewards))

    def turn(node: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        alive, at = seat_of[node] >= 0, jnp.maximum(set_of[node], 0)
        action = jax.random.categorical(key, jnp.log(policy)[at])
        after = jnp.where(alive, child[node, action], node)
        reward = jnp.where(alive[:, None, None], paid[after], 0).astype(jnp.float32)
        return after, (reward, alive[:, None] & (seat_of[node][:, None] == seats[None]), action, at)

    played = jax.lax.scan(turn, deal[group], jax.random.split(key, len(tree.levels) - 1))[1]
    components, acted, action, at = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), played)
    of_acts = lambda x: jnp.where(acted, x[..., None], 0)  # noqa: E731
    reward = components @ jnp.asarray(game.weights, jnp.float32)
    last = acted.shape[1] - 1 - jnp.argmax(acted.any(2)[:, ::-1], axis=1)
    found: dict[str, Any] = {
        "reward": reward,
        "components": components,
        "weights": jnp.asarray(game.weights, jnp.float32),
        "acted": acted,
        "group": group,
        "num_groups": groups,
        "role": jnp.broadcast_to(seats[None, None], acted.shape),
        "num_roles": len(seats),
        "state": RoleBaselineState(known.returns[None], jnp.ones((1, len(seats)), bool)),
        "observation": of_acts(at),
        "action": of_acts(action),
        "answer": jnp.take_along_axis(action, last[:, None], axis=1)[:, 0],
        "value": of_acts(known.value[at]),
        "team_value": of_acts(known.team_value[at]),
        "log_ratio": jnp.zeros(acted.shape),
        "gamma": 1.0,
        "exact": of_acts(known.advantage[at, action]),
    }
    ends = tree.form.payoff
    found |= {"correct": reward} if ends.min() >= 0 and ends.max() <= 1 else {}
    return found | ({"beta": 1.0} if len(seats) == 2 else {})


def gradients(game: Tables, policy: jax.Array, inputs: Mapping[str, Any], advantage: jax.Array) -> jax.Array:
    """The policy gradients of a batch for advantages [E, B, T, A] of E estimators: [E, I, N]."""
    acted, at, action = (inputs[name] for name in ("acted", "observation", "action"))
    sets, options = game.tree.legal.shape
    at, action = at.sum(2).ravel(), action.sum(2).ravel()  # one seat acts in a turn
    score = jax.nn.one_hot(action, options) - policy[at]
    score = (jax.nn.one_hot(at, sets)[:, :, None] * score[:, None]).reshape(len(at), -1)
    found = advantage.sum(3).reshape(len(advantage), -1) @ score / len(acted)
    return found.reshape(-1, sets, options)


@partial(jax.jit, static_argnames=("game", "estimators", "batches", "groups", "group_size"))
def _moments(
    game: Tables,
    policy: jax.Array,
    estimators: tuple[tuple[Estimate, bool], ...],
    key: jax.Array,
    off: jax.Array,
    batches: int,
    groups: int,
    group_size: int,
) -> tuple[Exact, dict[str, jax.Array]]:
    known = exact(game, policy)
    truth, length = known.gradient, jnp.linalg.norm(known.gradient)

    def batch(sums: dict[str, jax.Array], key: jax.Array) -> tuple[dict[str, jax.Array], None]:
        inputs = play(game, policy, known, key, groups, group_size)
        acted, wrong = inputs["acted"], off[inputs["observation"]]
        moved = {name: jnp.where(acted, inputs[name] + wrong, 0) for name in CRITICS}
        one = lambda of, is_wrong: apply(of, inputs | moved if is_wrong else inputs)  # noqa: E731
        advantage = jnp.stack([one(*variant) for variant in estimators])
        gradient = gradients(game, policy, inputs, advantage)
        flat, right = advantage.reshape(len(advantage), -1), inputs["exact"].ravel()
        square = (gradient**2).sum((1, 2))
        quiet = (jnp.abs(flat).reshape(len(flat), groups, -1).max(2) == 0).mean(1)
        cosine = (gradient * truth[None]).sum((1, 2)) / jnp.maximum(jnp.sqrt(square) * length, 1e-30)
        acts = {"acts": acted.sum(), "a": flat.sum(1), "aa": (flat**2).sum(1), "ae": flat @ right}
        acts |= {"e": right.sum(), "ee": (right**2).sum()}
        found = {"gradient": gradient, "square": square, "cosine": cosine, "silent groups": quiet} | acts
        return jax.tree.map(lambda total, x: total + x, sums, found), None

    def half(keys: jax.Array) -> dict[str, jax.Array]:
        shapes = jax.eval_shape(lambda key: batch(dict.fromkeys(NAMES, 0.0), key)[0], keys[0])
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), shapes)
        return jax.tree.map(lambda x: x / len(keys), jax.lax.scan(batch, zeros, keys)[0])

    return known, jax.lax.map(half, jax.random.split(key, (2, batches // 2)))


NAMES = ("gradient", "square", "cosine", "silent groups", "acts", "a", "aa", "ae", "e", "ee")


def measure(
    game: Tables,
    policy: jax.Array | np.ndarray,
    estimators: Mapping[str, Estimate],
    key: jax.Array,
    *,
    batches: int = 256,
    groups: int = 8,
    group_size: int = 8,
    wrong: float = 1.0,
) -> dict[str, dict[str, jax.Array]]:
    """{estimator: {metric: number}} at a policy [I, N] of positive probabilities, for `variants` of the estimators.

    With g the exact gradient, m and v the mean and the total variance of a batch's, over `batches` batches of
    `groups` * `group_size` episodes:

        bias            |m - g| / |g|; an estimator of another scale has one, too
        direction       cosine of m and g: below 1, there is a bias that no learning rate repairs
        noise           sqrt(v) / |m|
        cosine          of a batch's gradient and g, mean over batches
        correlation     of advantages and exact advantages, over all acts
        silent groups   share of groups whose advantages are all exactly 0

    Products of m are of two halves of the batches, so that noise does not count as signal, and an unbiased estimator
    has direction 1 and bias 0 give or take its noise. Wrong values are off by normal numbers, one for each information
    set, `wrong` times as large as the root mean square of the exact advantages. An estimator is left out if the game
    lacks what it needs. Raises ValueError for an odd number of batches, or if none is left.
    """
    if batches < 2 or batches % 2:
        raise ValueError(f"The batches are compared in two halves: choose an even number, got {batches}.")
    policy, draw = jnp.asarray(policy, jnp.float32), jax.random.fold_in(key, 1)
    given = jax.eval_shape(lambda: play(game, policy, exact(game, policy), key, 1, 1))
    chosen = {name: one for name, one in variants(estimators).items() if {*needs(one[0])} <= {*given}}
    if not chosen:
        raise ValueError(f"None of {', '.join(estimators)} can do with {', '.join(given)}.")
    known = exact(game, policy)
    mass = known.reach[:, None] * policy
    size = jnp.sqrt((mass * known.advantage**2).sum() / mass.sum())
    off = wrong * size * jax.random.normal(draw, known.value.shape)
    _, x = _moments(game, policy, tuple(chosen.values()), key, off, batches, groups, group_size)
    truth = known.gradient
    length = jnp.linalg.norm(truth)
    product = lambda a, b: (a * b).sum((-2, -1))  # noqa: E731
    (one, other), both = x.pop("gradient"), jax.tree.map(lambda leaf: leaf.mean(0), x)
    own = jnp.maximum(product(one, other), 1e-6 * both["square"] + 1e-30)
    acts = both["acts"]
    spread = jnp.maximum(both["aa"] - both["a"] ** 2 / acts, 0) * (both["ee"] - both["e"] ** 2 / acts)
    found = {
        "bias": jnp.sqrt(jnp.maximum(product(one - truth[None], other - truth[None]), 0)) / length,
        "direction": product(one + other, truth[None]) / 2 / jnp.sqrt(own) / length,
        "noise": jnp.sqrt(jnp.maximum(both["square"] - own, 0) / own),
        "cosine": both["cosine"],
        "correlation": (both["ae"] - both["a"] * both["e"] / acts) / jnp.sqrt(jnp.maximum(spread, 1e-30)),
        "silent groups": both["silent groups"],
    }
    return {name: {metric: found[metric][i] for metric in METRICS} for i, name in enumerate(chosen)}
