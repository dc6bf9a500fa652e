"""The programs that train a recipe, and what they begin from.

One run of one arm and one seed is a lane. Lanes of tiny policies run side by side in one program, those of real models
one after the other. Names as in `recipe`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices import distributed, sharding
from jaxmarl_llm.keys import EVALUATE, POOL, START, UPDATE, key_for
from jaxmarl_llm.models import config, decoder, loading, lora
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.policy import PLAIN, Sampling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import (
    Rows,
    SampledTokens,
    Trajectory,
    bucket,
    gather_sampled,
    narrow,
    per_token,
    speech,
)
from jaxmarl_llm.text.tokenizers import HFTokenizer
from jaxmarl_llm.training.checkpoint import Checkpoints
from jaxmarl_llm.training.recipe import SNAPSHOT, Advantages, Batch, Experience, Hparams, Recipe
from jaxmarl_llm.training.update import Buckets, Learners, Optimiser, update

TINY = "tiny"
LORA = Lora(32, 64.0, ("*",))


@dataclasses.dataclass(frozen=True)
class Model:
    """What a policy begins as, and how it speaks."""

    source: str = TINY
    """`tiny`, or what `weights.load` takes."""
    lora: Lora | None = LORA
    """Its adapter; None: all weights are trained, as a tiny policy's always are."""
    sampling: Sampling = PLAIN
    dtype: str = "float32"
    """Of a real model's weights, products and cache; weights that are trained are float32 all the same."""
    attention: Literal["plain", "fused"] = "plain"
    """Of a real model, as in `model.Dtypes`."""

    @property
    def adapted(self) -> bool:
        return self.source != TINY and self.lora is not None


class Trainer:
    """The programs of one structure, run for lanes with numbers and a seed each.

    `models` is that of all policies, or of each; a string is the source of all. `mesh` is a text as `sharding.mesh`
    reads it; calls of a trainer on several devices stand in `with sharding.use(trainer.mesh)`. With `rollout_mesh`, a
    mesh of other devices, those play the games of update n + 1 while `mesh` learns from those of update n: by weights
    that are one update old (counted by `metrics["stale"]`), with exact log-probabilities of what was sampled, so that
    the loss must weigh by importance. With `load=weights.abstract` it can be lowered, but not run. Raises ValueError,
    before anything compiles, for settings that cannot work.
    """

    def __init__(
        self,
        recipe: Recipe,
        hparams: Sequence[Mapping[str, float]],
        seeds: Sequence[int],
        models: str | Mapping[str, Model] = TINY,
        mesh: str = "",
        rollout_mesh: str = "",
        load: Callable[..., loading.Loaded] = loading.load,
    ):
        recipe.check()
        self.recipe, self.learners, self.mesh = recipe, recipe.learners, sharding.mesh(mesh)
        of = (
            dict.fromkeys(self.learners, Model(models, sampling=recipe.sampling))
            if isinstance(models, str)
            else dict(models)
        )
        if recipe.snapshots:
            of[SNAPSHOT] = of[self.learners[0]]
        self.policy_sets: dict[str, PolicySet] = {}
        self.base: dict[str, dict] = {}  # by family, what real models start from
        together: dict[tuple[str, str], list[str]] = {}  # by source, and by policy where all its weights are trained
        for name, how in of.items():
            together.setdefault((how.source, "" if how.adapted else name), []).append(name)
        load = cache(partial(load, sharding=partial(sharding.leaf, mesh=self.mesh)))
        for (source, own), names in together.items():
            if len({(of[name].dtype, of[name].attention) for name in names}) > 1:
                raise ValueError(
                    f"Policies with adapters on {source} share its weights: give them one dtype and attention."
                )
            self._add(own or source, [of[name] for name in names], tuple(names), load)
        self.policy_set = {name: policy_set for policy_set, how in self.policy_sets.items() for name in how.policies}
        self.trained = [name for name, how in self.policy_sets.items() if set(how.policies) & set(self.learners)]
        self.tiny = not self.base
        seats = recipe.seats * (recipe.groups // len(recipe.seats))
        self.rollout = Rollout(recipe.game, self.policy_sets, Lineup(seats, recipe.group_size), recipe.budget)
        self.optimiser = Optimiser(recipe.max_grad_norm, epochs=recipe.epochs, minibatches=recipe.minibatches,
                                   grad_accumulation=recipe.grad_accumulation)  # fmt: skip
        prompts = [len(self.rollout.layouts[name].assignments) for name in self.trained]
        self.optimiser.check(prompts)
        self.prompts = math.gcd(*prompts)
        for layout in self.rollout.layouts.values():
            sharding.check_groups(self.mesh, len(layout.assignments))
        self.rollout_mesh: tuple[Any, dict] | None = None  # the mesh that plays, and the real models on it
        if rollout_mesh:
            if recipe.snapshots or jax.process_count() > 1:
                raise ValueError("Playing ahead takes one process, and a recipe without past selves.")
            playing = sharding.mesh(rollout_mesh, after=self.mesh.size)
            for layout in self.rollout.layouts.values():
                sharding.check_groups(playing, len(layout.assignments))
            self.rollout_mesh = playing, sharding.place(self.base, playing)
        self.hparams = {key: jnp.array([lane[key] for lane in hparams], jnp.float32) for key in recipe.all_hparams}
        self.keys = jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32))
        self.buckets = Buckets(recipe.buckets, self._needed, self._cut) if recipe.buckets > 1 else None
        _, self.distinct, self.seed_of = np.unique(np.array(seeds), return_index=True, return_inverse=True)

    def _add(self, policy_set: str, models: Sequence[Model], names: tuple[str, ...], load: Callable) -> None:
        sampling, masked = tuple(how.sampling for how in models), self.recipe.masked
        if models[0].source == TINY:
            tokens = self.recipe.tokenizer(self.recipe.game)
            self.policy_sets[policy_set] = PolicySet(tokens, names, tiny(tokens.vocab_size), None, sampling, masked)
            return
        dtype = models[0].dtype
        stored = dtype if models[0].adapted else "float32"  # steps are too small for what bfloat16 can tell apart
        loaded = load(models[0].source, stored)
        tokens = HFTokenizer(loaded.directory, loaded.config.vocab_size, options={"enable_thinking": False})
        config = dataclasses.replace(loaded.config, dtypes=Dtypes(stored, dtype, dtype, models[0].attention))
        loras = tuple(how.lora for how in models if how.lora is not None) or None
        self.policy_sets[policy_set], self.base[policy_set] = (
            PolicySet(tokens, names, config, loras, sampling, masked),
            loaded.params,
        )

    def lanes(self, function: Callable, *trees: Any) -> Any:
        """function(*trees of one lane) for every lane: tiny policies side by side, real ones one after the other."""
        if self.tiny:
            return jax.vmap(function)(*trees)
        if len(jax.tree.leaves(trees)[0]) > 1:
            return jax.lax.map(lambda each: function(*each), trees)
        one = function(*jax.tree.map(lambda x: x[0], trees))
        return jax.tree.map(lambda x: x[None], one)

    def _begin(self, base: dict) -> dict:
        # lanes of one seed start alike, and imitation is not cheap
        states = self.lanes(lambda key: self.start(base, key_for(key, START)), self.keys[self.distinct])
        return jax.tree.map(lambda x: x[self.seed_of], states)

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def _advance(self, base: dict, state: dict, number: jax.Array) -> tuple[dict, dict[str, jax.Array]]:
        step = lambda state, hparams, key: self.step(base, state, hparams, key, number)  # noqa: E731
        state, metrics = self.lanes(step, state, self.hparams, self.keys)
        return sharding.weights(state), sharding.everywhere(metrics)

    @partial(jax.jit, static_argnums=(0, 1))
    def _play(self, rollout: Rollout, base: dict, state: dict) -> Trajectory:
        play = lambda state, key: rollout(self.playing(base, self.now(state["learners"])), key_for(key, EVALUATE))  # noqa: E731
        return sharding.everywhere(self.lanes(play, state, self.keys))

    @partial(jax.jit, static_argnums=0)
    def _again(self, base: dict, state: dict, number: jax.Array) -> tuple[Trajectory, dict, dict[str, jax.Array]]:
        again = lambda state, hparams, key: self.inspect(base, state, hparams, key, number)  # noqa: E731
        return sharding.everywhere(self.lanes(again, state, self.hparams, self.keys))

    @partial(jax.jit, static_argnums=0)
    def _game(self, base: dict, learned: dict, number: jax.Array) -> Trajectory:
        play = lambda learned, key: self.rollout(self.playing(base, learned), key_for(key, UPDATE, number))  # noqa: E731
        return self.lanes(play, learned, self.keys)

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def _learn(
        self, base: dict, state: dict, played: Trajectory, number: jax.Array
    ) -> tuple[dict, dict[str, jax.Array]]:
        def learn(state, played, hparams, key):
            return self.learn(base, state, {}, hparams, played, key_for(key, UPDATE, number))

        state, metrics = self.lanes(learn, state, played, self.hparams, self.keys)
        return sharding.weights(state), sharding.everywhere(metrics)

    def begin(self) -> dict:
        """The states [lanes] before training."""
        where = sharding.shardings(jax.eval_shape(self._begin, self.base), self.mesh)
        state = jax.jit(self._begin, out_shardings=where)(self.base)
        if self.rollout_mesh is None:
            return state
        version = jnp.zeros(len(self.keys), jnp.int32)
        return state | {"played": self._ahead(state, 0), "version": version, "by": version}

    def abstract(self) -> dict:
        """The states [lanes] as a checkpoint is restored into them: nothing of them is held."""
        if self.rollout_mesh is not None:
            return self.begin()
        state = jax.eval_shape(self._begin, self.base)
        where = sharding.shardings(state, self.mesh)
        return jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), state, where)

    def advance(self, state: dict, number: int) -> tuple[dict, dict[str, jax.Array]]:
        """One update of every lane: the new states, and the metrics [lanes]. The old states are used up."""
        if self.rollout_mesh is None:
            return self._advance(self.base, state, jnp.int32(number))
        following = self._ahead(state, number + 1)
        own = {name: part for name, part in state.items() if name not in ("played", "version", "by")}
        version, by = state["version"], state["by"]
        state, metrics = self._learn(self.base, own, state["played"], jnp.int32(number))
        learned = metrics["skipped"] < self.recipe.epochs * self.recipe.minibatches
        state |= {"played": following, "version": version + learned, "by": version}
        return state, metrics | {"stale": version - by}

    def _ahead(self, state: dict, number: int) -> Trajectory:
        """The games of an update, played on the other mesh with the present weights."""
        assert self.rollout_mesh is not None
        mesh, base = self.rollout_mesh
        with sharding.use(mesh):
            played = self._game(base, sharding.place(state["learners"].weights, mesh), jnp.int32(number))
        return sharding.spread(played, self.mesh)

    def again(self, state: dict, number: int) -> tuple[Trajectory, dict, dict[str, jax.Array]]:
        """An update of every lane once more, to look at it: the games, the batch by family, and the metrics with the
        gradient norm of each leaf, [lanes, ...]. Of an update that was left out, `state` may be that before or after.
        """
        return self._again(self.base, state, jnp.int32(number))

    def play(self, state: dict, rollout: Rollout | None = None) -> Trajectory:
        """Games of every lane as it now plays, leaves [lanes, ...]: those of training, or of another rollout."""
        return self._play(rollout or self.rollout, self.base, state)

    def lane(self, state: dict, number: int) -> dict[str, dict]:
        """What the policies of one lane play with, by family, as a rollout takes it."""
        return self.playing(self.base, self.now(jax.tree.map(lambda x: x[number], state["learners"])))

    # one lane

    def start(self, base: dict, key: jax.Array) -> dict:
        """What training changes, and what a checkpoint holds."""
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(len(self.learners)))
        new = [i for i, name in enumerate(self.learners) if self.policy_set[name] not in base]
        taught: dict[str, Any] = {}
        if self.recipe.warm_start and new:
            names = [self.learners[i] for i in new]
            student = self.policy_sets[self.policy_set[names[0]]]
            taught = dict(zip(names, imitate(self.recipe, student, names, keys[np.array(new)]), strict=True))
        learned: dict[str, Any] = {}
        for i, name in enumerate(self.learners):
            policy_set = self.policy_sets[self.policy_set[name]]
            assert policy_set.config is not None  # learners are no scripts
            if policy_set.lora:
                settings = policy_set.loras[policy_set.policies.index(name)]
                own = lora.init(keys[i], base[self.policy_set[name]], settings)
            elif self.policy_set[name] in base:
                own = base[self.policy_set[name]]
            else:
                own = taught[name] if taught else decoder.init(policy_set.config, keys[i])
            learned[name] = {"policy": own}
            if self.recipe.critic:
                learned[name]["value"] = policy.init_value(policy_set.config)
        state: dict[str, Any] = {"learners": self.optimiser.init(learned), "memory": self.recipe.init_state()}
        if self.recipe.snapshots:
            own = learned[self.learners[0]]
            state["snapshots"] = jax.tree.map(lambda x: jnp.repeat(x[None], self.recipe.snapshots, 0), own)
        if self.recipe.reference:
            state["before"] = {self.learners[i]: learned[self.learners[i]]["policy"] for i in new}
        return state

    def now(self, learners: Learners) -> dict:
        """What everybody's weights are, past selves being like the present one."""
        own = learners.weights
        return own | ({SNAPSHOT: own[self.learners[0]]} if self.recipe.snapshots else {})

    def draw(self, state: dict, event: jax.Array, number: jax.Array) -> dict:
        """The past self of an update, if there are any."""
        if not self.recipe.snapshots:
            return {}
        taken = jnp.clip(1 + number // self.recipe.snapshot_every, 1, self.recipe.snapshots)
        at = jax.random.randint(key_for(event, POOL), (), 0, taken)
        return {SNAPSHOT: jax.tree.map(lambda x: x[at], state["snapshots"])}

    def keep(self, state: dict, number: jax.Array) -> dict:
        """The state, with a snapshot if one is due; the oldest gives way."""
        if not self.recipe.snapshots:
            return state
        slot = (1 + number // self.recipe.snapshot_every) % self.recipe.snapshots
        due = (number + 1) % self.recipe.snapshot_every == 0
        put = lambda pool, new: pool.at[slot].set(jnp.where(due, new, pool[slot]))  # noqa: E731
        return state | {"snapshots": jax.tree.map(put, state["snapshots"], state["learners"].weights[self.learners[0]])}

    def playing(self, base: dict, learned: dict) -> dict[str, dict]:
        """What a rollout plays with."""
        result = {}
        for name, policy_set in self.policy_sets.items():
            own = tuple(learned[policy]["policy"] for policy in policy_set.policies)
            result[name] = {"params": base[name], "adapters": own} if policy_set.lora else {"params": own[0]}
        return result

    def step(
        self, base: dict, state: dict, hparams: Hparams, key: jax.Array, number: jax.Array
    ) -> tuple[dict, dict[str, jax.Array]]:
        """Plays, credits, learns: the state after one update, and its metrics."""
        snapshots, trajectory, event = self.event(base, state, key, number)
        state, metrics = self.learn(base, state, snapshots, hparams, trajectory, event)
        return self.keep(state, number), metrics

    def event(self, base: dict, state: dict, key: jax.Array, number: jax.Array) -> tuple[dict, Trajectory, jax.Array]:
        """The past self, the games and the key of an update."""
        event = key_for(key, UPDATE, number)
        snapshots = self.draw(state, event, number)
        return snapshots, self.rollout(self.playing(base, state["learners"].weights | snapshots), event), event

    def inspect(
        self, base: dict, state: dict, hparams: Hparams, key: jax.Array, number: jax.Array
    ) -> tuple[Trajectory, dict, dict[str, jax.Array]]:
        """What an update learns from, and its metrics with the gradient norm of each leaf."""
        snapshots, trajectory, event = self.event(base, state, key, number)
        *_, batch = self.credited(base, state, snapshots, hparams, trajectory)
        _, metrics = self.improve(base, state, snapshots, hparams, batch, event, leaves=True)
        return trajectory, batch, metrics

    def learn(
        self, base: dict, state: dict, snapshots: dict, hparams: Hparams, trajectory: Trajectory, event: jax.Array
    ) -> tuple[dict, dict[str, jax.Array]]:
        """Credit and update on what was played; where something of that was not finite, the memory stays as it was."""
        played, credited, batch = self.credited(base, state, snapshots, hparams, trajectory)
        learners, metrics = self.improve(base, state, snapshots, hparams, batch, event)
        sound = metrics["skipped"] == 0
        for leaf in jax.tree.leaves(credited.state):
            sound &= jnp.isfinite(leaf).all()
        memory = jax.tree.map(lambda new, old: jnp.where(sound, new, old), credited.state, state["memory"])
        metrics |= self.recipe.measure(played.episodes) | self.measures(played, trajectory, credited)
        return {**state, "learners": learners, "memory": memory}, metrics

    def credited(
        self, base: dict, state: dict, snapshots: dict, hparams: Hparams, trajectory: Trajectory
    ) -> tuple[Experience, Advantages, dict]:
        """The credit for what was played, and by family the batch that is learned from."""
        played = self.played(base, state["learners"].weights | snapshots, trajectory)
        with jax.named_scope("credit"):
            credited = self.recipe.advantage(played, hparams, state["memory"])
            batch = {name: self.batch(name, played, credited) for name in self.trained}
        if self.recipe.reference:  # a real model without adapters, a tiny one as it began
            for name, part in batch.items():
                params = base[name] if name in base else state["before"][self.policy_sets[name].policies[0]]
                score = partial(self._score, name, params)
                with jax.named_scope("scoring"):
                    logp = self._narrowly(lambda *of, score=score: score(*of).logp, part["rows"], part["batch"].sampled)
                part["batch"] = part["batch"].replace(reference_logp=logp)
        return played, credited, batch

    def improve(
        self,
        base: dict,
        state: dict,
        snapshots: dict,
        hparams: Hparams,
        batch: dict,
        event: jax.Array,
        leaves: bool = False,
    ) -> tuple[Learners, dict[str, jax.Array]]:
        """The learners after the update on a batch, and its metrics."""
        rates = {name: hparams.get(f"learning_rate/{name}", hparams["learning_rate"]) for name in self.learners}
        loss = partial(self.loss, base, hparams, snapshots)
        with jax.named_scope("update"):
            return update(
                self.optimiser, loss, state["learners"], batch, self.prompts, rates, event, self.buckets, leaves
            )

    @jax.named_scope("credit")
    def played(self, base: dict, learned: dict, trajectory: Trajectory) -> Experience:
        episodes = trajectory.episodes
        sampled = {
            name: gather_sampled(rows, episodes.legal, self.rollout.max_sampled_tokens(name))
            for name, rows in trajectory.rows.items()
        }
        values = {name: jnp.zeros(one.mask.shape) for name, one in sampled.items()}
        batch, turns, agents = episodes.acted.shape
        value = jnp.zeros((batch, turns, agents))
        if self.recipe.critic:
            for name, rows in trajectory.rows.items():
                score = partial(self.scores, base, learned, name)
                with jax.named_scope("scoring"):  # every policy has a head
                    expected = self._narrowly(lambda *of, score=score: score(*of)[0].value, rows, sampled[name])
                values[name] = expected
                value += policy.by_turn(expected, rows, sampled[name], (batch, turns, agents))[0]
        return Experience(episodes, trajectory.rows, sampled, values, value, self.recipe.groups)

    def scores(
        self, base: dict, learned: dict, name: str, rows: Rows, sampled: SampledTokens
    ) -> tuple[policy.Scores, dict[str, jax.Array]]:
        """What a family says to its spoken tokens, each row's policy for itself; and by policy which are its own."""
        policy_set = self.policy_sets[name]
        own = [learned[policy] for policy in policy_set.policies]
        joined = lora.concatenate([one["policy"] for one in own], policy_set.loras) if policy_set.lora else None
        which = rows.policy if len(own) > 1 else None
        heads = [one["value"] for one in own if "value" in one]
        head = jax.tree.map(lambda *x: jnp.stack(x)[rows.policy], *heads) if which is not None and heads else None
        params = base[name] if policy_set.lora else own[0]["policy"]
        scores = self._score(name, params, rows, sampled, joined, which, head or next(iter(heads), None))
        return scores, {
            policy: sampled.mask & (rows.policy == i)[:, None] for i, policy in enumerate(policy_set.policies)
        }

    def _score(
        self,
        name: str,
        params: dict,
        rows: Rows,
        sampled: SampledTokens,
        joined: lora.Adapters | None = None,
        which: jax.Array | None = None,
        head: dict | None = None,
    ) -> policy.Scores:
        policy_set = self.policy_sets[name]
        assert policy_set.config is not None
        return policy.score(
            policy_set.config, params, rows, sampled, self.rollout.layouts[name].tables, joined, which,
            policy_set.sampling,
            masked=policy_set.masked, value=head, remat=self.recipe.remat,
        )  # fmt: skip

    def batch(self, name: str, played: Experience, credited: Advantages) -> dict[str, Any]:
        rows, sampled = played.rows[name], played.sampled[name]

        def by_token(x: Any) -> jax.Array:
            return x[name] if isinstance(x, dict) else per_token(x, rows, sampled)

        advantage, expected = by_token(credited.advantage), played.token_value[name]
        target = expected if credited.value_target is None else by_token(credited.value_target)
        return {"rows": rows, "batch": Batch(sampled, advantage, target, expected, sampled.mask)}

    def _narrowly(
        self, score: Callable[[Rows, SampledTokens], jax.Array], rows: Rows, sampled: SampledTokens
    ) -> jax.Array:
        """score(rows, sampled) float32 [R, M], computed at the least of the buckets that holds all rows."""
        number, most = self.recipe.buckets, sampled.mask.shape[1]

        def at(i: int) -> jax.Array:
            found = score(*narrow(rows, sampled, i, number))
            return jnp.pad(found, ((0, 0), (0, most - found.shape[1])))

        return jax.lax.switch(bucket(rows, sampled, number).max(), [partial(at, i) for i in range(number)])

    def _needed(self, batch: dict) -> jax.Array:
        """Which of the buckets holds all rows of each of the batch's openings."""
        policy_sets = [bucket(part["rows"], part["batch"].sampled, self.recipe.buckets) for part in batch.values()]
        prompts = math.gcd(*(len(part["rows"].prompts.tokens) for part in batch.values()))
        return reduce(jnp.maximum, (need.reshape(prompts, -1).max(1) for need in policy_sets))

    def _cut(self, batch: dict, i: int) -> dict:
        parts = {name: narrow(part["rows"], part["batch"], i, self.recipe.buckets) for name, part in batch.items()}
        return {name: {"rows": rows, "batch": of_said} for name, (rows, of_said) in parts.items()}

    def loss(
        self, base: dict, hparams: Hparams, snapshots: dict, learned: dict, batch: dict
    ) -> tuple[dict[str, Mean], dict[str, Mean]]:
        """Each policy's own loss, over what it said."""
        totals: dict[str, Mean] = {}
        metrics: dict[str, Mean] = {}
        for name, part in batch.items():
            scores, places = self.scores(base, learned | snapshots, name, part["rows"], part["batch"].sampled)
            for own, where in places.items():
                if own == SNAPSHOT:
                    continue
                totals[own], more = self.recipe.loss(scores, part["batch"].replace(mask=where), hparams)
                metrics |= {f"{metric}/{own}": mean for metric, mean in more.items()}
        return totals, metrics

    def measures(self, played: Experience, trajectory: Trajectory, credited: Advantages) -> dict[str, jax.Array]:
        episodes = trajectory.episodes
        wrong = (episodes.acted & ~episodes.valid).sum()
        measures = {"invalid": wrong / jnp.maximum(episodes.acted.sum(), 1)}
        measures |= {f"utilisation/{name}": share for name, share in trajectory.utilisation.items()}
        if self.rollout.words:
            measures |= {
                f"truncated_message_tokens/{name}": cut for name, cut in trajectory.truncated_message_tokens.items()
            }
        for learner in self.learners:
            name = self.policy_set[learner]
            own = trajectory.rows[name].policy == self.policy_sets[name].policies.index(learner)
            sampled = played.sampled[name]
            measures |= {f"{n}/{learner}": x.value for n, x in speech(sampled, sampled.mask & own[:, None]).items()}
        if not isinstance(credited.advantage, dict):
            statistics = advantages.statistics(credited.advantage, episodes.acted, episodes.group, self.recipe.groups)
            for name, values in statistics.items():
                measures |= {f"{name}/seat_{seat}": values[seat] for seat in range(len(values))}
        return measures


def resumed(trainer: Trainer, checkpoints: Checkpoints) -> tuple[int, dict]:
    """(updates made, states): the newest checkpoint, or else where training begins."""
    if not distributed.broadcast(bool(checkpoints.steps())):
        return 0, trainer.begin()
    return checkpoints.restore(trainer.abstract()) or (0, trainer.begin())


def readable(rollout: Rollout) -> Callable[..., Trajectory]:
    """A rollout, compiled; every host can read what was played."""
    return jax.jit(lambda weights, key: sharding.everywhere(rollout(weights, key)))


def tiny(vocabulary: int) -> config.Config:
    """Two layers of width 32."""
    return config.Config(vocabulary, 32, 64, 2, 4, 4, 8, max_position_embeddings=256)


def imitate(recipe: Recipe, student: PolicySet, names: Sequence[str], keys: jax.Array) -> list[dict]:
    """Supervised training of random policies on scripted dialogues, each on what is said in the seats it will take: a
    format, and the habits of the scripts. `student` is like the family of every policy. Their weights after it."""
    game, config = recipe.game, student.config
    assert config is not None
    taken = jnp.array([[any(seats[a] == name for seats in recipe.seats) for a in range(game.agents)] for name in names])
    scripts = tuple(dict.fromkeys(script for seats in recipe.warm_start for script in seats))
    lineup = Lineup(recipe.warm_start * -(-8 // len(recipe.warm_start)), 8)
    teacher = Rollout(game, {"teacher": PolicySet(student.tokenizer, scripts)}, lineup, recipe.budget)
    tables, optimiser = teacher.layouts["teacher"].tables, Optimiser()

    def one(key: jax.Array, taken: jax.Array) -> dict:
        def loss(weights, batch):
            rows, sampled = batch
            scores = policy.score(config, weights["student"], rows, sampled, tables)
            return losses.cross_entropy(scores.logp, sampled.mask & taken[rows.seat][:, None])

        def step(learners: Learners, number: jax.Array):
            event = key_for(key, UPDATE, number)
            played = teacher({"teacher": {}}, event)
            rows = played.rows["teacher"]
            batch = rows, gather_sampled(rows, played.episodes.legal, teacher.max_sampled_tokens("teacher"))
            rate = 3e-3 * (1 - number / recipe.warm_start_updates)
            return update(optimiser, loss, learners, batch, len(rows.prompts.tokens), rate, event)[0], None

        learners = optimiser.init({"student": decoder.init(config, key_for(key, START))})
        return jax.lax.scan(step, learners, jnp.arange(recipe.warm_start_updates))[0].weights["student"]

    weights = jax.vmap(one)(keys, taken)
    return [jax.tree.map(lambda x, i=i: x[i], weights) for i in range(len(names))]


def transcript(trainer: Trainer, trajectory: Trajectory, lane: int = 0, episode: int = 0) -> str:
    """Markdown of one game as each seat read it, chat markers included."""
    texts = {}
    for name, of_family in trajectory.rows.items():
        policy_set, rows = trainer.policy_sets[name], jax.tree.map(lambda x: np.asarray(x[lane]), of_family)
        for row in np.flatnonzero(rows.episode == episode):
            prompt = rows.prompts.tokens[rows.prompt[row]][: rows.prompts.length[rows.prompt[row]]]
            text = policy_set.tokenizer.decode([*prompt.tolist(), *rows.tokens[row][: rows.length[row]].tolist()])
            who = policy_set.policies[rows.policy[row]]
            texts[rows.seat[row]] = f"Seat {rows.seat[row]} ({who})\n\n```\n{text}\n```\n"
    return "\n".join(texts[seat] for seat in sorted(texts))
