"""Should the points of a misread checklist be credited by turn or at the end? CM2 on a farm.

The farm of the study `gates`: four works in an order and a stop, within seven turns; a look changes and pays nothing. A
checklist has an item for each work and one for a stop after all works. After every turn a judge reads whether the open
item is met, wrongly with chance 0.2 at every reading. If it reads yes, the item gives 1/5, and the next one is open.

  at_end    CM2's trajectory-level advantage: a game's points less the mean of its group, in every turn
  by_turn   CM2's step-level advantage: 1 if the open item is ever met, less the share of the group's games that meet it
  outcome   one criterion, that the farm is complete, read once at the end, with at_end's advantage
  .../read  as at_end and by_turn, without a wrong reading
  imitated  the policy before training, which imitates a farmer who errs in 40% of the turns

  completed       share of games that stop with all works done
  fall            peak of completed less its end, each over a tenth of the updates
  updates to 60%  updates until completed, over ten updates, is 0.6

  python -m experiments checklists --seeds 40

Paper: Zhang et al. 2026, CM2, https://arxiv.org/abs/2602.12268; formulas from the paper in its release. A model of 8B
parameters calls tools there, in dialogues whose users ask several times, and a language model judges. Here a game is
one request, and a turn is a step of the paper. As there: no division by a deviation, no entropy bonus. The released
step-level baseline differs: it is the share among those games in which the item was open.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from experiments.credit_assignment.gates import COMPLETE
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.solo.farm import Farm
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import estimate, group_index, key_of
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import fall_from_peak, updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

GAME = Farm(turns=7, look=0.0, works=4)
ITEMS, FALL, UPDATES = GAME.works + 1, "fall", "updates to 60%"


def items(episodes: Episodes) -> jax.Array:
    """bool [B, T, items]: each item is met after the turn."""
    done = jnp.round(episodes.measured[:, :, 0, 0].cumsum(1) * GAME.works)
    complete = episodes.reward[:, :, 0, :1] > COMPLETE
    return jnp.concatenate([done[..., None] > jnp.arange(GAME.works)[None, None], complete], -1)


def misread(truth: jax.Array, chance: jax.Array, key: jax.Array) -> jax.Array:
    """Readings of a truth, bool [...]: each is wrong with this chance, independently."""
    return truth ^ jax.random.bernoulli(key, chance, truth.shape)


def follow(read: jax.Array, acted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(item int32 [B, T], met bool [B, T]) for readings of all items after each act, bool [B, T, items].

    The item is open before the act, ITEMS after the last one. It is met if it is read so after the act.
    """

    def turn(item: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        met = now[1] & (now[0] & (item[:, None] == jnp.arange(ITEMS)[None])).any(1)
        return item + met, (item, met)

    item, met = jax.lax.scan(turn, jnp.zeros(len(read), jnp.int32), (jnp.moveaxis(read, 1, 0), acted.T))[1]
    return item.T, met.T


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    episodes, (acted, group, groups) = experience.episodes, experience.acts
    keys, complete = jax.random.split(experience.key), episodes.reward[..., 0].sum(1, keepdims=True) > COMPLETE
    item, met = follow(misread(items(episodes), hparams["misread"], keys[0]), acted[..., 0])
    ever = (met.sum(1)[:, None] > jnp.arange(ITEMS)[None])[:, None]  # [B, 1, items]
    key = key_of(ever.shape, group=group_index(group, groups), item=(jnp.arange(ITEMS)[None, None], ITEMS))
    above = estimate(ever.astype(jnp.float32), jnp.ones_like(ever), *key, baseline="mean")
    is_open = acted & (item[..., None] == jnp.arange(ITEMS)[None, None])
    verdict = misread(complete, hparams["misread"], keys[1]) * jnp.eye(GAME.turns)[None, :, :1]
    return Advantages(
        select(
            hparams,
            "credit",
            at_end=advantages.grpo(met[..., None] / ITEMS, *experience.acts, scale="none"),
            by_turn=jnp.where(is_open, above, 0).sum(-1, keepdims=True),
            outcome=advantages.grpo(verdict, *experience.acts, scale="none"),
        )
    )


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    return {"completed": mean_of_kept(episodes, episodes.reward[..., 0].sum((1, 2)) > COMPLETE)}


AT_END = Recipe(
    Noisy(GAME, (Errs("start", "correct", 0.6),)), seats=(("learner",),), warm_start=(("start",),), budget=1,
    advantage=estimate_advantages, choices={"credit": ("at_end", "by_turn", "outcome")}, measure=measure,
    hparams={"learning_rate": 5e-3, "entropy": 0.0, "misread": 0.2}, updates=300, groups=1, group_size=8,
    pretrained={"budget": 4},
)  # fmt: skip
BY_TURN = AT_END.with_choice(credit="by_turn")
FINER = "Section 5.1, Figure 3a: finer granularity improves faster at first, and collapses earlier and more severely"
TUNED = "abstract: 8, 10 and 12 points over supervised fine-tuning on three benchmarks"
NOISE = "Section 7: with sufficiently low noise finer granularity may avoid premature collapse"
OURS = "Ours: imitated stands still, so its fall is that of samples. Without more nothing is compared."
STUDY = Study(
    paper=Paper("CM2 (Zhang et al.)", "https://arxiv.org/abs/2602.12268", 2026, checked="release"),
    question="Should the points of a misread checklist be credited by turn or at the end?",
    claim="Credited at the end, a checklist that is misread at times trains a policy that falls less.",
    arms={"at_end": AT_END, "by_turn": BY_TURN, "outcome": AT_END.with_choice(credit="outcome")}
    | {"at_end/read": AT_END.with_hparams(misread=0.0), "by_turn/read": BY_TURN.with_hparams(misread=0.0)}
    | {"imitated": AT_END.with_hparams(learning_rate=0.0)},
    method="at_end",
    metrics=("completed", FALL, UPDATES),
    predictions=(
        Lower(FALL, "at_end", than="by_turn", source="paper", where=FINER),
        Higher(FALL, "by_turn", than="imitated", source="theory", where=OURS, condition=True),
        Higher("completed", "at_end", than="imitated", source="paper", where=TUNED),
        Higher("completed", "at_end", than="by_turn", source="paper", where=FINER),
        Lower(UPDATES, "by_turn", than="at_end", source="paper", where=FINER),
        Lower(FALL, "by_turn/read", than="by_turn", source="paper", where=NOISE),
    ),
    censored={UPDATES: AT_END.updates},
    derived={FALL: partial(fall_from_peak, metric="completed")}
    | {UPDATES: partial(updates_to, metric="completed", bound=0.6, over=10)},
)
