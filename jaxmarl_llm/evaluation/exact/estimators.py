"""Effects of an estimator on the gradient: its advantages and gradients beside the exact ones, over batches of games.

The policy is a table and the game one that `solve.tree` enumerates, so that the truth is known. A batch's gradient is
in the table's logits, [I, N]: the mean over episodes of sum over acts of advantage times gradient of log policy. All of
it is one program, which may be traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.exact_gradient import Exact, Tables, exact
from jaxmarl_llm.rl.advantages import RoleBaselineState
from jaxmarl_llm.rl.advantages.registry import Estimate, apply, required_inputs
from jaxmarl_llm.rl.masked import keep

WRONG = "/wrong_value"
VALUES = ("value", "team_value")
CRITICS = (*VALUES, "action_value")
OF_SOME_GAMES = ("correct", "beta", "joint", "alternatives")
METRICS = ("bias", "direction", "noise", "cosine", "correlation", "silent groups")


def variants(estimators: Mapping[str, Estimate]) -> list[str]:
    """The names in the result of `measure`: an estimator that takes a value stands there twice."""
    return [
        name + end for name, estimator in estimators.items() for end in ("", WRONG) if not end or _is_critic(estimator)
    ]


def _is_critic(estimator: Estimate) -> bool:
    return bool({*required_inputs(estimator)} & {*CRITICS})


def play(game: Tables, policy: jax.Array, known: Exact, key: jax.Array, groups: int, group_size: int) -> dict[str, Any]:
    """Games of a policy [I, N] with itself, as `named_inputs`; the episodes of a group have one deal."""
    deal_key, key = jax.random.split(key)
    deal = jax.random.choice(deal_key, len(game.chance), (groups,), p=jnp.asarray(game.chance, jnp.float32))
    group = jnp.repeat(jnp.arange(groups), group_size)
    information, child = jnp.asarray(game.tree.information), jnp.asarray(game.child)

    def turn(node: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        action = jax.random.categorical(key, jnp.log(policy)[jnp.maximum(information[node], 0)])
        after = child[node, action]  # an ended game stays where it is
        return after, (after, action)

    began = deal[group]
    after, action = jax.lax.scan(turn, began, jax.random.split(key, len(game.tree.levels) - 1))[1]
    return named_inputs(game, policy, known, jnp.concatenate([began[None], after]).T, action.T, group, groups)


def named_inputs(
    game: Tables,
    policy: jax.Array,
    known: Exact,
    history: jax.Array,
    action: jax.Array,
    group: jax.Array,
    num_groups: int,
) -> dict[str, Any]:
    """The inputs of estimators (`rl.advantages.registry`) for games: history int [B, T + 1], action int [B, T].

    `known` is the result of `exact` for the policy. `observation` is the information set, so that equal ones are the
    same knowledge. Roles are seats, and `state` holds the exact means. `correct` is there if the sums of episodes are
    from 0 to 1, `beta` if there are two seats. An answer is an episode's last action. A game that is `at_once` has one
    turn, and the rewards of other joint actions besides. Its groups are of one size and stand together.
    """
    tree, now = game.tree, history[:, :-1]
    seats, ends = jnp.arange(tree.payoff.shape[1]), tree.form.payoff
    moved = jnp.asarray(tree.seat)[now][..., None] == seats[None, None]  # -1 after the end
    turns = partial(jnp.sum, axis=1, keepdims=True) if at_once(game) else lambda x: x
    acted = turns(moved.astype(int)).astype(bool)
    at = jnp.maximum(jnp.asarray(tree.information)[now], 0)
    of_acts = lambda x: turns(jnp.where(moved, x[..., None], 0))
    paid = jnp.asarray(game.rewards, jnp.float32)[history[:, 1:]]
    components = turns(jnp.where(moved.any(2)[..., None, None], paid, 0))
    reward = components @ jnp.asarray(game.weights, jnp.float32)
    last = moved.shape[1] - 1 - jnp.argmax(moved.any(2)[:, ::-1], axis=1)
    inputs: dict[str, Any] = {
        "reward": reward,
        "components": components,
        "weights": jnp.asarray(game.weights, jnp.float32),
        "acted": acted,
        "group": group,
        "num_groups": num_groups,
        "role": jnp.broadcast_to(seats[None, None], acted.shape),
        "num_roles": len(seats),
        "state": RoleBaselineState(known.returns[None], jnp.ones((1, len(seats)), bool)),
        "observation": of_acts(at),
        "num_observations": len(tree.owner),
        "action": of_acts(action),
        "probability": jax.vmap(of_acts, -1, -1)(policy[at]),
        "answer": jnp.take_along_axis(action, last[:, None], axis=1)[:, 0],
        "value": of_acts(known.value[at]),
        "team_value": of_acts(known.team_value[at]),
        "action_value": of_acts(known.value[at] + known.advantage[at, action]),
        "log_ratio": jnp.zeros(acted.shape),
        "gamma": 1.0,
        "exact": of_acts(known.advantage[at, action]),
    }
    inputs |= {"correct": reward} if ends.min() >= 0 and ends.max() <= 1 else {}
    inputs |= {"beta": 1.0} if len(seats) == 2 else {}
    return inputs | (_joint_rewards(game, history[:, 0], action, num_groups) if at_once(game) else {})


def at_once(game: Tables) -> bool:
    """True if the moves may as well be one turn, as `environments.one_by_one` writes a game.

    Every seat then acts once, in their order, knows the deal's news at most, and is paid after the last move."""
    tree, seats = game.tree, game.tree.payoff.shape[1]
    if len(tree.levels) - 1 != seats or np.any(game.rewards[: tree.levels[-1][0]]):
        return False
    for seat, (low, high) in enumerate(tree.levels[:-1]):
        known = np.stack([tree.deal, tree.information], 1)[low:high]
        if (tree.seat[low:high] != seat).any() or len(np.unique(known, axis=0)) != len(game.chance):
            return False
    return bool((tree.seat[tree.levels[-1][0] :] < 0).all())


def _joint_rewards(game: Tables, deal: jax.Array, action: jax.Array, groups: int) -> dict[str, jax.Array]:
    """`joint` and `alternatives` of the registry, for actions [B, A] of games from deals [B]."""
    child, reward = jnp.asarray(game.child), jnp.asarray(game.reward, jnp.float32)
    seats, options = action.shape[1], game.tree.legal.shape[1]

    def rewards(deal: jax.Array, actions: Sequence[jax.Array]) -> jax.Array:
        for action_of_seat in actions:
            deal = child[deal, action_of_seat]
        return reward[deal]

    every = jnp.arange(options)
    of_seat = lambda seat: [every[None] if s == seat else action[:, s, None] for s in range(seats)]
    others = [rewards(deal[:, None], of_seat(seat))[..., seat] for seat in range(seats)]
    member = action.reshape(groups, -1, seats)
    axis = lambda x, seat: x.reshape(groups, *(-1 if s == seat else 1 for s in range(seats)))
    joint = rewards(axis(deal.reshape(groups, -1)[:, 0], -1), [axis(member[..., seat], seat) for seat in range(seats)])
    return {"joint": joint, "alternatives": jnp.stack(others, 1)[:, None]}


def gradients(game: Tables, policy: jax.Array, inputs: Mapping[str, Any], advantage: jax.Array) -> jax.Array:
    """The policy gradients of a batch for advantages [E, B, T, A] of E estimators, [E, I, N]."""
    acted, at, action = (inputs[name].ravel() for name in ("acted", "observation", "action"))
    sets, options = game.tree.legal.shape
    score = (jax.nn.one_hot(action, options) - policy[at]) * acted[:, None]
    score = (jax.nn.one_hot(at, sets)[:, :, None] * score[:, None]).reshape(len(at), -1)
    batch_gradients = advantage.reshape(len(advantage), -1) @ score / advantage.shape[1]
    return batch_gradients.reshape(-1, sets, options)


def _of_acts(estimator: Estimate, inputs: Mapping[str, Any]) -> jax.Array:
    advantages, acted = apply(estimator, inputs), inputs["acted"]
    if jnp.shape(advantages) != acted.shape:
        raise ValueError(
            f"An estimator returns advantages [episodes, turns, seats], here {list(acted.shape)}: got the shape "
            f"{list(jnp.shape(advantages))}."
        )
    return keep(jnp.asarray(advantages), acted)


@partial(jax.jit, static_argnames=("game", "estimators", "groups", "group_size"))
def _batch(
    game: Tables,
    policy: jax.Array,
    known: Exact,
    off: jax.Array,  # [I, N + 1], of action values and of values
    key: jax.Array,
    estimators: tuple[Estimate, ...],
    groups: int,
    group_size: int,
) -> dict[str, jax.Array]:
    """Sums and products of one batch, for each of the E variants, of which those of a critic stand side by side."""
    inputs = play(game, policy, known, key, groups, group_size)
    acted, at = inputs["acted"], inputs["observation"]
    wrong = dict.fromkeys(VALUES, off[at, -1]) | {"action_value": off[at, inputs["action"]]}
    wrong = {name: jnp.where(acted, x, 0) for name, x in wrong.items()}
    advantage = []
    for estimator in estimators:
        if _is_critic(estimator):
            moved = lambda by, estimator=estimator: _of_acts(
                estimator, inputs | {name: inputs[name] + by * wrong[name] for name in wrong}
            )
            advantage += list(jax.vmap(moved)(jnp.arange(2.0)))
        else:
            advantage.append(_of_acts(estimator, inputs))
    flat, right = jnp.stack(advantage).reshape(len(advantage), -1), inputs["exact"].ravel()
    gradient = gradients(game, policy, inputs, jnp.stack(advantage))
    square, truth = (gradient**2).sum((1, 2)), known.gradient
    scale = jnp.maximum(jnp.sqrt(square) * jnp.linalg.norm(truth), 1e-30)
    return {
        "gradient": gradient,
        "square": square,
        "cosine": (gradient * truth[None]).sum((1, 2)) / scale,
        "silent groups": (jnp.abs(flat).reshape(len(flat), groups, -1).max(2) == 0).mean(1),
        "acts": acted.sum().astype(jnp.float32),
        "advantage": flat.sum(1),
        "advantage squared": (flat**2).sum(1),
        "advantage by exact": flat @ right,
        "exact": right.sum(),
        "exact squared": (right**2).sum(),
    }


def measure(
    game: Tables,
    policy: jax.Array | np.ndarray,
    estimators: Mapping[str, Estimate],
    key: jax.Array,
    *,
    batches: int = 1024,
    groups: int = 8,
    group_size: int = 8,
    wrong: float = 1.0,
) -> dict[str, dict[str, jax.Array]]:
    """{estimator: {metric: number}} at a policy [I, N] of positive probabilities, for `variants` of the estimators.

    With g the exact gradient, m and v the mean and the total variance of a batch's, over `batches` batches of
    `groups` * `group_size` episodes:

        bias            |m - g| / |g|; an estimator of another scale has one, too
        direction       cosine of m and g: below 1, there is a bias that no learning rate repairs
        noise           sqrt(v) / |m|, 100 at most
        cosine          of a batch's gradient and g, mean over batches
        correlation     of advantages and exact advantages, over all acts
        silent groups   share of groups whose advantages are all exactly 0

    Products of m are of two halves of the batches, so that noise does not count as signal. An unbiased estimator has
    direction 1 and bias 0, give or take its noise. The errors of wrong values are normal, one for each information set
    and one for each action there. Their scale is `wrong` times the root mean square of the exact advantages. An
    estimator is left out if the game lacks an input of it. Advantages of seats that did not act count for nothing.
    Raises ValueError for an odd number of batches, for no groups or games, and for an input that no game has. The same
    holds for a table that is no policy of the game (unless it is traced), and if no estimator is left. Advantages of
    another shape than [episodes, turns, seats] are refused too.
    """
    if batches < 2 or batches % 2:
        raise ValueError(f"The batches are compared in two halves: choose an even number, got {batches}.")
    if groups < 1 or group_size < 1:
        raise ValueError(f"A batch has a group of a game at least: got groups={groups}, group_size={group_size}.")
    if not isinstance(policy, jax.core.Tracer):
        solve.checked_policy(game.tree, policy, tolerance=1e-4)  # rounding of float32
    policy, draw = jnp.asarray(policy, jnp.float32), jax.random.fold_in(key, 1)
    known = exact(game, policy)
    given = jax.eval_shape(lambda: play(game, policy, known, key, 1, 1))
    for name, estimator in estimators.items():
        if unknown := {*required_inputs(estimator)} - {*given, *OF_SOME_GAMES}:
            raise ValueError(f"{name} asks for {', '.join(sorted(unknown))}, but there are {', '.join(given)}.")
    chosen = {name: estimator for name, estimator in estimators.items() if {*required_inputs(estimator)} <= {*given}}
    if not chosen:
        raise ValueError(f"None of {', '.join(estimators)} can do with {', '.join(given)}.")
    mass, truth = known.reach[:, None] * policy, known.gradient
    size = jnp.sqrt((mass * known.advantage**2).sum() / mass.sum())
    of_actions = jax.random.normal(jax.random.fold_in(draw, 1), policy.shape)
    off = wrong * size * jnp.concatenate([of_actions, jax.random.normal(draw, known.value.shape)[:, None]], 1)
    of_key = lambda key: _batch(game, policy, known, off, key, tuple(chosen.values()), groups, group_size)

    def half(keys: jax.Array) -> dict[str, jax.Array]:
        add = lambda sums, key: (jax.tree.map(jnp.add, sums, of_key(key)), None)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_key, keys[0]))
        sums, _ = jax.lax.scan(add, zeros, keys)
        return jax.tree.map(lambda x: x / len(keys), sums)

    x = jax.lax.map(half, jax.random.split(key, (2, batches // 2)))
    length = jnp.linalg.norm(truth)
    product = lambda a, b: (a * b).sum((-2, -1))
    (half_a, half_b), both = x.pop("gradient"), jax.tree.map(lambda leaf: leaf.mean(0), x)
    signal = jnp.maximum(product(half_a, half_b), 1e-4 * both["square"] + 1e-30)
    of_exact, acts = both["exact"] / both["acts"], both["acts"]
    spread = jnp.maximum(both["advantage squared"] - both["advantage"] ** 2 / acts, 0)
    spread = jnp.sqrt(jnp.maximum(spread * (both["exact squared"] - of_exact * both["exact"]), 1e-30))
    metrics = {
        "bias": jnp.sqrt(jnp.maximum(product(half_a - truth[None], half_b - truth[None]), 0)) / length,
        "direction": product(half_a + half_b, truth[None]) / 2 / jnp.sqrt(signal) / length,
        "noise": jnp.sqrt(jnp.maximum(both["square"] - signal, 0) / signal),
        "cosine": both["cosine"],
        "correlation": (both["advantage by exact"] - both["advantage"] * of_exact) / spread,
        "silent groups": both["silent groups"],
    }
    return {name: {metric: metrics[metric][i] for metric in METRICS} for i, name in enumerate(variants(chosen))}
