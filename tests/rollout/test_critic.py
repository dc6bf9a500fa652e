"""Critics of tokens and of turns learn the returns of games from a rollout.

The long case trains for many updates; `test_policy_scores` checks values and their gradients.
"""

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models import config, decoder
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rl.returns import return_to_go
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import gather_sampled, per_token
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.update import Optimiser, update

GAME = MatrixGame(rounds=3)
SYMBOLS = SymbolTokenizer(strings(GAME))
CONFIG = config.Config(SYMBOLS.vocab_size, 16, 32, 1, 2, 2, 8, 64)
FAMILY = PolicySet(SYMBOLS, ("learner",), CONFIG)
SEATS = (("learner", "always_defect"), ("learner", "always_cooperate")) * 2
ROLLOUT = Rollout(GAME, {"us": FAMILY}, Lineup(SEATS, 16))


@pytest.mark.long
@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_critic_learns_the_return_of_what_it_sees(shared):
    """With the policy's trunk or one of its own, each with a learning rate of its own."""
    tables, key = ROLLOUT.layouts["us"].tables, jax.random.key(0)
    actor = decoder.init(CONFIG, key)
    trunk = {} if shared else {"trunk": decoder.init(CONFIG, jax.random.key(1))}
    learned = {"actor": actor, "critic": {"head": policy.init_value(CONFIG), **trunk}}
    played = jax.jit(ROLLOUT)({"us": {"params": actor}}, key)
    rows, episodes = played.rows["us"], played.episodes
    sampled = gather_sampled(rows, episodes.legal, ROLLOUT.max_sampled_tokens("us"))
    returns = return_to_go(episodes.reward[..., 0], gamma=1.0)
    batch = {"rows": rows, "said": sampled, "aim": per_token(returns, rows, sampled)}

    def values(weights, rows, sampled):
        critic = weights["critic"]
        if not shared:
            return policy.values(CONFIG, critic["trunk"], rows, sampled, critic["head"])
        return policy.Scorer(CONFIG, tables)(weights["actor"], rows, sampled, value=critic["head"]).value

    def loss(weights, batch):
        error = values(weights, batch["rows"], batch["said"]) - batch["aim"]
        return mean_of(error**2, batch["said"].mask), {}

    def step(learners, _):
        rates = {"actor": 3e-3 if shared else 0.0, "critic": 3e-2}
        learners, metrics = update(Optimiser(), loss, learners, batch, len(SEATS), rates, key)
        return learners, metrics["loss"]

    learners, error = jax.jit(lambda l: jax.lax.scan(step, l, None, length=400))(Optimiser().init(learned))
    spread = jnp.var(batch["aim"], where=sampled.mask)
    first = jnp.mean(batch["aim"] ** 2, where=sampled.mask)
    assert abs(error[0] - first) < 1e-3 * first  # a new head expects nothing
    assert error[-1] < 0.35 * spread
    judged, known = policy.by_turn(values(learners.weights, rows, sampled), rows, sampled, returns.shape)
    assert known[:, :, 0].all() and not known[:, :, 1].any()  # every turn of the seat that learns
    kind = jnp.arange(len(episodes.group)) // 16 % 2  # against a defector, a cooperator
    late = jnp.stack([judged[kind == k, 2, 0].mean() for k in range(2)])
    truth = jnp.stack([returns[kind == k, 2, 0].mean() for k in range(2)])
    assert jnp.abs(late - truth).max() < 0.3 and truth[1] - truth[0] > 2
