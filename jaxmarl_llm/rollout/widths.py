"""Rows cut to one of a few widths, so that an update of short games computes less padding.

Shapes: R rows, S tokens, M sampled tokens. Bucket i of `parts` has the widths S and M times (i + 1) / parts, rounded
up.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens


def bucket(rows: Rows, sampled: SampledTokens, parts: int) -> jax.Array:
    """int32 [R]: the smallest i for which `narrow` loses no token of a row."""
    needs = (rows.length, rows.tokens.shape[1]), (sampled.mask.sum(1), sampled.mask.shape[1])
    limits = [jnp.array([_width(size, i, parts) for i in range(parts)]) for _, size in needs]
    fits = [(n[:, None] > widths[None]).sum(1) for (n, _), widths in zip(needs, limits, strict=True)]
    return jnp.maximum(*fits).astype(jnp.int32)


def narrow(rows: Rows, of_sampled: Any, i: int, parts: int) -> tuple[Rows, Any]:
    """Rows [R, S] and a tree of leaves [R, M, ...] of their sampled tokens, cut to (i + 1) / parts of their widths.

    In the SampledTokens of the tree, the index of a lost token becomes the index of the last remaining token.
    """
    size, sampled = rows.tokens.shape[1], jax.tree.leaves(of_sampled)[0].shape[1]
    width, sampled_width = _width(size, i, parts), _width(sampled, i, parts)
    cut = {
        name: getattr(rows, name)[:, :width]
        for name in ("tokens", "loss_mask", "turn", "logp", "grammar_state", "tokens_left")
    }
    of_sampled = jax.tree.map(lambda x: x[:, :sampled_width] if x.ndim > 1 else x, of_sampled)
    inside = lambda x: x.replace(at=jnp.minimum(x.at, width - 1)) if isinstance(x, SampledTokens) else x
    return rows.replace(**cut), jax.tree.map(inside, of_sampled, is_leaf=lambda x: isinstance(x, SampledTokens))


def _width(size: int, i: int, parts: int) -> int:
    return -(-size * (i + 1) // parts)
