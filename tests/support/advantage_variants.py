"""Every preset with settings, batches for all of them, and a loop that looks through all samples for every act."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import advantages

B, T, A, GROUPS = 12, 5, 2, 4
ROLES, GAMES = 3, 2
MEMORY = advantages.RoleBaselineState(
    jnp.array([[1.0, -2.0, 0.0], [0.5, 0.0, 3.0]]), jnp.array([[1, 1, 0], [1, 0, 1]], bool)
)
ROLE = {"num_roles": ROLES}
GAME = {"num_games": GAMES, **ROLE}
MARS = ("reward", "role", "game")


class Variant(NamedTuple):
    """A preset with settings, and the arrays it takes beside those of every preset (the first one is its reward)."""

    preset: Any
    options: dict[str, Any]
    takes: tuple[str, ...] = ("reward",)

    def __call__(self, x: dict[str, Any], num_groups: int = GROUPS, **numbers: Any) -> Any:
        more = {name: jnp.asarray(x[name]) for name in self.takes[1:]}
        given = (jnp.asarray(x[name]) for name in (self.takes[0], "acted", "group"))
        got = self.preset(*given, num_groups, **more, **self.options | numbers)
        return got[0] if isinstance(got, tuple) else got


VARIANTS = {
    "reinforce": Variant(advantages.reinforce, {}),
    "reinforce to go": Variant(advantages.reinforce, {"returns": "to_go", "gamma": 0.9}),
    "grpo": Variant(advantages.grpo, {}),
    "dr grpo": Variant(advantages.grpo, {"scale": "none"}),
    "grpo by turns": Variant(advantages.grpo, {"weight": "turn"}),
    "grpo per agent": Variant(advantages.grpo, {"per_agent": True}),
    "lite": Variant(advantages.lite, {}),
    "rloo": Variant(advantages.rloo, {}),
    "rloo by turns, per agent": Variant(advantages.rloo, {"weight": "turn", "per_agent": True}),
    "reinforce++": Variant(advantages.reinforce_plus_plus, {}),
    "rebn by episodes": Variant(advantages.reinforce_plus_plus, {"gamma": 0.9, "weight": "episode"}),
    "role baseline, first": Variant(
        advantages.role_baseline,
        {"state": advantages.init_role_baseline(ROLES, GAMES), **GAME},
        ("reward", "role", "game"),
    ),
    "role baseline": Variant(advantages.role_baseline, {"state": MEMORY, **GAME}, ("reward", "role", "game")),
    "role baseline by turns": Variant(
        advantages.role_baseline,
        {"state": advantages.init_role_baseline(ROLES), "weight": "turn", **ROLE},
        ("reward", "role"),
    ),
    "mars": Variant(advantages.turn_level, GAME, MARS),
    "mars by episodes": Variant(advantages.turn_level, {"weight": "episode", "gamma": 0.9, **GAME}, MARS),
    "episode pooled": Variant(
        advantages.turn_level, {"returns": "episode", "centre": None, "by": (), **ROLE}, ("reward", "role")
    ),
    "episode per role": Variant(
        advantages.turn_level,
        {"returns": "episode", "centre": None, "weight": "episode", **ROLE},
        ("reward", "role"),
    ),
    "to go pooled": Variant(advantages.turn_level, {"centre": None, "by": (), **ROLE}, ("reward", "role")),
    "to go per role": Variant(advantages.turn_level, {"centre": None, "whitened": False, **ROLE}, ("reward", "role")),
    "to go per role and turn": Variant(
        advantages.turn_level, {"centre": None, "by": ("role", "turn"), **ROLE}, ("reward", "role")
    ),
    "agent wise": Variant(advantages.agent_wise, {}),
    "agent wise raw": Variant(advantages.agent_wise, {"single": "raw"}),
    "agent wise by episodes": Variant(advantages.agent_wise, {"weight": "episode", "scale": "none"}),
    "turn wise": Variant(advantages.turn_wise, {}),
    "turn wise to go": Variant(advantages.turn_wise, {"returns": "to_go", "gamma": 0.9}),
    "step groups": Variant(advantages.step_groups, {"gamma": 0.9, "step_weight": 0.5}, ("reward", "observation")),
    "step groups per agent": Variant(
        advantages.step_groups, {"per_agent": True, "scale": "none", "weight": "turn"}, ("reward", "observation")
    ),
    "shared steps": Variant(advantages.shared_steps, {}, ("reward", "observation", "action")),
    "shared steps after others": Variant(
        advantages.shared_steps,
        {"before": 1, "scale": "none", "per_agent": True},
        ("reward", "observation", "action"),
    ),
    "decoupled": Variant(advantages.decoupled_grpo, {}, ("components", "weights")),
    "decoupled by turns": Variant(
        advantages.decoupled_grpo, {"weight": "turn", "per_agent": True, "whitened": False}, ("components", "weights")
    ),
    "round": Variant(advantages.round_leave_one_out, {"gamma": 0.9}),
    "alignment": Variant(advantages.advantage_alignment, {"gamma": 0.9, "beta": 0.5}),
    "alignment of the paper": Variant(
        advantages.advantage_alignment, {"gamma": 0.9, "beta": 0.5, "leading_discount": True}
    ),
    "sequential": Variant(advantages.sequential_agents, {"gamma": 0.9, "lam": 0.8}, ("reward", "value")),
}
every_variant = pytest.mark.parametrize("name", VARIANTS)
ALL = jax.jit(lambda x: {name: variant(x) for name, variant in VARIANTS.items()})  # compiled faster than each alone


def batch(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Episodes that end at different turns, seats that act now and then or never, groups of all sizes from 0 on."""
    generator = np.random.default_rng(seed)
    length = generator.integers(1, T + 1, B)
    alive = np.arange(T)[None, :, None] < length[:, None, None]
    acted = (generator.random((B, T, A)) < 0.7) & alive
    acted[0, :, 1] = False
    reward = np.where(alive, generator.normal(size=(B, T, A)), 0).astype(np.float32)
    return reward, acted, generator.integers(0, GROUPS, B)


def full(seed: int) -> dict[str, np.ndarray]:
    """The same with all that any preset asks for: roles change within an episode, some observations recur."""
    reward, acted, group = batch(seed)
    generator = np.random.default_rng(seed + 100)
    other = np.where(reward != 0, 100 * generator.normal(size=reward.shape), 0).astype(np.float32)
    return {
        "reward": reward,
        "acted": acted,
        "group": group,
        "role": generator.integers(0, ROLES, (B, T, A)),
        "game": generator.integers(0, GAMES, B),
        "observation": generator.choice(np.array([-7, 0, 3, 2**31 - 1], np.int32), (B, T, A)),
        "action": generator.integers(0, 2, (B, T, A)),
        "value": generator.normal(size=(B, T, A)).astype(np.float32),
        "components": np.stack([reward, other], axis=-1),
        "weights": np.array([1.0, 0.5], np.float32),
    }


def of_episodes(x: dict[str, np.ndarray], change) -> dict[str, np.ndarray]:
    """``change`` applied to every array that has an episode axis."""
    return {name: field if name == "weights" else change(field) for name, field in x.items()}


def advantage(name: str, x: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(ALL(x)[name])


def compiled(preset: Any, reward: Any, acted: Any, group: Any, num_groups: int = 1, **options: Any) -> Any:
    """The preset of these arrays under jit: a small program is compiled faster than its operations one by one."""
    return jax.jit(lambda *given: preset(*given, num_groups, **options))(*map(jnp.asarray, (reward, acted, group)))


def moved_by_hand(reward, acted):
    out = np.zeros(reward.shape)
    for b in range(len(reward)):
        for a in range(reward.shape[2]):
            acts = [t for t in range(reward.shape[1]) if acted[b, t, a]]
            for t in range(reward.shape[1]):
                if acts:
                    earlier = [s for s in acts if s <= t]
                    out[b, earlier[-1] if earlier else acts[0], a] += reward[b, t, a]
    return out


def to_go_by_hand(reward, gamma):
    turns = reward.shape[1]
    return np.stack([sum(gamma ** (s - t) * reward[:, s] for s in range(t, turns)) for t in range(turns)], axis=1)


def keyed(x, by):
    """The key of an act: the values of the named indices."""
    of = {
        "group": lambda b, t, a: x["group"][b],
        "game": lambda b, t, a: x["game"][b],
        "turn": lambda b, t, a: t,
        "agent": lambda b, t, a: a,
        "role": lambda b, t, a: x["role"][b, t, a],
        "observation": lambda b, t, a: x["observation"][b, t, a],
    }
    return lambda act: tuple(of[name](*act) for name in by)


def compared_by_hand(x, accumulated, by, baseline, scale="none", weight="turn", single="zero", given=None):
    """Look through all samples for each act: slow, and with no arithmetic in common with the kernel."""
    out = np.zeros(accumulated.shape)
    key, acts = keyed(x, by), list(zip(*np.nonzero(x["acted"]), strict=True))
    for own in acts:
        peers = [act for act in acts if key(act) == key(own)]
        same = lambda act, other: (act[0], act[2]) == (other[0], other[2])
        shares = [1 / sum(same(act, other) for other in peers) if weight == "episode" else 1.0 for act in peers]
        values = [accumulated[act] for act in peers]
        mean = np.average(values, weights=shares)
        left = mean
        if baseline == "leave_one_out":  # the first act of an episode stands for all of them
            ones = [act for i, act in enumerate(peers) if not any(same(act, other) for other in peers[:i])]
            others = [act for act in (ones if weight == "episode" else peers) if act != own]
            others = [act for act in others if weight == "turn" or not same(act, own)]
            left = np.mean([accumulated[act] for act in others]) if others else accumulated[own]
        if given is not None and key(own) in given:
            left = given[key(own)]
        out[own] = accumulated[own] - left
        if scale == "std":
            out[own] /= np.sqrt(np.average((np.array(values) - mean) ** 2, weights=shares)) + 1e-6
        if len(peers) == 1 and single == "raw":
            out[own] = accumulated[own]
    return out


def shared_by_hand(x, advantage, before, per_agent):
    """The mean over the episodes of a group that took the same step, looked up one by one."""
    out = np.zeros(advantage.shape)
    acts = list(zip(*np.nonzero(x["acted"]), strict=True))

    def step(b, t, a):
        seen = tuple(
            x["observation"][b, t - k, a] * x["acted"][b, t - k, a] if t >= k else 0 for k in range(before + 1)
        )
        return x["group"][b], seen, x["action"][b, t, a], a if per_agent else None

    for act in acts:
        same = [other for other in acts if step(*other) == step(*act)]
        by_episode = [np.mean([advantage[o] for o in same if o[0] == b]) for b in {o[0] for o in same}]
        out[act] = np.mean(by_episode)
    return out


def through_agents_by_hand(x, gamma, lam):
    out = np.zeros(x["reward"].shape)
    for b in range(len(out)):
        acts = [(t, a) for t in range(out.shape[1]) for a in range(out.shape[2]) if x["acted"][b, t, a]]
        paid = dict.fromkeys(acts, 0.0)
        for t in range(out.shape[1] if acts else 0):
            earner = max([act for act in acts if act[0] <= t], default=acts[0])
            paid[earner] += x["reward"][b, t].astype(float).mean()
        for i, act in enumerate(acts):
            decay = 1.0
            for j in range(i, len(acts)):
                passed = acts[j + 1][0] - acts[j][0] if j + 1 < len(acts) else 1
                after = x["value"][b][acts[j + 1]] if j + 1 < len(acts) else 0.0
                out[b][act] += decay * (paid[acts[j]] + gamma**passed * after - x["value"][b][acts[j]])
                decay *= gamma**passed * lam
    return out


def expected(name, x):
    reward, acted = x["reward"], x["acted"]
    sums = lambda moved: np.repeat(moved.sum(axis=1, keepdims=True), reward.shape[1], axis=1)
    moved = moved_by_hand(reward, acted)
    episode, to_go, plain = sums(moved), to_go_by_hand(moved, 0.9), to_go_by_hand(moved, 1.0)
    by_group, by_agent, by_round = ("group",), ("group", "agent"), ("group", "turn", "agent")
    compare = partial(compared_by_hand, x)
    whiten = lambda z, weight="turn": compare(z, (), "mean", "std", weight)
    if name.startswith("alignment"):
        own = compare(to_go, by=by_round, baseline="leave_one_out")
        out = own.copy()
        for t in range(reward.shape[1]):
            for a in range(2):
                past = sum(0.9 ** (t - k) * own[:, k, a] for k in range(t))
                out[:, t, a] += 0.5 * 0.9 * past * own[:, t, 1 - a]
            if "paper" in name:
                out[:, t] *= 0.9**t
        return np.where(acted, out, 0)
    if name.startswith("mars"):
        weight, gamma = ("episode", 0.9) if "episodes" in name else ("turn", 1.0)
        centred = compare(moved, ("game", "role"), "mean", weight=weight)
        less = compare(to_go_by_hand(centred, gamma), ("role",), "mean", weight=weight)
        return whiten(less, weight)
    if name.startswith("decoupled"):
        by, weight = (by_agent, "turn") if "turns" in name else (by_group, "episode")
        parts = [sums(moved_by_hand(x["components"][..., c], acted)) for c in range(2)]
        total = sum(w * compare(part, by, "mean", "std", weight) for w, part in zip(x["weights"], parts, strict=True))
        return total if "turns" in name else whiten(total, weight)
    known = {(g, r): float(MEMORY.mean[g, r]) for g in range(GAMES) for r in range(ROLES) if MEMORY.known[g, r]}
    game_role, faced = ("game", "role"), ("group", "observation")
    return {
        "reinforce": lambda: np.where(acted, episode, 0),
        "reinforce to go": lambda: np.where(acted, to_go, 0),
        "grpo": lambda: compare(episode, by=by_group, baseline="mean", scale="std", weight="episode"),
        "dr grpo": lambda: compare(episode, by=by_group, baseline="mean", weight="episode"),
        "grpo by turns": lambda: compare(episode, by=by_group, baseline="mean", scale="std"),
        "grpo per agent": lambda: compare(episode, by=by_agent, baseline="mean", scale="std", weight="episode"),
        "lite": lambda: (
            compare(episode, by=by_group, baseline="mean", weight="episode")
            / (np.std([episode[b, 0, a] for b, a in zip(*np.nonzero(acted.any(1)), strict=True)]) + 1e-6)
        ),
        "rloo": lambda: compare(episode, by=by_group, baseline="leave_one_out", weight="episode"),
        "rloo by turns, per agent": lambda: compare(episode, by=by_agent, baseline="leave_one_out"),
        "reinforce++": lambda: whiten(plain),
        "rebn by episodes": lambda: whiten(to_go, "episode"),
        "role baseline, first": lambda: compare(episode, by=game_role, baseline="mean", weight="episode"),
        "role baseline": lambda: compare(episode, by=game_role, baseline="mean", weight="episode", given=known),
        "role baseline by turns": lambda: compare(episode, by=("role",), baseline="mean"),
        "episode pooled": lambda: whiten(compare(episode, by=(), baseline="mean")),
        "episode per role": lambda: whiten(
            compare(episode, by=("role",), baseline="mean", weight="episode"), "episode"
        ),
        "to go pooled": lambda: whiten(plain),
        "to go per role": lambda: compare(plain, by=("role",), baseline="mean"),
        "to go per role and turn": lambda: whiten(compare(plain, by=("role", "turn"), baseline="mean")),
        "agent wise": lambda: compare(episode, by=by_agent, baseline="mean", scale="std"),
        "agent wise raw": lambda: compare(episode, by=by_agent, baseline="mean", scale="std", single="raw"),
        "agent wise by episodes": lambda: compare(episode, by=by_agent, baseline="mean", weight="episode"),
        "turn wise": lambda: compare(moved, by=by_round, baseline="mean", scale="std"),
        "turn wise to go": lambda: compare(to_go, by=by_round, baseline="mean", scale="std"),
        "step groups": lambda: (
            compare(episode, by=by_group, baseline="mean", scale="std", weight="episode")
            + 0.5 * compare(to_go, by=faced, baseline="mean", scale="std")
        ),
        "step groups per agent": lambda: (
            compare(episode, by=by_agent, baseline="mean") + compare(plain, by=(*faced, "agent"), baseline="mean")
        ),
        "shared steps": lambda: shared_by_hand(
            x, compare(episode, by=by_group, baseline="mean", scale="std", weight="episode"), 0, False
        ),
        "shared steps after others": lambda: shared_by_hand(
            x, compare(episode, by=by_agent, baseline="mean", weight="episode"), 1, True
        ),
        "round": lambda: compare(to_go, by=by_round, baseline="leave_one_out"),
        "sequential": lambda: whiten(through_agents_by_hand(x, 0.9, 0.8)),
    }[name]()
