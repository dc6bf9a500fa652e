"""Cosines of policy gradients: a model's view of how alike the situations of a game are, before it learns.

A context is what a seat has read before it answers. Its gradient is that of the log-odds of two answers, with respect
to a new adapter. A step on one context moves another as far as their gradients' inner product. If a card changes the
gradient little, learning first moves the answers of all cards alike.

  python -m experiments.gallery.alike    # Kuhn poker with SmolLM2, three texts; under a minute on two CPU cores

The kernel of these inner products: Jacot et al. 2018, Neural Tangent Kernel, https://arxiv.org/abs/1806.07572
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gallery.small_poker import FAR, NEAR
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.past_policies import tree_of
from jaxmarl_llm.models import decoder, loading, lora
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.text.tokenizers import HFTokenizer

CHECK, FOLD = ("check", "bet"), ("fold", "call")
# {name: (information sets with J, Q and K, two answers)}
SITUATIONS = {"opens": ((0, 1, 2), CHECK), "after a check": ((3, 5, 7), CHECK), "after a bet": ((4, 6, 8), FOLD)}


def gradients(loaded: loading.Loaded, rows: Sequence[Sequence[int]], answers: Sequence[tuple[int, int]]) -> np.ndarray:
    """float64 [contexts, parameters]: gradients of log p(second answer) - log p(first), given the tokens of a row, with
    respect to the matrices b of a new adapter of rank 4. Those to its matrices a are 0."""
    setting, width = Lora(4, 8.0), -(-max(map(len, rows)) // 16) * 16
    new = lora.init(jax.random.key(0), loaded.params, setting)

    def log_odds(b: dict, row: jax.Array, last: jax.Array, answer: jax.Array) -> jax.Array:
        adapter = {name: {"a": new[name]["a"], "b": b[name]} for name in new}
        joined = lora.concatenate([adapter], [setting])
        hidden, _ = decoder.forward(loaded.config, loaded.params, row[None], adapters=joined)
        logits = decoder.logits(loaded.config, loaded.params, hidden[0, last])
        return logits[answer[1]] - logits[answer[0]]

    gradient = jax.jit(jax.grad(log_odds))
    b = {name: new[name]["b"] for name in new}
    result = []
    for row, answer in zip(rows, answers, strict=True):
        padded = jnp.asarray([*row, *[0] * (width - len(row))], jnp.int32)
        leaves = jax.tree.leaves(gradient(b, padded, jnp.int32(len(row) - 1), jnp.asarray(answer, jnp.int32)))
        result.append(np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves]))
    return np.stack(result)


def cosines(game: KuhnPoker, loaded: loading.Loaded) -> dict[str, np.ndarray]:
    """{situation: cosines [3] between the gradients with J and Q, J and K, Q and K}."""
    tokenizer = HFTokenizer(loaded.directory, loaded.config.vocab_size)
    rows, answers = list[list[int]](), list[tuple[int, int]]()
    for information_sets, (first, second) in SITUATIONS.values():
        for place in information_sets:
            rules, message = solve.text_of(tree_of(game), place).split("\n")
            rows.append(tokenizer.encode_marked(tokenizer.render(rules, [message])))
            answers.append((tokenizer.encode(first)[0], tokenizer.encode(second)[0]))
    vectors = gradients(loaded, rows, answers)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    alike = vectors @ vectors.T
    return {
        name: np.array([alike[3 * i, 3 * i + 1], alike[3 * i, 3 * i + 2], alike[3 * i + 1, 3 * i + 2]])
        for i, name in enumerate(SITUATIONS)
    }


if __name__ == "__main__":
    model = loading.load("smollm2")
    for title, game in (("near", NEAR), ("far", FAR), ("kuhn_poker", KuhnPoker())):
        for situation, (jq, jk, qk) in cosines(game, model).items():
            print(f"{title:10}  {situation:13}  J and Q {jq:.3f}  J and K {jk:.3f}  Q and K {qk:.3f}", flush=True)
