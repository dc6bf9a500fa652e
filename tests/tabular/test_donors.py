"""The donor game and images against loops in plain Python, and who meets whom."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.tabular import donors


def test_everyone_meets_the_other_half_twice_and_nobody_else():
    met = donors.meetings().reshape(-1, 2)
    assert len(met) == 72 and len({tuple(pair) for pair in met.tolist()}) == 72  # once in each role
    assert all((a < 6) != (b < 6) for a, b in met.tolist())
    assert all(sorted(pairs.ravel().tolist()) == list(range(12)) for pairs in donors.meetings())


@pytest.mark.parametrize(("steps", "fine"), [(3, 0.0), (1, 1.0)])
def test_a_game_against_a_loop(steps, fine):
    """Nets that are all but certain of what they do, so that both draw the same."""
    nets = donors.random_networks(jax.random.key(4))
    nets = {**nets, "out": 1000 * nets["out"]}
    pairs = donors.meetings()
    owned, given = jax.jit(donors.play_game, static_argnums=3)(nets, jnp.asarray(pairs), jax.random.key(5), steps, fine)
    wealth, trace, shares = [10.0] * 12, [[5, 5, 5] for _ in range(12)], []
    hidden, out = (np.asarray(nets[name], np.float64) for name in ("hidden", "out"))
    for meeting in pairs.tolist():
        before = [list(steps) for steps in trace]
        for donor, recipient in meeting:
            seen = [before[recipient][i] if i < steps else 5 for i in range(3)]
            x = np.zeros(18)
            x[[6 * i + name for i, name in enumerate(seen)]] = 1
            logits = np.append(np.tanh(x @ hidden[donor]), 1.0) @ out[donor]
            act = int(np.argmax(logits if fine else logits[:5]))
            share = 0.0 if act == 5 else act / 4
            lost, paid = (0.1 * wealth[donor], -0.2 * wealth[recipient]) if act == 5 else (share * wealth[donor],) * 2
            wealth[donor] -= lost
            wealth[recipient] += paid if act == 5 else 2 * paid
            trace[donor] = [0 if act == 5 else act, *before[recipient][:2]]
            shares.append(share)
    np.testing.assert_allclose(owned, wealth, rtol=1e-4)
    assert given == pytest.approx(np.mean(shares))
    assert len(set(shares)) > 2


def image_by_hand(trace):
    """As the paper's release keeps a reputation, along a trace whose newest gift comes first; None: unknown."""
    image = None
    for gift in reversed(trace):
        if gift is not None:
            image = gift if image is None else 1 - abs(gift - image)
    return 1 if image is None else image


def test_images():
    shares, traces = [*np.asarray(donors.SHARES), None], [*product(range(6), repeat=3)]
    want = [image_by_hand([shares[i] for i in trace]) for trace in traces]
    np.testing.assert_array_equal(np.asarray(donors.SHARES)[donors.images(np.array(traces))], want)
    assert image_by_hand([0, 0, 1]) == 1 and image_by_hand([0, 1, 1]) == 0  # a refusal can be just
