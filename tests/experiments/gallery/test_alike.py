"""Gradients of log-odds with respect to a new adapter against finite differences."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.gallery.alike import SITUATIONS, gradients
from experiments.gallery.small_poker import FAR, NEAR
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.past_policies import tree_of
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.loading import Loaded
from jaxmarl_llm.models.lora import Lora
from tests.support.families import FAMILIES, weights

CONFIG = FAMILIES["llama2"]


def test_gradients_are_those_of_the_log_odds_of_two_answers():
    """A small step of the adapter along a gradient changes the log-odds by the inner product."""
    params, (row, answer), step = weights(CONFIG), ([3, 1, 4, 1, 5], (2, 7)), 1e-3
    found = gradients(Loaded(CONFIG, params, Path()), [row, row[:3]], [answer, answer])
    setting = Lora(4, 8.0)
    new = lora.init(jax.random.key(0), params, setting)
    shapes, treedef = jax.tree.flatten({name: new[name]["b"] for name in new})
    for place, read in enumerate((row, row[:3])):
        direction = found[place] / np.linalg.norm(found[place])
        cuts = np.split(direction, np.cumsum([x.size for x in shapes])[:-1])
        b = jax.tree.unflatten(treedef, [jnp.asarray(c.reshape(x.shape)) for c, x in zip(cuts, shapes, strict=True)])

        def log_odds(size, b=b, read=read):
            moved = {name: {"a": new[name]["a"], "b": (size * b[name]).astype(jnp.float32)} for name in new}
            joined = lora.concatenate([moved], [setting])
            hidden, _ = decoder.forward(CONFIG, params, jnp.asarray([read]), adapters=joined)
            scores = jax.nn.log_softmax(decoder.logits(CONFIG, params, hidden[0, -1]))
            return float(scores[answer[1]] - scores[answer[0]])

        slope = (log_odds(step) - log_odds(-step)) / (2 * step)
        assert slope == pytest.approx(np.linalg.norm(found[place]), rel=1e-2) and slope > 0


@pytest.mark.parametrize("game", [NEAR, FAR])
def test_information_sets_are_those_of_the_situation_with_each_card(game):
    messages = {"opens": "Check or bet?", "after a check": "They checked. Check or bet?"}
    messages["after a bet"] = "They bet. Fold or call?"
    for name, (places, _) in SITUATIONS.items():
        for place, card in zip(places, ("Weak.", "Fair.", "Strong."), strict=True):
            expected = f"Poker.\n{card} {messages[name]}" if game is NEAR else f"Poker. {card}\n{messages[name]}"
            assert solve.text_of(tree_of(game), place) == expected
