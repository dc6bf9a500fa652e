"""Which teacher helps in long tasks: an expert, or the policy itself, told a skill? TCOD and Skill-SD on eight locks.

The chains are those of `guided` with four keys: a random player opens all in one game of 360. All begin with a policy
that has imitated a follower of random advice. The student plays, and its own guide is always silent.

  grpo    the reward alone (GRPO)
  opd     on-policy distillation: a token's advantage is its log-probability under an expert minus the student's. The
          expert has imitated flawless games only, so it has never read that a lock stays shut
  depth   as opd, in games cut off after 1 turn, then one turn more every 3 updates, 12 at most (TCOD, forward)
  skill   GRPO plus 0.1 times reverse KL to the student with other words in its rows: a guide names the key that was
          tried most often at this lock in its own solved games, or is silent (Skill-SD)
  fixed   as skill; in turn t the guide names the t-th key of one flawless game, whatever has happened

  last KL     divergence from the teacher in the last turn of a game
  rise of KL  the same less that in the first turn, mean over all updates

  python -m experiments teachers --seeds 20

Papers: TCOD (Wang et al.) 2026, https://arxiv.org/abs/2604.24005, with a turn more every 2 to 6 steps, 30 at most. Its
equations have KL(teacher || student); its release, as here, has the log-ratio of sampled tokens, the other direction.
Skill-SD (Wang et al.) 2026, https://arxiv.org/abs/2604.10674, second-hand, no release: weight 0.001, a skill in words,
told once, by an upper confidence bound. TT-OPD (https://arxiv.org/abs/2605.02943) is about the length of replies.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.exploration.guided import ALONE, LOCKS, SILENCE, SOLVED, TURNS
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.losses.records import bounded_exp
from jaxmarl_llm.rl.masked import Mean, mean_of
from jaxmarl_llm.rollout.trajectory import exchange_told, per_token, phrase_tokens
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Advantages, Arranged, Experience
from jaxmarl_llm.training.warm_start import imitate

KEYS, EVERY, LAST, RISE = 4, 3, "last KL", "rise of KL"
GAME = replace(ALONE.game, game=replace(ALONE.game.game, decoys=0))


def begin(parts: Parts, key: jax.Array) -> dict:
    """The expert's weights, the tokens of the guide's texts, and the keys tried at each lock in solved games."""
    flawless = replace(parts.recipe, warm_start=(("correct",),), warm_start_deal=lambda key: SILENCE)
    ((name, student),) = parts.policy_sets.items()
    (expert,) = imitate(flawless, student, (name,), key[None], key)
    phrases = phrase_tokens(student.tokenizer, GAME.texts)
    return {"expert": expert, "phrases": phrases, "tried": jnp.zeros((LOCKS, KEYS))}


def cut(hparams: Hparams, state: dict, key: jax.Array, number: jax.Array) -> Arranged:
    turns = select(hparams, "games", whole=TURNS, growing=jnp.minimum(1 + number // EVERY, TURNS))
    return Arranged(jax.tree.map(jnp.asarray, SILENCE), turns=turns.astype(jnp.int32))


def advise(tried: jax.Array, lock: jax.Array) -> jax.Array:
    """The key tried most often in solved games at each of these locks, or silence; `tried` is [LOCKS, KEYS]."""
    return jnp.where(tried.any(1), tried.argmax(1), KEYS)[lock]


def estimate_advantages(experience: Experience, hparams: Hparams, state: dict) -> Advantages:
    ((name, rows),) = experience.rows.items()
    episodes, sampled = experience.episodes, experience.sampled[name]
    opens, solved = episodes.measured[..., 0] > 0, episodes.reward[..., 0].sum((1, 2)) > 0
    lock = jnp.minimum(opens.cumsum(1) - opens, LOCKS - 1)
    nth = jnp.arange(TURNS)[None, :, None]
    answer = jnp.where(nth < LOCKS, nth % KEYS, KEYS)
    told = select(hparams, "told", skill=advise(state["tried"], lock), answer=answer)
    informed = experience.score(name, rows=exchange_told(rows, state["phrases"], told)).logp
    expert = experience.score(name, weights={name: {"policy": state["expert"]}}).logp
    teacher = select(hparams, "teacher", itself=informed, expert=expert)
    gap = teacher - sampled.behaviour_logp
    reward = per_token(advantages.grpo(episodes.reward[..., 0], *experience.acts), rows, sampled)
    credit = select(hparams, "credit", reward=reward, teacher=jnp.where(sampled.mask, gap, 0))
    far, last = bounded_exp(gap) - 1 - gap, episodes.acted.sum((1, 2))[rows.episode] - 1
    at = (sampled.turn == last[:, None], sampled.turn == 0)
    at_last, at_first = (mean_of(far, sampled.mask & where).value for where in at)
    in_solved = (episodes.acted & solved[:, None, None]).astype(jnp.float32)
    return Advantages(
        {name: credit},
        state=state | {"tried": state["tried"].at[lock, episodes.action].add(in_solved)},
        extra={"teacher": {name: teacher}},
        metrics={LAST: at_last, RISE: at_last - at_first},
    )


def loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO plus `distil` times the estimate k3 of KL(student || teacher), weighted by the ratio to the sampler."""
    total, metrics = losses.ppo(scores, batch, hparams)
    logps = scores.logp, batch.extra["teacher"]
    divergence, _ = losses.kl_penalty(*logps, batch.mask, kind="k3", behaviour_logp=batch.behaviour_logp)
    return Mean(total.sum + hparams["distil"] * divergence.sum, total.count), metrics


CHOICES = {"credit": ("reward", "teacher"), "teacher": ("itself", "expert"), "told": ("skill", "answer")}
FIELDS: dict[str, Any] = {"advantage": estimate_advantages, "loss": loss, "arrange": cut, "init_state": begin}
FIELDS |= {"game": GAME, "step": None, "choices": CHOICES | {"games": ("whole", "growing")}}
GRPO = replace(ALONE, updates=50, hparams={"distil": 0.0}, **FIELDS)
OPD = GRPO.with_choice(credit="teacher", teacher="expert")
SKILL = GRPO.with_hparams(distil=0.1)
TABLE_2, FIGURE_4 = "Table 2: 81.43 against 65.72 (forward, 3B)", "Figures 4b, 4d: KL stays low with the curriculum"
FIGURE_2 = "Figure 2d: KL of a turn increases with the turn"
SD = "abstract: +14.0 and +10.9 over GRPO"
AHEAD = "After an error the t-th key is that of another lock. One key fits a lock: the paper's several strategies lack."
OURS = "The level is ours: a teacher is needed where reward alone, or plain distillation, does not do."
STUDY = Study(
    paper=Paper("TCOD (Wang et al.)", "https://arxiv.org/abs/2604.24005", 2026, checked="release"),
    question="Which teacher helps in long tasks: an expert, or the policy itself when it is told a skill?",
    claim="A curriculum of depth keeps the divergence low and ends higher; a teacher told a skill beats reward alone.",
    arms={"grpo": GRPO, "opd": OPD, "depth": OPD.with_choice(games="growing")}
    | {"skill": SKILL, "fixed": SKILL.with_choice(told="answer")},
    method="depth",
    metrics=(SOLVED, LAST, RISE),
    derived={RISE: partial(mean_over_updates, metric=RISE)},
    predictions=(
        Higher(SOLVED, "depth", than="opd", source="paper", where=TABLE_2),
        Lower(LAST, "depth", than="opd", source="paper", where=FIGURE_4),
        Higher(SOLVED, "skill", than="grpo", source="paper", where=SD),
        Higher(SOLVED, "skill", than="fixed", source="theory", where=AHEAD),
        AtLeast(RISE, "opd", 0.0, source="paper", where=FIGURE_2, condition=True),
        *(AtMost(SOLVED, name, 0.9, source="theory", where=OURS, condition=True) for name in ("opd", "grpo")),
    ),
)
