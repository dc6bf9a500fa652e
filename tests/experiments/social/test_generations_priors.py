"""Imitation of a script with errors, and the reading of traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import generations_priors as study
from jaxmarl_llm.tabular.donors import FINES, SHARES, images, random_networks


@pytest.fixture(scope="module")
def imitated():
    """(networks, their probabilities [agents, traces, acts]) after imitation of the reciprocal script with fines."""
    image = images(study.TRACES)

    @jax.jit
    def run(key):
        nets = study.imitate(random_networks(key), jnp.where(image == 0, FINES, image), 0.1)
        return nets, jax.nn.softmax(study.logits(nets, 3, 1.0)), study.reads(nets, 3, 1.0), study.reads(nets, 0, 1.0)

    return run(jax.random.key(3))


def test_networks_imitate_with_errors(imitated):
    _, chance, *_ = imitated
    image = images(study.TRACES)
    act = np.where(image == 0, FINES, image)
    right = np.take_along_axis(np.asarray(chance), act[None, :, None], 2)
    assert 0.6 < right.mean() < 0.95  # 0.1 of errors, a sixth of which is the act itself
    assert (chance.max(2) < 0.99).mean() > 0.9


def test_reads(imitated):
    _, chance, reads, blind = imitated
    image, known = images(study.TRACES), (study.TRACES < 5).all(1)
    gift = np.asarray(chance)[..., :5] @ np.asarray(SHARES)
    want = gift[:, known & (image == 4)].mean() - gift[:, known & (image == 0)].mean()
    assert float(reads) == pytest.approx(want, abs=1e-5) and want > 0.4
    assert float(blind) == pytest.approx(0, abs=1e-5)
