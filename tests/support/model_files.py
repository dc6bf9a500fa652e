"""Models in files, as tests compare them: what two trees hold, what a directory stores, logits of both sides."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import forward, logits
from jaxmarl_llm.models.hf_config import canonical
from tests.support.families import FAMILIES

CONFIG = canonical(FAMILIES["llama2"])


def their_logits(model, ids: np.ndarray, positions=slice(None)) -> np.ndarray:
    import torch

    with torch.no_grad():
        hidden = model.model(torch.tensor(np.asarray(ids))[None]).last_hidden_state[0, positions]
        scores, bound = model.lm_head(hidden), getattr(model.config, "final_logit_softcapping", None)
        return (scores if bound is None else bound * torch.tanh(scores / bound)).numpy()


@partial(jax.jit, static_argnums=0)
def hidden_states(config: Config, params: dict, ids: jax.Array) -> jax.Array:
    return forward(config, params, ids[None])[0][0]


def our_logits(config: Config, params: dict, ids: np.ndarray, positions=slice(None)) -> np.ndarray:
    hidden = hidden_states(config, params, jnp.asarray(ids, jnp.int32))
    return np.asarray(logits(config, params, hidden[positions]))


def off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, in the scale of the logits."""
    return float(np.abs(ours - theirs).max() / theirs.std())


def equal(left: dict, right: dict) -> bool:
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def bits(tensors: dict) -> dict:
    return {name: (value.dtype.name, value.shape, value.tobytes()) for name, value in tensors.items()}


def stored(directory: Path) -> dict:
    """Every tensor of a directory, as safetensors' own reader has it."""
    return bits({k: v for file in directory.glob("*.safetensors") for k, v in load_file(file).items()})


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
