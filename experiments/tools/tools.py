"""Does a policy learn from outcomes when to call a tool? ARTIST, GRPO-TCR and A2FM on sums with a calculator.

A solver says its mode: an answer at once, a thought, or a call (`Calls`). A thought is right with a chance of 0.7.
After a call the solver names three numbers for a calculator. Half of the sums are easy: three numbers below 3.
The others have numbers from 3 to 19, 4,913 sums. Policies have imitated `novice` in 800 updates. An update has
eight sums with twelve games each.

  none        the calculator cannot be called
  tool        GRPO on right answers (ARTIST); neither thoughts nor calls have a price in the reward
  in_loss     the same; the calculator's replies are trained as if the policy had said them
  clip_high   as tool, with an upper bound of the ratio of 1.28 in place of 1.2 (GRPO-TCR)
  entropy_01  as tool, with an entropy bonus of 0.01
  entropy_05  as tool, with an entropy bonus of 0.05
  priced      as tool; the reward is less 0.05 points for a thought and 0.2 points for a call
  always      every game is a call, by its rules
  modes       A2FM: three games of a sum are forced in each mode and three are free; a right answer is worth 1 at once,
              and 1 - p^2 otherwise, p the share of right answers in the sum's games that are forced to be instant
  unforced    the reward of modes with twelve free games; p is that of the games that chose to be instant

  success     share of right answers in games whose mode is free (`always`: in all games)
  cost        mean price in these games, measured in all arms and paid in `priced` alone
  price       cost over success: points for a right answer
  calls easy  share of calls in free games with easy sums

  python -m experiments tools --seeds 20

Papers: ARTIST (Singh et al.) 2025, https://arxiv.org/abs/2505.01441; Demystifying (Yu et al.) 2025,
https://arxiv.org/abs/2510.11701; A2FM (Chen et al.) 2025, https://arxiv.org/abs/2510.12838: abstracts. VerlTool (Jiang
et al.) 2025, https://arxiv.org/abs/2509.01055, is about time: its refill of slots as games end is not built here.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.teams.tool_calls import CALL, INSTANT, LAST, MODES, NUMBERS, SOLVER, Calls, Sum
from jaxmarl_llm.methods.told_in_loss import told_step
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import at_first, last_share, mean_while, updates_to
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, NotLower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

QUERIES, KINDS, MEMBERS, UPDATES = 8, 4, 3, 60  # a sum has four groups of three games
SUCCESS, COST, PRICE, EASY, SOON = "success", "cost", "price", "calls easy", "updates to 80%"
FIRST, ABOVE = "at first", "clipped above"
GAME = Calls()


def draw_sums(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """Even queries are easy. The last of a query's four groups is free where the others are forced."""
    numbers = jax.vmap(GAME.numbers)(jax.random.split(key, QUERIES), jnp.arange(QUERIES) % 2 == 0)
    free, single = np.ones((KINDS, 3), bool), np.eye(3, dtype=bool)
    without, forced = free & ~single[CALL], free & single[CALL]
    modes = select(hparams, "modes", free=free, none=without, call=forced, balanced=np.concatenate([single, free[:1]]))
    return Arranged(Sum(jnp.repeat(numbers, KINDS, 0), jnp.tile(modes, (QUERIES, 1))))


def rates(episodes: Episodes) -> dict[str, jax.Array]:
    """Means over games whose mode is free, or over all games if none is."""
    allowed = episodes.legal[:, 0, SOLVER, : len(MODES)].sum(1)
    free = (allowed > 1) | ~(allowed > 1).any()
    mode, easy = episodes.action[:, 0, SOLVER], episodes.group // KINDS % 2 == 0
    paid, posed = episodes.reward[:, :, SOLVER].sum(1), episodes.measured[:, :, SOLVER, 0].sum(1)
    mean = lambda x, where: mean_of_kept(episodes, x * where) / jnp.maximum(mean_of_kept(episodes, 1.0 * where), 1e-9)
    right, cost = mean(paid[:, 0], free), mean(-paid[:, 1], free)
    return {
        SUCCESS: right,
        COST: cost,
        f"{PRICE}/sum": cost,
        f"{PRICE}/count": right,
        EASY: mean(mode == CALL, free & easy),
        "calls hard": mean(mode == CALL, free & ~easy),
        "instant easy": mean(paid[:, 0], (mode == INSTANT) & easy),
        "instant hard": mean(paid[:, 0], (mode == INSTANT) & ~easy),
        "posed right": mean(posed, mode == CALL),
    }


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GRPO over the twelve games of a sum, with the reward of the arm."""
    episodes, group = experience.episodes, experience.episodes.group
    right, cost = (episodes.reward[:, :, SOLVER, i].sum(1) for i in range(2))
    instant = episodes.action[:, 0, SOLVER] == INSTANT
    counted = instant & select(hparams, "modes", free=True, none=True, call=True, balanced=group % KINDS == 0)
    by_sum = lambda x: x.reshape(QUERIES, -1).sum(1)
    share = by_sum(right * counted) / jnp.maximum(by_sum(counted), 1)
    worth = jnp.where(instant, 1, 1 - share[group // KINDS] ** 2)
    reward = select(hparams, "reward", right=right, priced=right + cost, adaptive=right * worth)
    given = jnp.zeros(episodes.acted.shape).at[:, 0, SOLVER].set(reward)
    acted, _, groups = experience.learning_acts
    return Advantages(advantages.grpo(given, acted, group // KINDS, groups // KINDS))


def loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO; also the share of tokens that the upper bound clips."""
    above = (scores.logp - batch.behaviour_logp > jnp.log1p(hparams["clip_high"])) & (batch.advantage > 0)
    total, metrics = losses.ppo(scores, batch, hparams)
    return total, metrics | {ABOVE: mean_of(above, batch.mask)}


TOOL = Recipe(
    GAME,
    seats=(("learner", "correct"),),
    advantage=estimate_advantages,
    loss=loss,
    step=partial(told_step, turn=LAST, grammar=NUMBERS),
    arrange=draw_sums,
    hparams={"learning_rate": 3e-4, "entropy": 0.0},
    choices={
        "modes": ("free", "none", "call", "balanced"),
        "reward": ("right", "priced", "adaptive"),
        "told": ("masked", "trained"),
    },
    warm_start=(("novice", "correct"),),
    warm_start_updates=800,
    budget=1,
    updates=UPDATES,
    groups=QUERIES * KINDS,
    group_size=MEMBERS,
    epochs=4,
    minibatches=4,
    measure=rates,
    pretrained={"budget": 4},
)
ARTIST = 'abstract: "consistently outperforms state-of-the-art baselines, with up to 22% absolute improvement"'
FRIENDLY = (
    'Demystifying, abstract: "clip higher, overlong reward shaping, and maintaining adequate policy entropy could '
)
FRIENDLY += 'improve the training efficiency"'
ADAPTIVE = 'A2FM, abstract: "cost of pass", "cutting cost [...] by 33.5% relative to agentic", at "comparable accuracy"'
MASKED = "A reply is no act of the policy, so that its gradient adds noise to shared weights and teaches no choice."
MIXED = "A mode that is hardly chosen teaches nothing of its worth; three games in twelve keep each mode in training."
START = "Else nothing is left to learn, or nothing is paid."
STUDY = Study(
    paper=Paper("ARTIST (Singh et al.)", "https://arxiv.org/abs/2505.01441", 2025, checked="abstract"),
    question="Does a policy learn from outcomes when to call a tool?",
    claim="It does, better than without a tool; a mode for each query costs less than calls in all games.",
    arms={
        "none": TOOL.with_choice(modes="none"),
        "tool": TOOL,
        "in_loss": TOOL.with_choice(told="trained"),
        "clip_high": TOOL.with_hparams(clip_high=0.28),
        "entropy_01": TOOL.with_hparams(entropy=0.01),
        "entropy_05": TOOL.with_hparams(entropy=0.05),
        "priced": TOOL.with_choice(reward="priced"),
        "always": TOOL.with_choice(modes="call"),
        "modes": TOOL.with_choice(modes="balanced", reward="adaptive"),
        "unforced": TOOL.with_choice(reward="adaptive"),
    },
    method="tool",
    metrics=(SUCCESS, PRICE, COST, EASY, SOON, FIRST, ABOVE),
    predictions=(
        Higher(SUCCESS, "tool", than="none", source="paper", where=ARTIST),
        Higher(SUCCESS, "tool", than="in_loss", source="theory", where=MASKED),
        Lower(SOON, "clip_high", than="tool", source="paper", where=FRIENDLY),
        Lower(SOON, "entropy_01", than="tool", source="paper", where=FRIENDLY),
        NotLower(SUCCESS, "modes", than="always", by=0.03, source="paper", where=ADAPTIVE),
        Lower(PRICE, "modes", than="always", source="paper", where=ADAPTIVE),
        Higher(SUCCESS, "modes", than="unforced", source="theory", where=MIXED),
        AtLeast(FIRST, "tool", 0.2, source="theory", where=START, condition=True),
        AtMost(FIRST, "tool", 0.6, source="theory", where=START, condition=True),
        AtLeast(ABOVE, "tool", 0.002, source="theory", where="Else a higher bound changes nothing.", condition=True),
    ),
    derived={
        PRICE: partial(last_share, metric=PRICE),
        SOON: partial(updates_to, metric=SUCCESS, bound=0.8),
        FIRST: partial(at_first, metric=SUCCESS),
        ABOVE: partial(mean_while, metric=f"{ABOVE}/learner", low=SUCCESS, bound=0.8),
    },
    censored={SOON: float(UPDATES)},
)
