"""Do tournaments rank a group of answers as well as all pairs do, at the cost of a few matches? ArenaRL, computed.

A group has N answers of normal quality. A judge sees two answers and scores both: quality, plus an error of the call,
which both share, plus an error of each score. A match is two calls, one for each order; its scores are added up.

  pointwise             the mean of four calls for each answer alone, at least as many calls as elimination has
  anchor                all others beside the first answer, by scores (N - 1 matches)
  elimination           a bracket that the anchor's scores seed, with byes for the best seeds (2N - 2 matches)
  elimination_released  neighbours of the bracket without its byes meet: for N = 6 no top seed has one
  swiss                 ceil(log2 N) rounds of pairs with like points
  swiss_released        points and opponents go to the place in a list that is shuffled before each round
  round_robin           all pairs (N (N - 1) / 2 matches)

  tau    Kendall's tau-a of rewards and true qualities, with errors of 1 for a call and 0.5 for a score, for N of 8 and
         6; with an error of 1 for scores alone (own); with gains of each answer on those behind it in a circle (cycle)

  python -m experiments tournaments --seeds 20    # half a minute

Paper: ArenaRL (Zhang et al.) 2026, https://arxiv.org/abs/2601.06487; release https://github.com/Alibaba-NLP/qqr. There
the judge is called anew for a pair that the anchor's matches have seen. Here its scores are read again.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl import rankings
from jaxmarl_llm.rl.rewards import kendall
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Lower, NotLower, Paper, Study

GROUPS, CALLS = 2048, 4
WORLDS = {  # metric: (answers, error of a call, error of a score, strength of the cycle)
    "tau": (8, 1.0, 0.5, 0.0),
    "tau, six": (6, 1.0, 0.5, 0.0),
    "tau, own": (8, 0.0, 1.0, 0.0),
    "tau, cycle": (8, 1.0, 0.5, 1.0),
}
ARMS = ("pointwise", "anchor", "elimination", "elimination_released", "swiss", "swiss_released", "round_robin")


def match_scores(quality: jax.Array, key: jax.Array, shared: float, single: float, cycle: float) -> jax.Array:
    """Scores [N, N] of all matches."""
    size, keys = len(quality), jax.random.split(key)
    number = jnp.arange(size)
    around = jnp.sin(2 * jnp.pi * (number[:, None] - number[None]) / size) / 2
    call = jnp.triu(jax.random.normal(keys[0], (2, size, size)), 1).sum(0)
    errors = shared * (call + call.T) + single * jax.random.normal(keys[1], (2, size, size)).sum(0)
    return 2 * (quality[:, None] + cycle * around) + errors


def eliminate_released(scores: jax.Array, seeding: jax.Array) -> jax.Array:
    """Ranks of the release's elimination: an odd last one goes on, before the winners."""
    size = len(seeding)
    order = jnp.argsort(-seeding, stable=True)
    alive = [order[seed] for seed in rankings.bracket(size) if seed < size]
    defeat, total, count, number = jnp.zeros((size,)), seeding, jnp.ones((size,)), 0
    while len(alive) > 1:
        winners = []
        for first, other in zip(alive[::2], alive[1::2], strict=False):
            wins = scores[first, other] >= scores[other, first]
            defeat = defeat.at[jnp.where(wins, other, first)].set(number)
            for player, beside in ((first, other), (other, first)):
                total, count = total.at[player].add(scores[player, beside]), count.at[player].add(1)
            winners.append(jnp.where(wins, first, other))
        alive, number = [*alive[len(alive) - len(alive) % 2 :], *winners], number + 1
    return rankings.ranks_of(defeat.at[alive[0]].set(number), total / count)


def swiss_released(scores: jax.Array, key: jax.Array) -> jax.Array:
    """Ranks of the release's Swiss: results of answer i go to entry i of a list that is shuffled in place."""
    size = len(scores)
    answer, points, met = jnp.arange(size), jnp.zeros((size,)), jnp.zeros((size, size), bool)
    for order_key in jax.random.split(key, rankings.swiss_rounds(size)):
        answer, points, met = (x[jax.random.permutation(order_key, size)] for x in (answer, points, met))
        place = jnp.argsort(answer)
        opponent = rankings.swiss_pairs(points[place], met[place], answer)
        points += rankings.swiss_points(scores, opponent)
        met |= opponent[:, None] == jnp.arange(size)[None]
    return rankings.ranks_of(points, met @ points)[place]


def rewards(key: jax.Array, world: tuple[int, float, float, float]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Qualities of a group, float32 [N], and the rewards of each ranker."""
    (size, shared, single, cycle), keys = world, jax.random.split(key, 4)
    quality = jax.random.normal(keys[0], (size,))
    scores = match_scores(quality, keys[1], shared, single, cycle)
    error = (shared**2 + single**2) ** 0.5 / CALLS**0.5
    seeding = rankings.anchor_scores(scores)
    return quality, {
        "pointwise": quality + error * jax.random.normal(keys[3], (size,)),
        "anchor": rankings.least_rank_rewards(rankings.anchor(scores)),
        "elimination": rankings.mean_rank_rewards(rankings.single_elimination(scores, seeding)),
        "elimination_released": rankings.mean_rank_rewards(eliminate_released(scores, seeding)),
        "swiss": rankings.mean_rank_rewards(rankings.swiss(scores, keys[2])),
        "swiss_released": rankings.mean_rank_rewards(swiss_released(scores, keys[2])),
        "round_robin": rankings.least_rank_rewards(rankings.round_robin(scores)),
    }


def compute_metrics(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    """{arm: {metric: value}}, means over the groups of a seed."""
    metrics: dict[str, dict[str, jax.Array]] = {arm: {} for arm in ARMS}
    for number, (metric, world) in enumerate(WORLDS.items()):
        keys = jax.random.split(jax.random.fold_in(key, number), GROUPS)
        quality, paid = jax.vmap(lambda key, world=world: rewards(key, world))(keys)
        for arm in ARMS:
            metrics[arm][metric] = kendall(paid[arm], quality).mean()
    return metrics


BRACKET, BLOG = "elimination", "The authors' page, tongyi-agent.github.io/blog/arenarl, win rates by topology:"
STUDY = Study(
    paper=Paper("ArenaRL (Zhang et al.)", "https://arxiv.org/abs/2601.06487", 2026, checked="release"),
    question="Do tournaments rank answers as well as all pairs do, at the cost of a few matches?",
    claim="A seeded bracket ranks nearly as well as all pairs, better than an anchor, Swiss rounds or scores alone.",
    arms={arm: Computed(compute_metrics, part=arm) for arm in ARMS},
    method=BRACKET,
    metrics=tuple(WORLDS),
    predictions=(
        NotLower("tau", BRACKET, than="round_robin", by=0.05, source="paper", where=f"{BLOG} 32.5, 32.9; margin ours"),
        Higher("tau", BRACKET, than="anchor", source="paper", where=f"{BLOG} 32.5, 27.8"),
        Higher("tau", BRACKET, than="swiss", source="paper", where=f"{BLOG} 32.5, 28.3"),
        Higher("tau", BRACKET, than="pointwise", source="paper", where='There: "inherently more robust to noise"'),
        Lower("tau, own", BRACKET, than="pointwise", source="theory", where="Nothing cancels, most have few matches."),
        Lower("tau, six", "elimination_released", than=BRACKET, source="theory", where="No top seed has a bye."),
        Lower("tau", "swiss_released", than="swiss", source="theory", where="Points go to other answers."),
    ),
)
