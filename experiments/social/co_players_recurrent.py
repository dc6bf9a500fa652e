"""Do recurrent learners infer whom they meet, and does that make them cooperate?

Two networks play the donation game of `co_players`, 20 rounds, and learn by advantage actor-critic. An update has 256
games of the learners with each other, and 256 of each with players whose five answers are fair coins, drawn for each
game. For 300 updates all learn from these alone, as inference needs learners that adapt; then for 500 from their arm's:

  mixed, identity              all games; with identity a learner is told the answers, or that it meets a learner
  learners_only, tabular_only  games with the other learner; games with coins' players

`cooperation` is with the other learner; `points` are a round's against coins' players, `rise` their last third less the
first. An exact best response that knows the player earns 1.2375.

  python -m experiments co_players_recurrent --seeds 10

Paper: Multi-agent cooperation through in-context co-player inference 2026, https://arxiv.org/abs/2602.16301. There an
update has 4,096 games of 100 rounds, the five answers are probabilities, uniform in [0, 1], and 128 numbers remember.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from experiments.social.co_players import CHOICES, OPTIONS, PAYOFF
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rl.returns import gae
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.tabular import remembering as tables

WIDTH, GAMES, ROUNDS, ALONE, UPDATES = 16, 256, 20, 300, 800
OTHERS = jnp.arange(2 * GAMES) >= GAMES  # a learner's games with coins' players
PLACE = "Section 3.1, Figure 1: the mixed pool comes to cooperate; without tabular players, or named, to defect"
LEVEL = "Ours: a Bayes-optimal player earns 1.17, always defecting 1.00. Without adaptation nothing is tested."


class Learners(nn.Module):
    """(memory [2, n, WIDTH], what a round shows [2, n, 10]) -> (memory, [2, n, 2]: logits of cooperation, values)."""

    @nn.compact
    def __call__(self, memory: jax.Array, situation: jax.Array, told: jax.Array) -> tuple[jax.Array, jax.Array]:
        seen, both = jnp.concatenate([jax.nn.one_hot(situation, tables.SITUATIONS), told], -1), []
        for before, now in zip(memory, seen, strict=True):  # each learner has its own weights
            after, read = nn.GRUCell(WIDTH)(before, nn.swish(nn.Dense(WIDTH)(now)))
            both.append((after, nn.Dense(2, kernel_init=nn.initializers.normal(0.01))(read)))
        return jax.tree.map(lambda *x: jnp.stack(x), *both)


def play(weights: Any, chances: jax.Array, told: jax.Array, key: jax.Array) -> tuple[jax.Array, ...]:
    """Situations [T + 1, 2, 2 GAMES], actions and rewards [T, ...]. Learner i plays its first games with the other
    learner, and the rest with players who cooperate with `chances` [2, GAMES, 5] in their own situations."""

    def play_round(now: tuple, key: jax.Array) -> tuple[tuple, tuple]:
        memory, situation, theirs = now
        memory, read = Learners().apply(weights, memory, situation, told)
        dice, coin = jax.random.uniform(key, (2, *situation.shape))
        action = (dice >= jax.nn.sigmoid(read[..., 0])).astype(jnp.int32)  # type: ignore[index]  # flax: a dict or any
        answer = coin[:, :GAMES] >= jnp.take_along_axis(chances, theirs[..., None], 2)[..., 0]
        other = jnp.concatenate([action[::-1, :GAMES], answer.astype(jnp.int32)], 1)
        after = memory, 1 + 2 * action + other, 1 + 2 * other[:, GAMES:] + action[:, GAMES:]
        return after, (situation, action, jnp.array(PAYOFF)[action, other, 0])

    first = jnp.zeros((2, 2 * GAMES), jnp.int32)
    start = jnp.zeros((*first.shape, WIDTH)), first, first[:, GAMES:]
    (_, last, _), (situation, *rest) = jax.lax.scan(play_round, start, jax.random.split(key, ROUNDS))
    return jnp.concatenate([situation, last[None]]), *rest


def loss(weights: Any, played: tuple[jax.Array, ...], told: jax.Array, learns: jax.Array) -> jax.Array:
    """Advantage actor-critic of both learners on games in `learns` [2 GAMES]; the critic values what follows."""
    start = jnp.zeros((*told.shape[:2], WIDTH))
    _, read = jax.lax.scan(lambda memory, now: Learners().apply(weights, memory, now, told), start, played[0])
    where = jnp.broadcast_to(learns[:, None], (len(learns), ROUNDS))

    def of_learner(logit: jax.Array, value: jax.Array, action: jax.Array, reward: jax.Array) -> jax.Array:
        now, last = jax.lax.stop_gradient((value[:, :-1], value[:, -1]))
        targets = gae(reward, now, where, gamma=0.9, lam=0.9, last=last)
        said = jax.nn.log_softmax(jnp.stack([logit, jnp.zeros_like(logit)], -1)[:, :-1])
        gain = whiten(targets.advantage, where) * jnp.take_along_axis(said, action[..., None], 2)[..., 0]
        error = 0.5 * jnp.square(value[:, :-1] - targets.value_target)
        return mean_of(error - gain + 0.03 * (jnp.exp(said) * said).sum(-1), where).value

    by_game = [jnp.moveaxis(x, 0, 2) for x in (read[..., 0], read[..., 1], *played[1:])]
    return jax.vmap(of_learner)(*by_game).sum()


@jax.custom_batching.sequential_vmap
def train(seed: jax.Array, learns: jax.Array, knows: jax.Array) -> dict[str, jax.Array]:
    """{metric: [UPDATES]}, run after run: matrices of many runs are slower on a CPU."""
    key = jax.random.wrap_key_data(seed)
    shapes = jnp.zeros((2, 1, WIDTH)), jnp.zeros((2, 1), jnp.int32), jnp.zeros((2, 1, tables.SITUATIONS))
    weights = Learners().init(jax.random.fold_in(key, UPDATES), *shapes)
    optimiser = optax.chain(optax.clip_by_global_norm(2.0), optax.adam(1e-2, eps=1e-5))

    def update(now: tuple, number: jax.Array) -> tuple[tuple, dict[str, jax.Array]]:
        draws, dice = jax.random.split(jax.random.fold_in(key, number))
        chances = tables.draw_chances(draws, 2 * GAMES, coins=1.0).reshape(2, GAMES, -1)
        told = jnp.concatenate([jnp.zeros_like(chances), knows * (2 * chances - 1)], 1)
        _, action, reward = played = play(now[0], chances, told, dice)
        step = jax.grad(loss)(now[0], played, told, jnp.where(number < ALONE, OTHERS, learns))
        step, moments = optimiser.update(step, now[1])
        metrics = tables.measure(action[..., :GAMES].transpose(2, 0, 1), reward[..., GAMES:].reshape(ROUNDS, -1).T)
        return (optax.apply_updates(now[0], step), moments), metrics

    return jax.lax.scan(update, (weights, optimiser.init(weights)), jnp.arange(UPDATES))[1]


def arm(key: jax.Array, hparams: dict[str, Any]) -> dict[str, jax.Array]:
    learns = select(hparams, "games", all=OTHERS | True, learners=~OTHERS, tabular=OTHERS)
    knows = select(hparams, "identity", hidden=jnp.bool_(False), told=jnp.bool_(True))
    return train(jax.random.key_data(key), learns, knows)


STUDY = Study(
    paper=Paper("Co-player inference", "https://arxiv.org/abs/2602.16301", 2026, checked="paper"),
    question="Do recurrent learners infer whom they meet, and does that make them cooperate?",
    claim="Learners that meet unlike players cooperate more than learners alone, or than those told whom they meet.",
    arms=side_by_side(arm, OPTIONS, UPDATES, CHOICES),
    method="mixed",
    metrics=("cooperation", "points", "rise", "first third", "last third"),
    predictions=(
        Higher("cooperation", "mixed", than="learners_only", source="paper", where=PLACE),
        Higher("cooperation", "mixed", than="identity", source="paper", where=PLACE),
        AtLeast("points", "mixed", 1.08, source="theory", where=LEVEL, condition=True),
    ),
)
