"""The optimiser of a recipe: any optax transformation as a function of the learning rate, with masks by weight paths.

  optimiser=optax.sgd
  optimiser=partial(optax.adamw, weight_decay=0.1, mask=all_but("*norm", "embed_tokens"))
  optimiser=partial(optax.contrib.muon, muon_weight_dimension_numbers=matrices("*_proj"))
  optimiser=freeze(optax.adam, "embed_tokens")
  optimiser={"seat_0": optax.sgd}        the other policies keep Adam

A path joins names by "/". Examples are "policy/layers/q_proj", for an adapter "policy/q_proj/a", and for a critic's
head "value/...".
"""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers

from jaxmarl_llm.training.update import Optimiser, OptimiserFn

RATE = jax.ShapeDtypeStruct((), jnp.float32)


@dataclass(frozen=True)
class Mask:
    """A mask for optax: (weights) -> the same tree of bools, true where a glob pattern matches one or more consecutive
    names of the path. `matched=False` inverts it.

    A call raises ValueError for a pattern without a match, unless optax has masked some weights.
    """

    patterns: tuple[str, ...]
    matched: bool = True  # False inverts the mask

    def __post_init__(self):
        if not self.patterns or not all(isinstance(pattern, str) for pattern in self.patterns):
            raise ValueError(f"A mask takes patterns of paths, as 'embed_tokens', at least one: got {self.patterns!r}.")

    def __call__(self, weights: Any) -> Any:
        paths = [_path(at) for at, _ in jax.tree.leaves_with_path(weights)]
        for pattern in self.patterns if not _partial(weights) else ():
            if not any(matches(path, pattern) for path in paths):
                near = _near(pattern, _names(paths))
                raise ValueError(f"No weights have a path like {pattern!r}{near} Paths are {', '.join(paths)}.")
        matches_any = lambda path: any(matches(path, pattern) for pattern in self.patterns)
        return jax.tree.map_with_path(lambda at, _: matches_any(_path(at)) is self.matched, weights)

    def __bool__(self) -> bool:  # `optax.selective_transform` calls no mask and would freeze everything
        raise ValueError("This place takes no function as a mask: write freeze(...) for weights that stay as they are.")


@dataclass(frozen=True)
class Matrices:
    """Muon's dimension numbers: (weights) -> the last two axes where the mask is true, None (Adam) elsewhere."""

    mask: Mask

    def __call__(self, weights: Any) -> Any:
        return jax.tree.map(lambda x, on: MuonDimensionNumbers(-1, -2) if on else None, weights, self.mask(weights))


@dataclass(frozen=True)
class Frozen:
    """A function of the learning rate that trains the weights where the mask is false. The other weights stay constant
    and have no optimiser state."""

    function: OptimiserFn
    mask: Mask

    def __post_init__(self):
        _check_rate_function(self.function)

    def __call__(self, rate: Any) -> optax.GradientTransformation:
        kinds = {True: optax.set_to_zero(), False: self.function(rate)}
        return optax.partition(kinds, self.mask)


def only(*patterns: str) -> Mask:
    """The mask of weights whose path has a part that matches a pattern, e.g. "embed_tokens" or "layers/*_proj".

    A part is one name or several, each whole: "layers" matches all weights under it. `*` matches any text.
    """
    return Mask(patterns)


def all_but(*patterns: str) -> Mask:
    """The complement of `only`, e.g. the weights that decay: `all_but("*norm")`."""
    return Mask(patterns, False)


def matrices(*patterns: str) -> Matrices:
    """`muon_weight_dimension_numbers` of `optax.contrib.muon`: Muon for the matrices at these paths, Adam for the rest.

    The weights of all layers are one array [layers, out, in]. Without these numbers Muon takes arrays of two axes only:
    the embeddings, and no layer.
    """
    return Matrices(Mask(patterns))


def freeze(function: OptimiserFn, *patterns: str) -> Frozen:
    """An optimiser that keeps the weights of `only(*patterns)` constant. Their gradients still count in the norm that
    `max_grad_norm` bounds. Decay in `function` does not reach them."""
    return Frozen(function, only(*patterns))


def check_optimiser(optimiser: Any, learners: Sequence[str]) -> None:
    """Raises ValueError unless `optimiser` is None, a function of the learning rate, or {policy that learns:
    function}."""
    for name, function in (optimiser if isinstance(optimiser, Mapping) else {None: optimiser}).items():
        if name is not None and name not in learners:
            raise ValueError(
                f"An optimiser is given for {name!r}{_near(str(name), learners)} Policies that learn are "
                f"{', '.join(learners)}."
            )
        if function is None and name is None:
            return
        _check_rate_function(function)
        _check_result(function)


def check_hparams(hparams: Mapping[str, Any], choices: Collection[str] = ()) -> None:
    """Raises ValueError for an hparam that is no number and no schedule, unless `choices` has its name. A learning
    rate, or a value of its schedule, must also be finite and not negative."""
    for name, value in hparams.items():
        if callable(value) or name in choices:
            continue
        if np.asarray(value).dtype.kind not in "biuf":
            raise ValueError(f"The hparam {name!r} is a number, or a function of the update's number: got {value!r}.")
        if name.partition("/")[0] == "learning_rate" and not all(0 <= x < math.inf for x in np.ravel(value)):
            raise ValueError(f"{name} must be finite and not negative, got {value}.")


def check_common(optimiser: Any) -> None:
    """Raises ValueError for optimisers by policy: policies that exchange optimiser states need one for all."""
    if isinstance(optimiser, Mapping):
        raise ValueError(f"Policies that exchange weights have one optimiser, not one for each of {[*optimiser]}.")


def check_steps(settings: Optimiser, weights: Mapping[str, Any]) -> None:
    """Raises ValueError unless each policy's optimiser can step these weights (abstract, by policy). It must need no
    input but the gradient and the weights. Its state must keep its shapes and depend on no learning rate."""
    for name, shapes in weights.items():
        if settings.function(name) is None:
            continue

        def init(rate: Any, weights: Any, name: str = name) -> Any:
            return settings.transform(name, rate).init(weights)

        state = jax.eval_shape(lambda w, name=name: settings.init_policy(name, w), shapes)
        jax.eval_shape(init, RATE, shapes)  # fails for optimisers that need a concrete rate
        try:
            rates = jax.ShapeDtypeStruct((2,), jnp.float32)
            jax.eval_shape(jax.vmap(init, in_axes=(0, None), out_axes=None), rates, shapes)
        except ValueError:
            raise ValueError(
                f"The optimiser of {name!r} keeps the learning rate in its state, where it would stay what it was in "
                "the first update: give the rate to the transformation itself, without optax.inject_hyperparams."
            ) from None
        try:
            new = jax.eval_shape(lambda *given, name=name: settings.step(name, *given), shapes, state, shapes, RATE)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"The optimiser of {name!r} makes no step of a gradient and weights: {error}") from error
        kept = jax.tree.map(lambda x: (x.shape, x.dtype), (shapes, state))
        if kept != jax.tree.map(lambda x: (x.shape, x.dtype), new):
            raise ValueError(f"The optimiser of {name!r} changes the shapes or types of its state: {state}.")


def _check_rate_function(function: Any) -> None:
    if isinstance(function, optax.GradientTransformation):
        raise ValueError(
            "An optimiser is a function of the learning rate, and this is a transformation with a rate already: "
            "write optimiser=optax.sgd for optax.sgd(0.1), and lambda rate: optax.chain(...) for a chain."
        )
    if not callable(function):
        raise ValueError(
            f"An optimiser is a function of the learning rate, as optax.sgd, or one by policy, not {function!r}."
        )


def _check_result(function: Callable) -> None:
    made: list[Any] = []

    def make(rate: Any) -> None:
        made.append(function(rate))

    try:
        jax.eval_shape(make, RATE)
    except TypeError as error:
        raise ValueError(f"The optimiser cannot be made of a learning rate that is traced: {error}") from error
    if not isinstance(made[0], optax.GradientTransformation):
        kind = "a number" if isinstance(made[0], jax.Array) else type(made[0]).__name__
        hint = "a schedule is given as the hparam learning_rate"
        if hasattr(made[0], "gradient_transformation"):  # optax.MultiSteps
            hint = "call its gradient_transformation()"
        raise ValueError(
            f"An optimiser gives a transformation of optax for a learning rate, as optax.sgd does, and not {kind}: "
            f"{hint}."
        )


def _path(at: Iterable[Any]) -> str:
    return jax.tree_util.keystr(tuple(at), simple=True, separator="/")


def matches(path: str, pattern: str) -> bool:
    """True if a part of the path, of one name or several, matches the pattern."""
    return fnmatch.fnmatchcase(f"/{path}/", f"*/{pattern.strip('/')}/*")


def _partial(weights: Any) -> bool:
    """True if optax has masked some weights: a pattern may then match no remaining path."""
    masked = lambda x: isinstance(x, optax.MaskedNode)
    return any(map(masked, jax.tree.leaves(weights, is_leaf=masked)))


def _names(paths: Iterable[str]) -> list[str]:
    """Every path and every name in one."""
    return [*dict.fromkeys(name for path in paths for name in (path, *path.split("/")))]


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, [*known], n=1)
    return f": did you mean {near[0]!r}?" if near else "."
