"""Grammars, ways of sampling, and the distribution of one row by a loop."""

from functools import cache

import numpy as np
from scipy.special import log_softmax

from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.text.grammar import Choice, Free, Literal, TokenTables, lift

BYTES = (*(bytes([b]) for b in b"Igo hldme.\n!"), b"go", b" home", b"hold", b"ld.", b"\n\n", b"", None, None)
END = len(BYTES) - 1
GRAMMARS = (
    (Literal("I "), Choice(((0, "hold"), (1, "go"), (2, "go home")))),
    (Choice(((2, "hold"), (1, "hole"))), Literal("."), Free(b"\n")),
    (Free(b"Igo"), Literal("me")),
)


# no utterance continues another one, so these need no end token
SELF_ENDING = ((Choice(((0, "go."), (1, "hold."), (3, "home!"))),), (Literal("old"), Choice(((1, "!"), (2, ".")))))
SAMPLINGS = (
    Sampling(),
    Sampling(0.7, top_k=3),
    Sampling(top_p=0.83),
    Sampling(1.3, min_p=0.1),
    Sampling(0),
    Sampling(0.5, top_k=5, top_p=0.91, min_p=0.02),
    Sampling(2.0, top_k=10_000, top_p=0.96),
    Sampling(top_k=1),
    Sampling(top_p=1e-6),
    Sampling(0.9, min_p=1.0),
    Sampling(0, top_k=2, top_p=0.5, min_p=0.5),
)


def by_loop(logits: np.ndarray, mask: np.ndarray, how: Sampling, keep: int | None = None) -> np.ndarray:
    """Log-probabilities float64 [V] of one row, minus infinity where removed: one filter after the other."""
    scaled = logits.astype(np.float32) / np.float32(how.temperature or 1)
    odds = np.exp(np.where(mask, scaled.astype(np.float64) - scaled[mask].max(), -np.inf))
    left = [v for v in range(len(logits)) if mask[v]]
    if how.temperature == 0:
        left = [max(left, key=lambda v: (logits[v], -v))]
    else:
        if how.top_k:
            last = sorted((scaled[v] for v in left), reverse=True)[: how.top_k][-1]
            left = [v for v in left if scaled[v] >= last]
        if how.top_p < 1:
            wanted, mass = how.top_p * sum(odds[v] for v in left), 0.0
            for value in sorted({scaled[v] for v in left}, reverse=True):
                if mass >= wanted:
                    break
                mass, last = mass + sum(odds[v] for v in left if scaled[v] == value), value
            left = [v for v in left if scaled[v] >= last]
        if how.min_p:
            left = [v for v in left if odds[v] >= how.min_p * max(odds[v] for v in left)]
    if keep is not None and mask[keep]:
        left = sorted({*left, keep})
    logp = np.full(len(logits), -np.inf)
    logp[left] = log_softmax(scaled[left].astype(np.float64))
    return logp


@cache
def tables_with(end: bool) -> TokenTables:
    return lift(GRAMMARS, BYTES, END) if end else lift(SELF_ENDING, BYTES, None)
