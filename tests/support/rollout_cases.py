"""Four batches of games that most tests of rollouts check, compiled and played once a process.

"dilemma": a repeated game whose labels are words of several tokens, played by a learning and a frozen adapter, by a
written-down teacher and by a script. "relay": three seats that alternate, games that end at different turns, free text
that one other seat is told, a secret, a merged adapter. "silent": the relay in symbols, by full weights, where a seat
may speak without having heard anything since it was last fed. "talk": the dilemma with messages, between two
tokenizers, adapters of other ranks and targets, ways of sampling, and players that say nothing.
"""

from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.keys import CHANCE, DEAL, batch_keys
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import Trajectory, gather_sampled
from jaxmarl_llm.text.grammar import Choice
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.toys import FOREIGN, NUMBERS, ByteTokenizer, Relay

LORA = Lora(2, 4.0)
BYTES = ByteTokenizer()
THEIRS = ByteTokenizer(FOREIGN, missing=b"~#%QXJ\xc3\xef\xf0", shuffle=1)  # cannot write U+FFFD
SHORT = ((Choice(tuple(enumerate((*NUMBERS, "stop")))),), (Choice(((0, "low"), (1, "high"))),))
WORDS = MatrixGame(rounds=3, labels=("cooperate", "collude"))
TALK = MatrixGame(rounds=2, labels=("cooperate", "collude"), talk=True)


def tiny(vocab_size: int, context: int = 1024, layers: int = 2) -> Config:
    return Config(vocab_size, 16, 24, layers, 2, 1, 8, context)


@dataclass(frozen=True, eq=False)
class Case:
    environment: Any
    policy_sets: dict[str, PolicySet]
    lineup: Lineup
    budget: int | tuple[int, ...]
    message: int | None = None
    rollout: Rollout = field(init=False)

    def __post_init__(self):
        rollout = Rollout(self.environment, self.policy_sets, self.lineup, self.budget, self.message)
        object.__setattr__(self, "rollout", rollout)

    def most(self, grammar) -> int:
        """The budget of an utterance."""
        if isinstance(self.budget, int):
            return self.budget
        return self.budget[self.environment.grammars.index(grammar)]

    def weights(self, seed: int) -> dict[str, dict]:
        """Random weights, large enough that tokens are far from equally likely; adapters that are not zero."""

        def of(index: int, policy_set: PolicySet) -> dict:
            if policy_set.config is None:
                return {}
            key = jax.random.fold_in(jax.random.key(seed), index)
            params = jax.tree.map(lambda x: x * (3.0 if x.ndim == 2 else 1.0), decoder.init(policy_set.config, key))
            if policy_set.lora is None:
                return {"params": params}
            own = [random_adapter(jax.random.fold_in(key, i), params, one) for i, one in enumerate(policy_set.loras)]
            return {"params": params, "adapters": tuple(own)}

        return {name: of(index, policy_set) for index, (name, policy_set) in enumerate(self.policy_sets.items())}


def random_adapter(key: jax.Array, params: dict, settings: Lora, size: float = 0.2) -> dict:
    zero = lora.init(key, params, settings)
    leaves, treedef = jax.tree.flatten(zero)
    keys = jax.random.split(key, len(leaves))
    moved = [x + size * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(treedef, moved)


@cache
def case(name: str) -> Case:
    if name == "dilemma":
        policy_sets = {
            "lora": PolicySet(BYTES, ("learner", "frozen"), tiny(BYTES.vocab_size), LORA, sampling=Sampling(0.7)),
            "teacher": PolicySet(BYTES, ("random", "grim")),
        }
        seats = (("learner", "frozen"), ("frozen", "random"), ("tit_for_tat", "learner"))
        return Case(WORDS, policy_sets, Lineup((*seats, ("learner", "learner"), ("grim", "frozen")), 3), budget=8)
    if name == "silent":
        game = Relay(prompts=False, grammars=SHORT)
        symbols = SymbolTokenizer(strings(game))
        policy_sets = {"full": PolicySet(symbols, ("whole",), tiny(symbols.vocab_size, layers=1))}
        return Case(game, policy_sets, Lineup((("whole", "whole", "whole"), ("lucky", "whole", "whole")), 4), budget=1)
    if name == "talk":
        loras = LORA, Lora(3, 2.0, ("q_*", "down_proj")), Lora(1, 2.0, ("v_proj",))
        ways = Sampling(0.8, top_k=40, min_p=0.01), Sampling(0.0), Sampling(1.2, top_p=0.9)
        names = "learner", "frozen", "narrow"
        policy_sets = {
            "lora": PolicySet(BYTES, names, tiny(BYTES.vocab_size, layers=1), loras, sampling=ways),
            "full": PolicySet(THEIRS, ("whole",), tiny(THEIRS.vocab_size, layers=1), sampling=Sampling(top_k=100)),
            "teacher": PolicySet(THEIRS, ("grim",)),
        }
        seats = (("learner", "frozen"), ("whole", "learner"), ("narrow", "grim"), ("tit_for_tat", "whole"))
        return Case(TALK, policy_sets, Lineup((*seats, ("narrow", "whole")), 3), budget=(8, 9, 6), message=7)
    config = tiny(BYTES.vocab_size, layers=1)
    policy_sets = {"merged": PolicySet(BYTES, ("adapted",), config, LORA, sampling=Sampling(1.3))}
    seats = (("adapted", "adapted", "adapted"), ("fixed", "adapted", "adapted"), ("adapted", "lucky", "adapted"))
    return Case(Relay(), policy_sets, Lineup(seats, 3), budget=9)


CASES = ("dilemma", "relay", "silent", "talk")
SEED, OTHER = 13, 18  # games of many lengths, also within a group
FAST = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles in half the time
TRACES: dict[str, int] = dict.fromkeys(CASES, 0)


@cache
def compiled(name: str):
    """The jitted rollout, which counts how often it is traced."""

    def run(weights, key):
        TRACES[name] += 1
        return case(name).rollout(weights, key)

    return FAST(run)


@cache
def played(name: str, seed: int = SEED) -> Trajectory:
    return jax.device_get(compiled(name)(case(name).weights(seed), jax.random.key(seed)))


@cache
def seen(name: str, seed: int = SEED):
    """The game of a trajectory played again from its actions: prompts, and views before each turn [T + 1]."""
    return replay(case(name), played(name, seed), jax.random.key(seed))


def replay(setting: Case, trajectory: Trajectory, key: jax.Array):
    environment, group = setting.environment, jnp.asarray(trajectory.episodes.group)
    state, view = jax.jit(jax.vmap(environment.reset))(batch_keys(key, DEAL, group), group)
    prompt, views, rewards = jax.device_get(jax.jit(jax.vmap(environment.prompt))(state)), [jax.device_get(view)], []
    step = jax.jit(jax.vmap(environment.step))
    for t in range(environment.turns):
        action = jnp.asarray(trajectory.episodes.action[:, t])
        state, view, reward = step(state, action, batch_keys(key, CHANCE, group, jnp.int32(t)))
        views.append(jax.device_get(view))
        rewards.append(jax.device_get(reward))
    over = np.zeros((environment.turns + 1, len(group)), bool)
    for t, view in enumerate(views):
        over[t] = (view.terminated | view.truncated) if t == 0 else over[t - 1] | view.terminated | view.truncated
    return SimpleNamespace(prompt=prompt, views=views, rewards=rewards, over=over)


@cache
def scorer(setting: Case, policy_set: str):
    return FAST(setting.rollout.layouts[policy_set].scorer())


def rescored(setting: Case, weights: dict, trajectory: Trajectory):
    """(policy set, sampled tokens of its rows, scores) of every policy set with a model."""
    for policy_set, config in ((name, f.config) for name, f in setting.policy_sets.items()):
        if config is None:
            continue
        rows, how = trajectory.rows[policy_set], setting.policy_sets[policy_set]
        sampled = gather_sampled(rows, trajectory.episodes.legal, setting.rollout.max_sampled_tokens(policy_set))
        active = lora.concatenate(weights[policy_set]["adapters"], how.loras) if how.lora else None
        which = None if how.lora is None or how.merged else rows.policy
        params = weights[policy_set]["params"]
        yield policy_set, sampled, scorer(setting, policy_set)(params, rows, sampled, active, which)


def build(environment=WORDS, budget=8, context=1024, seats=("a", "a"), policy_sets=None, group_size=2, message=None):
    """A rollout of one group, for checks of what it refuses."""
    policy_sets = policy_sets or {"one": PolicySet(BYTES, ("a",), tiny(BYTES.vocab_size, context))}
    return Rollout(environment, policy_sets, Lineup((tuple(seats),), group_size), budget, message)
