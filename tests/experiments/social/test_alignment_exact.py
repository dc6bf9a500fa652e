"""The small Trust-and-Split pays as the game does, and steps are those of the objective that each arm names."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import alignment_exact as study
from jaxmarl_llm.environments.social.trust_and_split import TrustAndSplit
from jaxmarl_llm.tabular.exact_alignment import worth

DEFAULTS = {"deals": "shared", "rounds": "apart"}


def numbers(**changed):
    return {name: jnp.float32(x) for name, x in {**study.BASE, **changed}.items()}


def test_points_are_those_of_the_game():
    game = TrustAndSplit(rounds=1, coins=study.COINS, talk=False)
    states, _ = game.initial_states()
    deals = sorted({tuple(map(int, hands[0])) for hands in np.asarray(states.hands)})
    first = jax.tree.map(lambda x: x[0], states)
    for (one, other), a, b in product(deals, range(2), range(2)):
        state = first.replace(hands=jnp.array([[one, other]]))
        paid = game.step(state, study.COINS * jnp.array([a, b]), jax.random.key(0))[2][:, 0]
        wins = int((one - other) % 3 == 1)
        expected = study.POINTS[wins, a, b], study.POINTS[1 - wins, b, a]
        np.testing.assert_allclose(paid, expected, rtol=1e-6)


def test_the_best_joint_points_are_1():
    """Of a table that claims with the winning hand alone, from which who always claims all earns 26.25."""
    table = jnp.broadcast_to(jnp.array([-50.0, 50.0])[None, None], (3, 9, 2))
    own = worth(jax.nn.sigmoid(table), table, study.POINTS) / 3
    assert float(own) == pytest.approx(study.BEST * study.SCALE)
    assert float(worth(jnp.ones((3, 9, 2)), table, study.POINTS)) / 3 == pytest.approx((50 + 2.5) / 2)


@pytest.mark.parametrize("kl, entropy", [(0.0, 0.3), (0.3, 0.3)])
def test_a_step_climbs_entropy_and_nears_the_start(monkeypatch, kl, entropy):
    """Without points, one step is the gradient of entropy or divergence that automatic differentiation gives."""
    seen = []
    monkeypatch.setattr(study, "POINTS", jnp.zeros((2, 2, 2)))
    monkeypatch.setattr(study, "STEPS", 2)
    monkeypatch.setattr(study, "SHOWN", 2)
    monkeypatch.setattr(study, "worth", lambda own, logits, payoff: seen.append(logits) or jnp.zeros(()))
    hparams = {**numbers(kl=kl, entropy=entropy), **DEFAULTS}
    study.learn_policy(jax.random.key(0), hparams, rounds=1)
    noise = 0.2 * jax.random.normal(jax.random.split(jax.random.key(0))[0], (9, 2))
    start = jnp.stack([study.logit(0.3), study.logit(study.WINS)])[None] + noise

    def objective(logits):
        p, q = jax.nn.sigmoid(logits)[8], jax.nn.sigmoid(start)[8]
        split = lambda p, q: (p * jnp.log(p / q) + (1 - p) * jnp.log((1 - p) / (1 - q))).sum() / 2
        return -entropy * split(p, jnp.full(2, 0.5)) - kl * split(p, q)

    now = start
    for _ in range(2):
        now = now + jax.grad(objective)(now)
    np.testing.assert_allclose(seen[0][0], now, atol=1e-5)
    assert float(jnp.abs(now - start).max()) > 1e-3


def test_what_situations_share_moves_all_of_them():
    """Unlike noise, it is the same everywhere, also in situations that no game comes to."""
    hparams = {**numbers(shared=2.0, beta=0.0), **DEFAULTS}
    found = study.learn_policy(jax.random.key(0), hparams, rounds=2)
    alone = study.learn_policy(jax.random.key(0), {**hparams, "shared": jnp.float32(0)}, rounds=2)
    assert float(found["forgives"]) < float(alone["forgives"]) < 0.3
    assert set(found) == {*study.STUDY.metrics}
