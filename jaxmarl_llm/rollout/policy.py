"""The one definition of a policy's distribution, shared by the sampler and the loss; and the value heads of critics.

The distribution is masked by the grammar, divided by the temperature, and shaped by a hook, if any (`Shaping`). Top-k,
top-p and min-p filter it in the order of transformers. A log-softmax in float32 over the remaining tokens follows.
Entropy, divergences and ratios refer to that distribution, also for the reference policy.
Shapes: R rows, M sampled tokens of a row, V vocabulary, N actions, D width, P policies of a set.
B episodes, T turns, A seats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxmarl_llm.devices import sharding, target
from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config, Remat
from jaxmarl_llm.models.lora import Adapters
from jaxmarl_llm.rl.losses import Scores
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, first_of_turn
from jaxmarl_llm.text.grammar import TokenTables

NEVER = -1e30  # the logit of a removed token: finite, so that no gradient is NaN; its probability is exactly 0


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a policy. The filters act in the order of the fields, each on the tokens kept so far."""

    temperature: float = 1.0  # 0: greedy, the most probable token; the lowest id among equals
    top_k: int = 0  # keeps the k most probable tokens; 0: off
    top_p: float = 1.0  # keeps the most probable tokens up to this mass; 1: off
    min_p: float = 0.0  # keeps tokens with at least this share of the highest probability; 0: off

    def __post_init__(self):
        # below 1e-6, logits over temperature could overflow or pass NEVER
        if not (self.temperature == 0 or 1e-6 <= self.temperature < math.inf):
            raise ValueError(f"temperature must be 0 (greedy) or a number from 1e-6 on, got {self.temperature}.")
        if not (0 <= self.top_k < 2**31 and self.top_k == int(self.top_k)):
            raise ValueError(f"top_k must be a whole number of tokens, 0 to switch it off, got {self.top_k}.")
        if not 1e-6 <= self.top_p <= 1:  # float32 may find no token for a smaller share
            raise ValueError(f"top_p must lie between 1e-6 and 1 (off), got {self.top_p}.")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must lie between 0 (off) and 1, got {self.min_p}.")


PLAIN = Sampling()

Shaping = Callable[[jax.Array], jax.Array]
"""A hook on the distribution that sampler and scorer share: logits float32 [..., V] -> logits of the same shape.

It acts after mask and temperature and before the filters, e.g. divides by temperatures of tokens, or adds values. It is
a pytree, since it is an argument of the compiled program, and its numbers are scalars:
`jax.tree_util.Partial(function, ...)`. Removed tokens stay removed."""


def sampling_of(sampling: Sampling | tuple[Sampling, ...], policy: int) -> Sampling:
    """The settings of one policy of a set."""
    return sampling if isinstance(sampling, Sampling) else sampling[policy]


class PerRow(NamedTuple):
    """Sampling settings for `distribution`: each a Python number for all rows, or an array [R]."""

    greedy: Any  # bool
    temperature: Any  # float, 1 where greedy
    top_k: Any  # int
    top_p: Any  # float
    min_p: Any  # float


def per_row(sampling: Sampling | Sequence[Sampling], policy: np.ndarray | jax.Array | None = None) -> PerRow:
    """The settings of every row, from one Sampling for all, or one for each of P policies and the row's policy int [R].

    A setting that is equal for all rows stays a Python number, so that unused filters are not compiled. For a NumPy
    `policy` only the policies that occur count; a traced `policy` is looked up at run time.
    Raises ValueError for several settings without a policy, or for fewer of them than a NumPy `policy` needs.
    """
    several = (sampling,) if isinstance(sampling, Sampling) else tuple(sampling)
    if len(several) != 1 and (policy is None or not several):
        raise ValueError(f"Give one Sampling, or one for each policy and the rows' policy; got {len(several)} without.")
    if isinstance(policy, np.ndarray) and len(several) > 1:
        if policy.max() >= len(several):
            raise ValueError(
                f"There are {len(several)} Samplings, but rows of policy {policy.max()}: give one for each."
            )
        used, policy = np.unique(policy, return_inverse=True)
        several = tuple(several[i] for i in used)

    def column(values: list, kind: type[bool] | type[int] | type[float]) -> Any:
        if len(set(values)) == 1:
            return kind(values[0])
        table: np.ndarray = np.asarray(values, {bool: np.bool_, int: np.int32, float: np.float32}[kind])
        return table[policy] if isinstance(policy, np.ndarray) else jnp.asarray(table)[policy]

    greedy = [s.temperature == 0 for s in several]  # a greedy row needs no filter, so none is compiled for it
    several = tuple(PLAIN if s.temperature == 0 else s for s in several)
    return PerRow(
        column(greedy, bool),
        column([s.temperature for s in several], float),
        column([s.top_k for s in several], int),
        column([s.top_p for s in several], float),
        column([s.min_p for s in several], float),
    )


def allowed(tables: TokenTables, state: jax.Array, legal: jax.Array, left: jax.Array) -> jax.Array:
    """bool [..., V]: tokens after which a legal action [..., N] can still be completed in the tokens left [...]."""
    after = jnp.asarray(tables.next)[state].astype(jnp.int32)  # [..., classes]
    distance = jnp.asarray(tables.distance)[after]  # [..., classes, N]
    need = jnp.min(jnp.where(legal[..., None, :], distance, jnp.iinfo(jnp.int16).max), -1)
    fits = need.astype(jnp.int32) <= left[..., None] - 1
    return jnp.take(fits, jnp.asarray(tables.token_class), axis=-1)


def distribution(
    logits: jax.Array,
    mask: jax.Array | None,
    sampling: Sampling | PerRow = PLAIN,
    keep: jax.Array | None = None,
    shaping: Shaping | None = None,
) -> jax.Array:
    """Log-probabilities float32 [..., V] of logits [R, ..., V]; -1e30 for a removed token, of probability exactly 0.

    The mask, bool [..., V], removes tokens first, then the filters do; the rest is renormalised. A filter is a
    threshold that keeps all tied values, as transformers' top-k does; its top-p keeps some of them. The set of kept
    tokens is a constant for the gradient.

    `keep`, token ids int32 [...], are exempt from the filters but not from the mask. A loss passes the sampled tokens.
    At sampling time they were kept anyway; after updates some may fall below a threshold. Their ratio then stays
    finite, with a gradient. A greedy row then has two candidates, weighted at temperature 1.
    """
    settings = sampling if isinstance(sampling, PerRow) else per_row(sampling)
    wide = lambda x: x if isinstance(x, int | float) else jnp.reshape(x, (-1, *(1,) * (logits.ndim - 1)))
    greedy, temperature, top_k, top_p, min_p = map(wide, settings)
    scaled = logits.astype(jnp.float32) / temperature
    if mask is not None:
        scaled = jnp.where(mask, scaled, NEVER)
    if shaping is not None:
        scaled = shaping(scaled)
        scaled = scaled if mask is None else jnp.where(mask, scaled, NEVER)
    size, fixed = logits.shape[-1], jax.lax.stop_gradient(scaled)
    unused = lambda x, off: isinstance(x, int | float) and x == off
    by_rank, by_mass = not unused(top_k, 0), not unused(top_p, 1)
    by_best, by_order = not unused(min_p, 0), not unused(greedy, False)
    if not (by_rank or by_mass or by_best or by_order):
        return jax.nn.log_softmax(scaled, -1)
    odds = jnp.exp(fixed - fixed.max(-1, keepdims=True))  # relative to the most probable token
    floor = jnp.float32(-jnp.inf)
    if by_rank:
        floor = _threshold(fixed, jnp.ones_like(fixed), jnp.where((top_k > 0) & (top_k < size), top_k, size))
    if by_mass:
        mass = jnp.where(fixed >= floor, odds, 0)
        narrower = _threshold(fixed, mass, top_p * mass.sum(-1, keepdims=True))
        floor = jnp.where(top_p < 1, jnp.maximum(floor, narrower), floor)
    kept = fixed >= checkpoint_name(floor, "floor")  # a loss saves it: its backward pass skips the search
    if by_best:
        kept &= odds >= min_p
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    if by_order:
        kept = jnp.where(greedy, ids == jnp.argmax(fixed, -1, keepdims=True), kept)
    if keep is not None:
        kept |= ids == keep[..., None]
    return jax.nn.log_softmax(jnp.where(kept, scaled, NEVER), -1)


def _threshold(x: jax.Array, weight: jax.Array, wanted: jax.Array) -> jax.Array:
    """The largest float32 t [..., 1] for which the weights of the entries x >= t sum to at least `wanted` [..., 1].

    Bisection over the bits of t is exact: as integers (all but the sign flipped if negative), the bits are ordered like
    the numbers. It takes 32 sums over the vocabulary, far cheaper than sorting, however many tokens each row keeps.
    With 8 rows of 49,152 on two cores it takes 2.4 ms against 65.
    """

    def number(bits):
        return jax.lax.bitcast_convert_type(jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits), jnp.float32)

    def halve(_, bounds):
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)  # low + high may overflow
        enough = jnp.sum(jnp.where(x >= number(middle), weight, 0), -1, keepdims=True) >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    infinity = jnp.full((*x.shape[:-1], 1), 0x7F800000, jnp.int32)
    return number(jax.lax.fori_loop(0, 32, halve, (-infinity, infinity))[0])


def sample(logp: jax.Array, uniform: jax.Array, block: int = 256) -> jax.Array:
    """Token int32 [R] from log-probabilities [R, V] at uniforms float32 [R] in [0, 1], by inverse CDF in two levels.

    A block is chosen first, then a token in it: Gumbel noise over a large vocabulary costs ten times as much. Rounding
    can move the target past the last sum, or to an entry without mass. The nearest earlier entry with mass is then
    taken.
    """
    rows, size = logp.shape
    mass = jnp.pad(jnp.exp(logp), ((0, 0), (0, -size % block))).reshape(rows, -1, block)

    def invert(mass, target):
        """(the first index whose running sum exceeds the target, moved to an entry with mass; the sum before it)."""
        running = jnp.cumsum(mass, -1)
        beyond = jnp.sum(running <= target[:, None], -1, keepdims=True)
        index = jnp.arange(mass.shape[-1])[None]
        index = jnp.max(jnp.where((mass > 0) & (index <= beyond), index, -1), -1)
        index = jnp.where(index < 0, jnp.argmax(mass > 0, -1), index)
        return index, jnp.take_along_axis(running - mass, index[:, None], -1)[:, 0]

    blocks = mass.sum(-1)
    target = uniform * blocks.sum(-1)
    chosen, before = invert(blocks, target)
    inside, _ = invert(jnp.take_along_axis(mass, chosen[:, None, None], 1)[:, 0], jnp.maximum(target - before, 0))
    return (chosen * block + inside).astype(jnp.int32)


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores rows of one model under any weights: scorer(params, rows, sampled) -> Scores; see `RowLayout.scorer`.

    `sampling` is one for all rows, or a tuple with one for each policy, looked up by rows.policy. At most `chunk`
    logits are in memory at once, or one position of every row if that is more. The default is `logits_at_once`.
    """

    config: Config
    tables: TokenTables | None  # None only if not `masked`
    sampling: Sampling | tuple[Sampling, ...] = PLAIN
    masked: bool = True
    remat: Remat = "none"
    chunk: int | None = None
    shaping: Shaping | None = None  # as in the rollout that sampled the rows

    def __call__(
        self,
        params: dict,
        rows: Rows,
        sampled: SampledTokens,
        adapters: Adapters | None = None,
        policy: jax.Array | None = None,
        value: dict | None = None,
        detach: bool = False,
    ) -> Scores:
        """Log-probabilities and entropies of the sampled tokens, and values with the head `value`.

        `policy` int32 [R] selects each row's adapter. The head is shared, or has leaves [R, ...] with one head a row.
        It reads the hidden states before the logits. With `detach` its gradient stops there.
        """

        def score(logp, token):
            return jnp.take_along_axis(logp, token[..., None], -1)[..., 0], entropy_of(logp)

        (logp, entropy), before = self._map_positions(score, params, rows, sampled, adapters, policy)
        before = jax.lax.stop_gradient(before) if detach else before
        values = None if value is None else _values(value, before, sampled)
        return Scores(jnp.where(sampled.mask, logp, 0), jnp.where(sampled.mask, entropy, 0), values)

    def alternatives(
        self,
        params: dict,
        rows: Rows,
        sampled: SampledTokens,
        k: int,
        adapters: Adapters | None = None,
        policy: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The distributions behind the sampled tokens: entropies and the K most probable tokens.

        Entropies float32 [R, M], tokens int32 [R, M, K] and their log-probabilities float32 [R, M, K]. K is `k`, or the
        size of the vocabulary if that is smaller.
        """

        def look(logp, token):
            return entropy_of(logp), *jax.lax.top_k(logp, min(k, self.config.vocab_size))

        (entropy, logp, token), _ = self._map_positions(look, params, rows, sampled, adapters, policy)
        return entropy, token, logp

    def _map_positions(
        self,
        function: Callable[[jax.Array, jax.Array], Any],
        params: dict,
        rows: Rows,
        sampled: SampledTokens,
        adapters: Adapters | None,
        policy: jax.Array | None,
    ) -> tuple[Any, jax.Array]:
        """function(log-probabilities [R, m, V], tokens [R, m]) for all M positions, in chunks of m positions.

        Returns its tree of leaves, [R, M, ...] each, and the hidden states [R, M, D] before the tokens.
        """
        params = {
            **params,
            **sharding.gather_weights({name: leaf for name, leaf in params.items() if name != "layers"}),
        }
        before = states_before(self.config, params, rows, sampled, adapters, policy, self.remat)
        settings = per_row(self.sampling, rows.policy)

        @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("floor"))
        def positions(inputs):
            before, token, state, legal, left = inputs
            mask = allowed(self.tables, state, legal, left) if self.masked and self.tables is not None else None
            logits = decoder.logits(self.config, params, before)
            return function(distribution(logits, mask, settings, keep=token, shaping=self.shaping), token)

        inputs = (before, sampled.token, sampled.grammar_state, sampled.legal, sampled.tokens_left)
        width = sampled.token.shape[1]
        chunk = logits_at_once() if self.chunk is None else self.chunk
        step = max(1, min(width, chunk // (len(rows.tokens) * self.config.vocab_size)))
        if step == width:
            results = positions(inputs)
        else:
            count = -(-width // step)
            pad = lambda x: jnp.pad(x, ((0, 0), (0, count * step - width), *((0, 0),) * (x.ndim - 2)))
            split = lambda x: pad(x).reshape(len(x), count, step, *x.shape[2:]).swapaxes(0, 1)
            join = lambda x: x.swapaxes(0, 1).reshape(x.shape[1], -1, *x.shape[3:])[:, :width]
            results = jax.tree.map(join, jax.lax.map(positions, jax.tree.map(split, inputs)))
        return results, before


def logits_at_once() -> int:
    """The number of logits in a chunk. On a CPU a chunk should fit the caches.

    An accelerator reads all vocabulary weights for every chunk, in the time that about two hundred tokens take to
    compute.
    """
    return 2**24 if target.platform() == "cpu" else 2**26


def entropy_of(logp: jax.Array) -> jax.Array:
    """Entropy in nats, [...], of log-probabilities [..., V]."""
    return -jnp.sum(jnp.exp(logp) * logp, -1)


def values(
    config: Config,
    params: dict,
    rows: Rows,
    sampled: SampledTokens,
    head: dict,
    adapters: Adapters | None = None,
    policy: jax.Array | None = None,
    remat: Remat = "none",
) -> jax.Array:
    """Values of a critic with its own trunk before each sampled token: float32 [R, M], 0 without a token."""
    return _values(head, states_before(config, params, rows, sampled, adapters, policy, remat), sampled)


def init_value(config: Config) -> dict:
    """A value head with zero weights: the first advantages are the returns themselves."""
    return {"w": jnp.zeros(config.hidden_size), "b": jnp.zeros(())}


def value(head: dict, hidden: jax.Array) -> jax.Array:
    """Values float32 [R, M] of final hidden states [R, M, D], with a shared head or one a row (leaves [R, ...])."""
    values = jnp.einsum("rmd,d->rm" if head["w"].ndim == 1 else "rmd,rd->rm", hidden.astype(jnp.float32), head["w"])
    return values + (head["b"] if head["b"].ndim == 0 else head["b"][:, None])


def by_turn(
    values: jax.Array, rows: Rows, sampled: SampledTokens, shape: tuple[int, int, int]
) -> tuple[jax.Array, jax.Array]:
    """(values of turns float32 [B, T, A], true for turns with a token bool [B, T, A]), from values of tokens [R, M].

    The value of a turn is the value before the seat's first sampled token. `shape` is (B, T, A). The inverse is
    `trajectory.per_token`.
    """
    first = first_of_turn(sampled)
    turn = jnp.where(first, sampled.turn, shape[1])  # past the end: dropped
    place = (rows.episode[:, None], turn, rows.seat[:, None])
    turns = jnp.zeros(shape, values.dtype).at[place].set(values, mode="drop")
    return turns, jnp.zeros(shape, bool).at[place].set(True, mode="drop")


def states_before(
    config: Config,
    params: dict,
    rows: Rows,
    sampled: SampledTokens,
    adapters: Adapters | None,
    policy: jax.Array | None,
    remat: Remat,
) -> jax.Array:
    """Final hidden states [R, M, D] of the token before each sampled token: the states that predict it."""
    hidden, prompts = decoder.forward(config, params, rows.tokens, rows.prompts, adapters, policy, remat)
    assert prompts is not None  # the rows have prompts
    ends = rows.prompts.length.reshape(len(prompts), -1)
    last = jnp.take_along_axis(prompts, ends[:, :, None] - 1, 1).reshape(-1, 1, prompts.shape[2])  # predicts the first
    before = jnp.concatenate([jnp.repeat(last, len(hidden) // len(last), 0), hidden[:, :-1]], 1)
    return jnp.take_along_axis(before, sampled.at[:, :, None], 1)


def _values(head: dict, before: jax.Array, sampled: SampledTokens) -> jax.Array:
    return jnp.where(sampled.mask, value(head, before), 0)
