"""Does a writer of notes that learns beside the actor help more than a frozen one, or none? Complementary RL.

Two shifts open the same three locks, one of three keys each, in six tries (`Handover`); the first lock's key is drawn
again between them. The writer picks one try of the first shift as a note to the second. A note on a later lock helps,
and a note on the first may mislead. A shift can find the keys itself at the cost of tries. Both shifts are the actor. A
task, a draw of keys, is played by sixteen pairs of shifts, of which eight second shifts are told a note. The actor
learns from second shifts (GRPO), and the writer from those with a note, by CISPO's clip. Policies have imitated an
actor that follows every note and else tries any key, and a writer that picks any try.

  none        nobody is told a note, and the actor learns from all sixteen
  static      notes of the writer as it began; the actor is normalised within each half of eight
  outcome     the writer is paid +1 or -1 by the second shift, less the batch's mean (published)
  difference  the writer is paid the second shift's success less that of the eight without a note in the task
  mixed       as outcome, with the actor normalised over all sixteen

  success     second shifts that open all locks, of the half that is told a note, or in `none` would be
  free        the same of the other half, which is told none: .63 at best, and .89 with the key of one lock
  first       share of notes on the first lock
  fits        share of notes that give the key of another lock

  python -m experiments memory --seeds 20

Paper: Complementary RL (Muhtar et al.) 2026, https://arxiv.org/abs/2603.17621, read second-hand beyond the abstract.
Its bank of many entries, with search and merging, is left out: an entry is one try of the shift before.
"""

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.teams.handover import SECOND, WRITER, Handed, Handover
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

TASKS = 8
SUCCESS, FREE, ON_FIRST, FITS = "success", "free", "first", "fits"


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """Group 2q plays task q with notes, group 2q + 1 without."""
    noted = (jnp.arange(2 * TASKS) % 2 == 0) & select(hparams, "notes", told=True, silent=False)
    return Arranged(Handed(noted, jax.random.key_data(jax.random.split(key, TASKS)).repeat(2, 0)))


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    episodes, (acted, group, _) = experience.episodes, experience.acts
    solved = episodes.reward[:, :, SECOND, 0].sum(1)
    guided = (group % 2 == 0) & select(hparams, "notes", told=True, silent=False)
    second, wrote = (acted & (jnp.arange(3) == seat)[None, None] for seat in (SECOND, WRITER))
    reward = episodes.reward[..., 0]
    apart = advantages.grpo(reward, second, group, 2 * TASKS)
    together = advantages.grpo(reward, second, group // 2, TASKS)
    actor = select(hparams, "halves", apart=apart, together=together)
    free = solved.reshape(TASKS, 2, -1)[:, 1].mean(1)[group // 2]
    paid = select(hparams, "writer", outcome=2 * solved - 1, difference=solved - free)
    writer = jnp.where(guided, paid - paid.mean(where=group % 2 == 0), 0)
    credit = jnp.where(second, actor, jnp.where(wrote, writer[:, None, None], 0))
    return Advantages(credit, trained=second | (wrote & guided[:, None, None]))


def clip_by_role(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO's clip for the actor and CISPO's for the writer, less the entropy."""
    given = scores.logp, batch.behaviour_logp, batch.advantage
    writes = batch.mask & (batch.role == 1)
    low, high = hparams["clip_low"], hparams["clip_high"]
    actor, metrics = losses.ppo_clip(*given, batch.mask & ~writes, clip_low=low, clip_high=high)
    writer, _ = losses.truncated_policy_gradient(*given, writes, floor=1 - low, cap=1 + high)
    bonus, more = losses.entropy_bonus(scores.entropy, batch.mask)
    return Mean(actor.sum + writer.sum + hparams["entropy"] * bonus.sum, bonus.count), metrics | more


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Success of both halves, and the kinds of notes."""
    solved, guided = episodes.reward[:, :, SECOND, 0].sum(1), episodes.group % 2 == 0
    assert episodes.measured is not None
    facts = episodes.measured[:, :, 0].sum(1)
    half = lambda x, where: mean_of_kept(episodes, jnp.where(where, x, 0)) / mean_of_kept(episodes, 1.0 * where)
    notes = {ON_FIRST: half(facts[:, 0], guided), FITS: half(facts[:, 1], guided)}
    return {SUCCESS: half(solved, guided), FREE: half(solved, ~guided)} | notes


OUTCOME = Recipe(
    Handover(),
    seats=(("actor", "writer", "actor"),),
    advantage=estimate_advantages,
    loss=clip_by_role,
    arrange=arrange,
    hparams={"learning_rate": 2e-3, "learning_rate/writer": 2e-3},
    choices={"notes": ("told", "silent"), "writer": ("outcome", "difference"), "halves": ("apart", "together")},
    warm_start=(("believer", "believer", "believer"),),
    budget=1,
    updates=150,
    groups=2 * TASKS,
    group_size=8,
    minibatches=2,
    measure=measure,
    pretrained={"budget": 4},
)
BETTER = 'abstract: "evolving its experience management strategy in lockstep with the actor\'s growing capabilities"'
STATIC = "second-hand: with a static extractor the result is near the baseline"
COLLAPSE = "second-hand: normalised over both halves together the actor without experience collapses"
STUDY = Study(
    paper=Paper("Complementary RL (Muhtar et al.)", "https://arxiv.org/abs/2603.17621", 2026, checked="abstract"),
    question="Does a writer of notes that learns beside the actor help more than a frozen one?",
    claim="A writer that learns by the outcome beats a frozen one, and normalisation over both halves harms.",
    arms={
        "none": OUTCOME.with_choice(notes="silent", halves="together"),
        "static": OUTCOME.with_hparams(**{"learning_rate/writer": 0.0}),
        "outcome": OUTCOME,
        "difference": OUTCOME.with_choice(writer="difference"),
        "mixed": OUTCOME.with_choice(halves="together"),
    },
    method="outcome",
    metrics=(SUCCESS, FREE, ON_FIRST, FITS),
    predictions=(
        Higher(SUCCESS, "outcome", than="static", source="paper", where=BETTER),
        Lower(FREE, "mixed", than="outcome", source="paper", where=COLLAPSE),
    ),
)
