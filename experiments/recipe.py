"""What the recipes share: a game, a team, a credit, a loss, and the programs that train them.

A method is a `Recipe`, an ablation a dict of them, {arm: replace(base, ...)}. Everything that a recipe holds is fixed
when its programs are compiled, but for `numbers`: those are traced, so that arms that differ in numbers alone share one
program with all their seeds. One run of one arm and one seed is a lane.

Shapes: B episodes, T turns, A seats; of one family R rows and M spoken tokens a row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm import adapters, credit, losses, model, policy, rewards, weights
from jaxmarl_llm.adapters import Lora
from jaxmarl_llm.environment import EVALUATE, POOL, START, UPDATE, key_for
from jaxmarl_llm.masked import Mean
from jaxmarl_llm.rollout import Rollout
from jaxmarl_llm.team import Family, Lineup, strings
from jaxmarl_llm.tokens import HFTokenizer, SymbolTokenizer
from jaxmarl_llm.trajectory import Episodes, Rows, Spoken, Trajectory, per_token, spoken
from jaxmarl_llm.update import Learners, Optimiser, update

Numbers = Mapping[str, jax.Array]


class Played(NamedTuple):
    """What credit is computed from."""

    episodes: Episodes
    rows: dict[str, Rows]  # by family
    said: dict[str, Spoken]  # by family
    values: dict[str, jax.Array]  # by family, float32 [R, M]: what the critic expects before each token; 0 without one
    value: jax.Array  # float32 [B, T, A]: the same before the first token of each turn
    groups: int

    @property
    def acts(self) -> tuple[jax.Array, jax.Array, int]:
        """What follows the reward in the arguments of a preset."""
        return self.episodes.acted, self.episodes.group, self.groups


class Credited(NamedTuple):
    """By turn, [B, T, A], or by token, [R, M] for each family."""

    advantage: jax.Array | dict[str, jax.Array]
    target: jax.Array | dict[str, jax.Array] | None = None  # what the critic should have expected
    memory: Any = ()  # what the credit of the next update needs of this one's


class Batch(struct.PyTreeNode):
    """What a policy said, and what came of it; its loss counts the tokens `where`."""

    said: Spoken
    advantage: jax.Array  # float32 [R, M]
    target: jax.Array  # float32 [R, M], of the critic
    expected: jax.Array  # float32 [R, M], by the critic when the game was played
    where: jax.Array  # bool [R, M]


Credit = Callable[[Played, Numbers, Any], Credited]
Loss = Callable[[policy.Scores, Batch, Numbers], losses.Loss]


def clipped(scores: policy.Scores, batch: Batch, numbers: Numbers) -> losses.Loss:
    """PPO's clipped surrogate, less the weighted entropy, plus the weighted error of the critic if there is one."""
    total, metrics = losses.ppo_clip(
        scores.logp, batch.said.behaviour, batch.advantage, batch.where,
        clip_low=numbers["clip_low"], clip_high=numbers["clip_high"],
    )  # fmt: skip
    bonus, more = losses.entropy_bonus(scores.entropy, batch.where)
    metrics |= more
    total = Mean(total.sum + numbers["entropy"] * bonus.sum, total.count)
    if scores.value is not None:
        error, more = losses.value_squared(scores.value, batch.target, batch.where)
        total = Mean(total.sum + numbers["value"] * error.sum, total.count)
        metrics |= more
    return total, metrics


def preset(
    played: Played, numbers: Numbers, memory: Any, *, of: Callable, traced: tuple[str, ...] = (), **options: Any
) -> Credited:
    """The credit of a preset of `credit.py` that needs rewards and acts alone, to be completed with `partial`: of the
    sum of the reward's components, with these options and the numbers named in `traced`. For one that takes roles, a
    memory or weights as well, a recipe writes its own (`spiral.running`, `mars.by_turn`)."""
    reward = rewards.weigh(played.episodes.reward, jnp.ones(played.episodes.reward.shape[-1]))
    return Credited(of(reward, *played.acts, **options, **{name: numbers[name] for name in traced}))


def returns(episodes: Episodes) -> dict[str, jax.Array]:
    """Mean return of an episode and seat, components added."""
    return {"return": episodes.reward.sum((1, 3)).mean()}


PAST = "past"
NUMBERS = {"learning_rate": 1e-3, "entropy": 0.01, "value": 0.5, "clip_low": 0.2, "clip_high": 0.2}


@dataclasses.dataclass(frozen=True)
class Recipe:
    game: Any
    seats: tuple[tuple[str, ...], ...]
    """Line-ups in turn: group g plays seats[g % len(seats)]. Who is no script of the game learns, but for `past`."""
    credit: Credit
    loss: Loss = clipped
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Beside or instead of NUMBERS; credit and loss are given all of them."""
    memory: Callable[[], Any] = tuple
    """What the first credit is given."""
    critic: bool = False
    """Every policy has a value head on its trunk."""
    prior: tuple[tuple[str, ...], ...] = ()
    """Line-ups of scripts whose play a tiny policy is first trained to imitate, each in the seats that it will take."""
    imitated: int = 100
    """Updates of that."""
    masked: bool = True
    """Only legal answers can be said; otherwise the game must say what an illegal one does (wrappers.Illegal)."""
    tokenizer: Callable[[Any], Any] = lambda game: SymbolTokenizer(strings(game))
    """Of a tiny policy, made from the game."""
    budget: int | tuple[int, ...] = 8
    """Most tokens of an utterance, of all grammars or each."""
    updates: int = 200
    groups: int = 16
    """Deals an update."""
    members: int = 8
    """Episodes of a deal."""
    epochs: int = 1
    minibatches: int = 1
    accumulate: int = 1
    measure: Callable[[Episodes], dict[str, jax.Array]] = returns
    """Metrics of what was played, a scalar each."""
    past: int = 0
    """Snapshots kept of the only learner: `past` in a line-up is one of them, drawn anew for every update."""
    past_every: int = 10
    """Updates between two of them."""
    judge: Callable[[Trainer], Callable[[dict], dict[str, float]]] | None = None
    """Made once; then of what one lane plays with, by family: metrics that need the host."""
    judge_every: int = 50
    """Updates between two judgements; the last is always judged."""
    real: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings that are different for a real model."""

    def check(self) -> None:
        """Raises ValueError for settings that cannot work."""
        counts = ("updates", "groups", "members", "epochs", "minibatches", "accumulate", "judge_every", "past_every")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.groups % len(self.seats):
            raise ValueError(
                f"{self.groups} groups do not divide over the {len(self.seats)} line-ups: choose a multiple."
            )
        if bool(self.past) != any(PAST in seats for seats in self.seats):
            raise ValueError(f"{self.past} past selves are kept, but the line-ups are {self.seats}.")
        if self.past and len(self.learners) > 1:
            raise ValueError(f"Past selves are those of one learner, but {', '.join(self.learners)} learn.")

    @property
    def structure(self) -> Recipe:
        """The recipe but for its numbers: arms that agree in it share a program."""
        return dataclasses.replace(self, numbers=dict.fromkeys(self.all_numbers, 0.0))

    @property
    def all_numbers(self) -> dict[str, float]:
        return {**NUMBERS, **self.numbers}

    @property
    def learners(self) -> tuple[str, ...]:
        names = dict.fromkeys(name for seats in self.seats for name in seats)
        return tuple(name for name in names if name not in self.game.scripts and name != PAST)


def for_model(recipe: Recipe) -> Recipe:
    """The same recipe, without past selves, as `real` says, and at a size at which a 135M model makes an update in well
    under a minute on two CPU cores."""
    recipe = dataclasses.replace(recipe, **recipe.real)
    seats = tuple(dict.fromkeys(seats for seats in recipe.seats if PAST not in seats))
    smallest = len(seats)
    return dataclasses.replace(
        recipe,
        seats=seats,
        past=0,
        groups=smallest * max(1, 2 // smallest),
        members=4,
        updates=3,
        epochs=1,
        minibatches=1,
        prior=(),
        judge=None,
        numbers={**recipe.numbers, "learning_rate": 3e-4},
    )


@dataclasses.dataclass(frozen=True)
class Study:
    """A published comparison: what is claimed, and the arms that show it. `experiments.ablate` runs it."""

    paper: str
    claim: str
    """A sentence, written before any run."""
    arms: Mapping[str, Recipe]
    metrics: tuple[str, ...]
    """What the table shows: metrics of the updates, over the last tenth of them, or `derived` ones."""
    stated: tuple[Mapping[str, Any], ...]
    """The directions claimed, as `experiments.results` reads them."""
    derived: Mapping[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]] = dataclasses.field(default_factory=dict)
    """Of an arm's curves {metric: [seeds, updates]}: a number for each seed, [seeds]."""


class Trainer:
    """The programs of one structure, run for lanes with numbers and a seed each.

    Raises ValueError, before anything compiles, for settings that cannot work.
    """

    def __init__(self, recipe: Recipe, numbers: Sequence[Mapping[str, float]], seeds: Sequence[int], name: str):
        recipe.check()
        self.recipe, self.learners, self.tiny = recipe, recipe.learners, name == "tiny"
        game, self.players = recipe.game, (*recipe.learners, *((PAST,) if recipe.past else ()))
        if self.tiny:
            tokens = recipe.tokenizer(game)
            config = tiny(tokens.vocab_size)
            self.base = None
            self.families = {name: Family(tokens, (name,), config, masked=recipe.masked) for name in self.players}
        else:
            loaded = weights.load(name)
            tokens = HFTokenizer(loaded.directory, loaded.config.vocab_size, options={"enable_thinking": False})
            self.base = loaded.params
            self.families = {
                "model": Family(tokens, self.players, loaded.config, Lora(32, 64.0, ("*",)), masked=recipe.masked)
            }
        seats = recipe.seats * (recipe.groups // len(recipe.seats))
        self.rollout = Rollout(game, self.families, Lineup(seats, recipe.members), recipe.budget)
        self.optimiser = Optimiser(epochs=recipe.epochs, minibatches=recipe.minibatches, accumulate=recipe.accumulate)
        self.trained = [name for name in self.families if name != PAST]
        openings = [len(self.rollout.sides[name].places) for name in self.trained]
        self.optimiser.check(openings)
        self.openings = math.gcd(*openings)
        self.numbers = {key: jnp.array([lane[key] for lane in numbers], jnp.float32) for key in recipe.all_numbers}
        self.keys = jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32))
        _, self.distinct, self.seed_of = np.unique(np.array(seeds), return_index=True, return_inverse=True)

    def lanes(self, function: Callable, *trees: Any) -> Any:
        """function(*trees of one lane) for every lane: tiny policies side by side, a real one alone."""
        if self.tiny:
            return jax.vmap(function)(*trees)
        one = function(*jax.tree.map(lambda x: x[0], trees))
        return jax.tree.map(lambda x: x[None], one)

    @partial(jax.jit, static_argnums=0)
    def _begin(self, base: Any) -> dict:
        # lanes of one seed start alike, and imitation is not cheap
        states = self.lanes(lambda key: self.start(base, key_for(key, START)), self.keys[self.distinct])
        return jax.tree.map(lambda x: x[self.seed_of], states)

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def _advance(self, base: Any, state: dict, number: jax.Array) -> tuple[dict, dict[str, jax.Array]]:
        step = lambda state, numbers, key: self.step(base, state, numbers, key, number)  # noqa: E731
        return self.lanes(step, state, self.numbers, self.keys)

    @partial(jax.jit, static_argnums=0)
    def _play(self, base: Any, state: dict) -> Trajectory:
        return self.lanes(
            lambda state, key: self.rollout(self.playing(base, self.now(state["learners"])), key_for(key, EVALUATE)),
            state,
            self.keys,
        )

    def begin(self) -> dict:
        """The states [lanes] before training."""
        return self._begin(self.base)

    def advance(self, state: dict, number: int) -> tuple[dict, dict[str, jax.Array]]:
        """One update of every lane: the new states, and the metrics [lanes]. The old states are used up."""
        return self._advance(self.base, state, jnp.int32(number))

    def play(self, state: dict) -> Trajectory:
        """Games of every lane as it now plays, leaves [lanes, ...]."""
        return self._play(self.base, state)

    def lane(self, state: dict, number: int) -> dict[str, dict]:
        """What the policies of one lane play with, by family, as a rollout takes it."""
        return self.playing(self.base, self.now(jax.tree.map(lambda x: x[number], state["learners"])))

    # one lane

    def start(self, base: Any, key: jax.Array) -> dict:
        """What training changes, and what a checkpoint holds."""
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(len(self.learners)))
        families = [self.families[name if self.tiny else "model"] for name in self.learners]
        config = families[0].config
        assert config is not None  # learners are no scripts
        if base is not None:
            first = [adapters.init(keys[i], base, family.loras[i]) for i, family in enumerate(families)]
        elif self.recipe.prior:
            first = imitate(self.recipe, families[0], self.learners, keys)
        else:
            first = [model.init(config, key) for key in keys]
        learned = {name: {"policy": weights} for name, weights in zip(self.learners, first, strict=True)}
        if self.recipe.critic:
            learned = {name: own | {"value": policy.init_value(config)} for name, own in learned.items()}
        state = {"learners": self.optimiser.init(learned), "memory": self.recipe.memory()}
        if self.recipe.past:
            own = learned[self.learners[0]]
            state["past"] = jax.tree.map(lambda x: jnp.repeat(x[None], self.recipe.past, 0), own)
        return state

    def now(self, learners: Learners) -> dict:
        """What everybody's weights are, past selves being like the present one."""
        own = learners.weights
        return own | ({PAST: own[self.learners[0]]} if self.recipe.past else {})

    def draw(self, state: dict, event: jax.Array, number: jax.Array) -> dict:
        """The past self of an update, if there are any."""
        if not self.recipe.past:
            return {}
        taken = jnp.clip(1 + number // self.recipe.past_every, 1, self.recipe.past)
        at = jax.random.randint(key_for(event, POOL), (), 0, taken)
        return {PAST: jax.tree.map(lambda x: x[at], state["past"])}

    def keep(self, state: dict, number: jax.Array) -> dict:
        """The state, with a snapshot if one is due; the oldest gives way."""
        if not self.recipe.past:
            return state
        slot = (1 + number // self.recipe.past_every) % self.recipe.past
        due = (number + 1) % self.recipe.past_every == 0
        put = lambda pool, new: pool.at[slot].set(jnp.where(due, new, pool[slot]))  # noqa: E731
        return state | {"past": jax.tree.map(put, state["past"], state["learners"].weights[self.learners[0]])}

    def playing(self, base: Any, learned: dict) -> dict[str, dict]:
        """What a rollout plays with."""
        if base is None:
            return {name: {"params": learned[name]["policy"]} for name in self.players}
        return {"model": {"params": base, "adapters": tuple(learned[name]["policy"] for name in self.players)}}

    def step(
        self, base: Any, state: dict, numbers: Numbers, key: jax.Array, number: jax.Array
    ) -> tuple[dict, dict[str, jax.Array]]:
        """Plays, credits, learns: the state after one update, and its metrics."""
        event = key_for(key, UPDATE, number)
        past = self.draw(state, event, number)
        everyone = state["learners"].weights | past
        trajectory = self.rollout(self.playing(base, everyone), event)
        played = self.played(base, everyone, trajectory)
        credited = self.recipe.credit(played, numbers, state["memory"])
        batch = {name: self.batch(name, played, credited) for name in self.trained}
        loss = partial(self.loss, base, numbers, past)
        learners, metrics = update(
            self.optimiser, loss, state["learners"], batch, self.openings, numbers["learning_rate"], event
        )
        metrics |= self.recipe.measure(played.episodes) | self.measures(trajectory, credited)
        return self.keep({**state, "learners": learners, "memory": credited.memory}, number), metrics

    def played(self, base: Any, learned: dict, trajectory: Trajectory) -> Played:
        episodes = trajectory.episodes
        said = {
            name: spoken(rows, episodes.legal, self.rollout.most_spoken(name)) for name, rows in trajectory.rows.items()
        }
        values = {name: jnp.zeros(one.where.shape) for name, one in said.items()}
        batch, turns, agents = episodes.acted.shape
        value = jnp.zeros((batch, turns, agents))
        if self.recipe.critic:
            for name, rows in trajectory.rows.items():
                expected = self.scores(base, learned, name, rows, said[name])[0].value
                assert expected is not None  # every policy has a head
                values[name] = expected
                value += policy.by_turn(expected, rows, said[name], (batch, turns, agents))[0]
        return Played(episodes, trajectory.rows, said, values, value, self.recipe.groups)

    def scores(
        self, base: Any, learned: dict, name: str, rows: Rows, said: Spoken
    ) -> tuple[policy.Scores, dict[str, jax.Array]]:
        """What a family says to its spoken tokens, each row's policy for itself; and by policy which are its own."""
        family = self.families[name]
        assert family.config is not None
        params, joined, which = learned[name]["policy"] if base is None else base, None, None
        if base is not None:
            joined = adapters.concatenate([learned[own]["policy"] for own in family.policies], family.loras)
            which = rows.policy if len(family.policies) > 1 else None
        heads = [learned[own]["value"] for own in family.policies if "value" in learned[own]]
        head = jax.tree.map(lambda *x: jnp.stack(x)[rows.policy], *heads) if which is not None and heads else None
        scores = policy.score(
            family.config, params, rows, said, self.rollout.sides[name].tables, joined, which,
            masked=family.masked, value=head or next(iter(heads), None), remat="none" if base is None else "dots",
        )  # fmt: skip
        return scores, {own: said.where & (rows.policy == i)[:, None] for i, own in enumerate(family.policies)}

    def batch(self, name: str, played: Played, credited: Credited) -> dict[str, Any]:
        rows, said = played.rows[name], played.said[name]

        def by_token(x: Any) -> jax.Array:
            return x[name] if isinstance(x, dict) else per_token(x, rows, said)

        advantage, expected = by_token(credited.advantage), played.values[name]
        target = expected if credited.target is None else by_token(credited.target)
        return {"rows": rows, "batch": Batch(said, advantage, target, expected, said.where)}

    def loss(
        self, base: Any, numbers: Numbers, past: dict, learned: dict, batch: dict
    ) -> tuple[dict[str, Mean], dict[str, Mean]]:
        """Each policy's own loss, over what it said."""
        totals: dict[str, Mean] = {}
        metrics: dict[str, Mean] = {}
        for name, part in batch.items():
            scores, places = self.scores(base, learned | past, name, part["rows"], part["batch"].said)
            for own, where in places.items():
                if own == PAST:
                    continue
                totals[own], more = self.recipe.loss(scores, part["batch"].replace(where=where), numbers)
                metrics |= {f"{metric}/{own}": mean for metric, mean in more.items()}
        return totals, metrics

    def measures(self, trajectory: Trajectory, credited: Credited) -> dict[str, jax.Array]:
        episodes = trajectory.episodes
        wrong = (episodes.acted & ~episodes.valid).sum()
        measures = {"invalid": wrong / jnp.maximum(episodes.acted.sum(), 1)}
        if not isinstance(credited.advantage, dict):
            statistics = credit.statistics(credited.advantage, episodes.acted, episodes.group, self.recipe.groups)
            for name, values in statistics.items():
                measures |= {f"{name}/seat_{seat}": values[seat] for seat in range(len(values))}
        return measures


def tiny(vocabulary: int) -> model.Config:
    """Two layers of width 32."""
    return model.Config(vocabulary, 32, 64, 2, 4, 4, 8, max_position_embeddings=256)


def imitate(recipe: Recipe, student: Family, names: Sequence[str], keys: jax.Array) -> list[dict]:
    """Supervised training of random policies on scripted dialogues, each on what is said in the seats it will take: a
    format, and the habits of the scripts. `student` is like the family of every policy. Their weights after it."""
    game, config = recipe.game, student.config
    assert config is not None
    taken = jnp.array([[any(seats[a] == name for seats in recipe.seats) for a in range(game.agents)] for name in names])
    scripts = tuple(dict.fromkeys(script for seats in recipe.prior for script in seats))
    lineup = Lineup(recipe.prior * -(-8 // len(recipe.prior)), 8)
    teacher = Rollout(game, {"teacher": Family(student.tokenizer, scripts)}, lineup, recipe.budget)
    tables, optimiser = teacher.sides["teacher"].tables, Optimiser()

    def one(key: jax.Array, taken: jax.Array) -> dict:
        def loss(weights, batch):
            rows, said = batch
            scores = policy.score(config, weights["student"], rows, said, tables)
            return losses.cross_entropy(scores.logp, said.where & taken[rows.seat][:, None])

        def step(learners: Learners, number: jax.Array):
            event = key_for(key, UPDATE, number)
            played = teacher({"teacher": {}}, event)
            rows = played.rows["teacher"]
            batch = rows, spoken(rows, played.episodes.legal, teacher.most_spoken("teacher"))
            rate = 3e-3 * (1 - number / recipe.imitated)
            return update(optimiser, loss, learners, batch, len(rows.openings.tokens), rate, event)[0], None

        learners = optimiser.init({"student": model.init(config, key_for(key, START))})
        return jax.lax.scan(step, learners, jnp.arange(recipe.imitated))[0].weights["student"]

    weights = jax.vmap(one)(keys, taken)
    return [jax.tree.map(lambda x, i=i: x[i], weights) for i in range(len(names))]


def transcript(trainer: Trainer, trajectory: Trajectory, lane: int = 0, episode: int = 0) -> str:
    """Markdown of one game as each seat read it, chat markers included."""
    texts = {}
    for name, family in trainer.families.items():
        rows = jax.tree.map(lambda x: np.asarray(x[lane]), trajectory.rows[name])
        for row in np.flatnonzero(rows.episode == episode):
            opening = rows.openings.tokens[rows.opening[row]][: rows.openings.length[rows.opening[row]]]
            text = family.tokenizer.decode([*opening.tolist(), *rows.tokens[row][: rows.length[row]].tolist()])
            who = family.policies[rows.policy[row]]
            texts[rows.seat[row]] = f"Seat {rows.seat[row]} ({who})\n\n```\n{text}\n```\n"
    return "\n".join(texts[seat] for seat in sorted(texts))
