"""Static parts of a recipe, made before anything compiles: models, policy sets, rollout, optimiser. Wrong settings
raise errors here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal

import jax

from jaxmarl_llm.devices import compiling, sharding, surroundings
from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.environments.bridges.python_games import HostGame
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.models import decoder, loading, lora
from jaxmarl_llm.models.config import Config, Dtypes
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy import PLAIN, Sampling, init_value
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.text.tokenizers import HFTokenizer
from jaxmarl_llm.training.frozen import seat_frozen
from jaxmarl_llm.training.host_games import host_rollout
from jaxmarl_llm.training.optimiser import check_steps
from jaxmarl_llm.training.recipe import DEFAULT_BUDGET, SNAPSHOT, Parts, Recipe
from jaxmarl_llm.training.records import LORA, NEW, TINY_SIZE, Common, TinySize
from jaxmarl_llm.training.update import Optimiser

TINY, TINY_BASE = "tiny", "tiny_base"


@dataclasses.dataclass(frozen=True)
class Model:
    """The model that a policy starts from, and its sampling."""

    source: str = TINY
    """`tiny`: random weights, all trained. `tiny_base`: random weights that do not learn, with an adapter for each
    policy, so that a hundred policies are one policy set. Any other text is an argument of `loading.load`."""
    lora: Lora | None = LORA
    """The adapter; None trains all weights, as for every tiny policy."""
    sampling: Sampling = PLAIN
    dtype: str = "float32"
    """The type of products and cache, and of a pretrained model's frozen weights; trained weights are float32."""
    attention: Literal["plain", "fused"] = "plain"
    """The attention of a pretrained model, as in `config.Dtypes`."""

    size: TinySize | None = dataclasses.field(default=None, metadata=NEW)
    """The size of a tiny policy; None is the recipe's."""

    def __post_init__(self):
        if self.size is not None and self.source not in (TINY, TINY_BASE):
            raise ValueError(f"size is of tiny policies, and {self.source} has its own: leave it out.")

    @property
    def adapted(self) -> bool:
        return self.source != TINY and self.lora is not None


def setup(recipe: Recipe, models: str | Mapping[str, Model], mesh: Any, load: Callable[..., loading.Loaded]) -> Parts:
    """The parts of a recipe, with models loaded onto the mesh. `models` is one source for all policies, or {policy:
    Model}.

    Raises ValueError for settings that cannot work.
    """
    surroundings.check_numbers()
    recipe.check()
    on_host = isinstance(recipe.game, HostGame)
    if not on_host:
        check_game(recipe.game)
    chosen = (
        dict.fromkeys(recipe.learners, Model(models, recipe.lora, recipe.sampling))
        if isinstance(models, str)
        else dict(models)
    )
    chosen |= {name: chosen[learner] for name, (_, learner) in recipe.past.items()}
    policy_sets: dict[str, PolicySet] = {}
    base: dict[str, dict] = {}
    together: dict[tuple[str, str], list[str]] = {}  # by source; without adapter also by policy
    for name, model in chosen.items():
        together.setdefault((model.source, "" if model.adapted else name), []).append(name)
    load = cache(partial(load, sharding=partial(sharding.leaf, mesh=mesh)))
    for (source, policy), names in together.items():
        if len({(chosen[name].dtype, chosen[name].attention, chosen[name].size) for name in names}) > 1:
            raise ValueError(
                f"Policies with adapters on {source} share its weights: give them one dtype, attention and size."
            )
        policy_sets[policy or source], params = _policy_set(
            recipe, [chosen[name] for name in names], tuple(names), load
        )
        if params is not None:
            base[policy or source] = sharding.place(params, mesh) if source == TINY_BASE else params
    if base and isinstance(recipe.warm_start, Recipe | Common):
        raise ValueError("Only tiny policies begin where another recipe ended, or as copies of one that imitates.")
    check_sizes(recipe, policy_sets)
    first = chosen[recipe.learners[0]]
    dtypes = Dtypes(first.dtype, first.dtype, first.dtype)
    seat_frozen(recipe, policy_sets, base, load, dtypes, mesh, compiled=not on_host)
    seats = recipe.seats * (recipe.groups // len(recipe.seats))
    lineup = Lineup(seats, recipe.group_size)
    rollout: Any
    if on_host:
        rollout = host_rollout(recipe, policy_sets, lineup)
    else:
        rollout = Rollout(recipe.game, policy_sets, lineup, recipe.budget)
    parts = Parts(recipe, policy_sets, base, rollout, optimiser_of(recipe))
    parts.optimiser.check([len(rollout.layouts[name].assignments) for name in parts.learner_sets])
    check_mesh(rollout, mesh)
    if recipe.optimiser is not None:
        check_steps(parts.optimiser, learner_shapes(parts))
    return parts


def optimiser_of(recipe: Recipe) -> Optimiser:
    """The `Optimiser` with the recipe's function, epochs, batches and norm bound."""
    batching = {name: getattr(recipe, name) for name in ("epochs", "minibatches", "grad_accumulation")}
    return Optimiser(recipe.max_grad_norm, **batching, make=recipe.optimiser)


def learner_shapes(parts: Parts) -> dict[str, Any]:
    """The abstract weights of every learner: {"policy": all weights or the adapter, "value": a critic's head}."""

    def weights(key: jax.Array, base: dict) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name in parts.learners:
            home = parts.policy_set_of[name]
            policy_set = parts.policy_sets[home]
            assert policy_set.config is not None  # learners are no scripts
            if policy_set.lora:
                policy_weights = lora.init(key, base[home], policy_set.loras[policy_set.policies.index(name)])
            else:
                policy_weights = base[home] if home in base else decoder.init(policy_set.config, key)
            result[name] = {"policy": policy_weights}
            if parts.recipe.critic:
                result[name]["value"] = init_value(policy_set.config)
        return result

    return jax.eval_shape(weights, jax.random.key(0), parts.base)


def parts_of(parts: Parts, recipe: Recipe) -> Parts:
    """The parts of another recipe with the same learners and without past selves. Game, line-ups, losses and optimiser
    are the recipe's; models, sampling and vocabulary are from `parts`."""
    surroundings.check_numbers()
    recipe.check()
    check_game(recipe.game)
    optimiser, rollout = optimiser_of(recipe), rollout_of(parts, recipe)
    optimiser.check([len(layout.assignments) for layout in rollout.layouts.values()])
    sets = rollout.policy_sets
    return dataclasses.replace(parts, recipe=recipe, policy_sets=sets, rollout=rollout, optimiser=optimiser)


def rollout_of(parts: Parts, recipe: Recipe) -> Rollout:
    """The rollout of another recipe's games with the models of `parts`."""
    lineup = Lineup(recipe.seats * (recipe.groups // len(recipe.seats)), recipe.group_size)
    sets = {
        name: players
        for name, players in parts.policy_sets.items()
        if set(players.policies) & {*recipe.learners, *recipe.frozen}
    }
    return Rollout(recipe.game, sets, lineup, recipe.budget)


def check_mesh(rollout: Any, mesh: Any) -> None:
    """Raises ValueError unless the rows of every policy set divide over the mesh."""
    for layout in rollout.layouts.values():
        sharding.check_groups(mesh, len(layout.assignments))


def playing_mesh(parts: Parts, mesh: Any, axes: str) -> Any:
    """The mesh of the devices after `mesh` that play ahead, from a text as `sharding.mesh` reads it; None for "".

    Raises ValueError for a recipe that no rollout mesh can play, and for a game in plain Python in several processes.
    """
    recipe = parts.recipe
    if isinstance(recipe.game, HostGame) and (axes or jax.process_count() > 1):
        raise ValueError("A game in plain Python is played by one process, without a rollout mesh.")
    if not axes:
        return None
    if recipe.past or recipe.arrange or recipe.step is not None or jax.process_count() > 1:
        raise ValueError(
            "A rollout mesh takes one process, and a recipe without snapshots and other past selves, arrangement or a "
            "step of its own."
        )
    playing = sharding.mesh(axes, after=mesh.size)
    check_mesh(parts.rollout, playing)
    return playing


def check_sizes(recipe: Recipe, policy_sets: Mapping[str, PolicySet]) -> None:
    """Raises ValueError if tiny policies that begin as copies of one differ in size."""
    sizes = {(x.config.hidden_size, x.config.num_hidden_layers) for x in policy_sets.values()
             if x.config is not None and not x.loras}  # fmt: skip
    if recipe.warm_start and not isinstance(recipe.warm_start, Recipe) and len(sizes) > 1:
        raise ValueError("Tiny policies imitate as one policy of one size before training: give all models one size.")


def tiny(vocabulary: int, size: TinySize = TINY_SIZE) -> Config:
    """The configuration of a tiny policy, with 512 positions."""
    width = size.width
    return Config(vocabulary, width, 2 * width, size.layers, 4, 4, width // 4, max_position_embeddings=512)


def small(policy_sets: Mapping[str, PolicySet]) -> bool:
    """True if no policy is larger than a tiny one; optimised compilation then costs more time than it saves."""
    return all(
        policies.config is None or policies.config.hidden_size <= TINY_SIZE.width for policies in policy_sets.values()
    )


def jit_rollout(rollout: Rollout) -> Callable[..., Trajectory]:
    """A compiled rollout with the same arguments; every process can read its result."""
    level = OFTEN if small(rollout.policy_sets) else None
    return jax.jit(lambda *given: sharding.everywhere(rollout(*given)), compiler_options=compiling.options(level))


def _policy_set(
    recipe: Recipe, models: Sequence[Model], names: tuple[str, ...], load: Callable
) -> tuple[PolicySet, dict | None]:
    sampling, masked = tuple(model.sampling for model in models), recipe.masked
    loras = tuple(model.lora for model in models if model.lora is not None) or None
    if models[0].source in (TINY, TINY_BASE):
        tokens = recipe.tokenizer(recipe.game)
        dtypes = Dtypes("float32", models[0].dtype, models[0].dtype)
        config = dataclasses.replace(tiny(tokens.vocab_size, models[0].size or recipe.size), dtypes=dtypes)
        if models[0].source == TINY:
            return PolicySet(tokens, names, config, None, sampling, masked), None
        if loras is None:
            raise ValueError("The weights of tiny_base do not learn: give its policies adapters, or begin with tiny.")
        params = decoder.init(config, jax.random.key(0))
        params["embed_tokens"] *= 0.25 / 0.02  # at a decoder's usual scale no adapter could make an answer certain
        return PolicySet(tokens, names, config, loras, sampling, masked), params
    dtype = models[0].dtype
    stored = dtype if models[0].adapted else "float32"  # bfloat16 would round the steps away
    loaded = load(models[0].source, stored)
    tokens = HFTokenizer(loaded.directory, loaded.config.vocab_size, options={"enable_thinking": False})
    config = dataclasses.replace(loaded.config, dtypes=Dtypes(stored, dtype, dtype, models[0].attention))
    return PolicySet(tokens, names, config, loras, sampling, masked), loaded.params


def for_pretrained(recipe: Recipe) -> Recipe:
    """The recipe for a pretrained model: without snapshots, with the settings of `pretrained`, at a small size. A 135M
    model makes an update of this size in well under a minute on two CPU cores.

    Without a budget of its own, symbols become tokens: 1 becomes 4, and more than DEFAULT_BUDGET one more, which ends
    the message."""
    settings = {name: x for name, x in recipe.pretrained.items() if name != "hparams"}
    snapshots = {name for name, (kind, _) in recipe.past.items() if kind == SNAPSHOT}
    seats = settings.get("seats", tuple(dict.fromkeys(seats for seats in recipe.seats if not snapshots & {*seats})))
    if len(seats) > 1 and "seats" not in settings:
        seats = tuple(line_up for line_up in seats for _ in range(Extras(recipe.game).group_period))
    if not seats:
        raise ValueError(
            "Every line-up has a snapshot, which a pretrained model has none of: give pretrained['seats']."
        )
    few: dict[str, Any] = {"groups": len(seats) * max(1, 2 // len(seats)), "group_size": 4, "updates": 3}
    few |= {"epochs": 1, "minibatches": 1, "grad_accumulation": 1, "remat": "dots", "warm_start": ()}
    few |= {"snapshots": None, "evaluate": None}
    if recipe.budget == 1:  # a symbol of a tiny policy is several tokens of a model
        few["budget"] = 4
    elif isinstance(recipe.budget, int) and recipe.budget > DEFAULT_BUDGET:
        few["budget"] = recipe.budget + 1  # sized for the longest answer in symbols; a model also ends its message
    hparams = {name: x for name, x in recipe.hparams.items() if not name.startswith("learning_rate")}
    hparams |= {"learning_rate": 3e-4, **recipe.pretrained.get("hparams", {})}
    return dataclasses.replace(recipe, **{**few, **settings, "seats": seats, "hparams": hparams})
