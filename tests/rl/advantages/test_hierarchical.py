"""Proposers and solvers, each compared with their peers, against loops and prime-rl's description."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl.advantages.hierarchical import hierarchical

GROUP = np.array([0, 0, 0, 1, 1])


def games():
    """Five proposals of two groups, by seat 0 in turn 0; three solvers act later, but for one."""
    rng = np.random.default_rng(0)
    acted = np.zeros((5, 3, 4), bool)
    acted[:, 0, 0] = acted[:, 1:, 1:] = True
    acted[2, 1:] = False
    reward = np.zeros((5, 3, 4), np.float32)
    reward[:, 2] = rng.random((5, 4))
    return np.where(acted.any(1)[:, None], reward, 0), acted


@pytest.mark.parametrize("compared", ("group", "batch", "nothing"))
@pytest.mark.parametrize("scale", ("none", "std"))
def test_against_a_loop(compared, scale):
    reward, acted = games()
    total, expected = reward.sum(1), np.zeros(acted.shape)
    for b in range(5):
        for seat in range(4):
            if seat == 0:
                alike = {"group": GROUP[b] == GROUP, "batch": GROUP >= 0}.get(compared)
                value = total[b, 0] - (0 if alike is None else total[alike, 0].mean())
            else:
                value = total[b, seat] - total[b, 1:].mean()
                if scale == "std":
                    value /= total[b, 1:].std() + 1e-6
            expected[b, :, seat] = np.where(acted[b, :, seat], value, 0)
    given = jnp.asarray(reward), jnp.asarray(acted), jnp.asarray(GROUP), 2
    found = hierarchical(*given, compared=compared, scale=scale)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_other_proposals_do_not_change_the_advantages_of_solvers():
    """The results of other proposals do not change the advantages of a question's solvers."""
    reward, acted = games()
    other = reward.copy()
    other[0, 2, 1:] += 5
    changed, plain = (hierarchical(jnp.asarray(x), jnp.asarray(acted), jnp.asarray(GROUP), 2) for x in (other, reward))
    np.testing.assert_allclose(changed[1:], plain[1:], atol=1e-5)
    np.testing.assert_allclose(changed[0], plain[0], atol=1e-5)


def test_an_unknown_comparison_is_refused():
    reward, acted = games()
    with pytest.raises(ValueError, match="compared"):
        hierarchical(jnp.asarray(reward), jnp.asarray(acted), jnp.asarray(GROUP), 2, compared="all")
