"""Which tricks of RL for language models work on their own? Advantage scales, loss means, and their pair Lite PPO.

A question of `Quiz` has one point. The share of its 20 letters that earn it is 5, 10, 30, 60 or 90%. Up to three idle
words make answers of 2 to 4 tokens. Each batch is used for two epochs, so that the clip acts. Advantages:

  grpo  reward minus the group's mean, over the group's standard deviation
  lite  reward minus the group's mean, over the batch's standard deviation

Means of the clipped loss:

  token     over all tokens of the batch
  row       over the tokens of each answer, then over answers: each answer has the same weight
  constant  each answer's sum over a constant length, 4 (Dr. GRPO)

An arm is a pair, as `grpo/row`. Lite PPO is `lite/token`. In `lite/token/high` the upper clip is 0.28 instead of 0.2.
GRPO as first published is `grpo/row`. `mean success` is the mean over all updates.

Predictions, as in the paper for its base models: Lite PPO is above `grpo/row` in `mean success` and in `success` at the
end. Either half of it alone, `lite/row` and `grpo/token`, ends above `grpo/row`, and `lite/token/high` ends below
`lite/token`.

  python -m experiments tricks --seeds 10

Paper: Liu et al. 2025, Tricks or Traps? (Lite PPO), https://arxiv.org/abs/2508.08221. There Qwen3 models of 4B and 8B
answer in up to 8,192 tokens and are compared by test accuracy in mathematics. Its aligned models prefer the mean over
answers to that over tokens, and the higher clip. Here success is that of training, and GRPO has no KL penalty.
"""

from __future__ import annotations

from functools import partial

from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import mean_of, mean_per_row, sum_per_row
from jaxmarl_llm.studies.curves import mean_over_updates, updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

LONGEST = 4
ADVANTAGES, MEANS = ("grpo", "lite"), ("token", "row", "constant")
MEAN, UPDATES = "mean success", "updates to 80%"


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    reward, acts = experience.episodes.total_reward, experience.acts
    return Advantages(
        select(hparams, "advantage", grpo=advantages.grpo(reward, *acts), lite=advantages.lite(reward, *acts))
    )


def arm_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """The clipped surrogate under the arm's mean. All three means are computed, so that arms share a program."""
    clip = partial(losses.ppo_clip, clip_low=hparams["clip_low"], clip_high=hparams["clip_high"])
    given = scores.logp, batch.behaviour_logp, batch.advantage, batch.mask
    token, metrics = clip(*given, aggregate=mean_of)
    row, _ = clip(*given, aggregate=mean_per_row)
    constant, _ = clip(*given, aggregate=partial(sum_per_row, length=LONGEST))
    return select(hparams, "mean", token=token, row=row, constant=constant), metrics


BASE = Recipe(
    Quiz(shares=((0.05, 0.1, 0.3, 0.6, 0.9),), questions=10, filler=LONGEST - 2),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=arm_loss,
    tokenizer=Quiz.letter_tokenizer,
    hparams={"learning_rate": 2.5e-3, "entropy": 0.0},
    choices={"advantage": ADVANTAGES, "mean": MEANS},
    epochs=2,
    updates=50,
    groups=10,
    group_size=8,
    measure=partial(component_returns, success=0),
)
ARMS = {
    f"{advantage}/{mean}": BASE.with_choice(advantage=advantage, mean=mean)
    for advantage in ADVANTAGES
    for mean in MEANS
}
STUDY = Study(
    paper=Paper("Tricks or Traps? (Liu et al.)", "https://arxiv.org/abs/2508.08221", 2025, checked="release"),
    question="Which tricks survive on their own: the batch's deviation, the mean over tokens?",
    claim="The batch's deviation with the mean over tokens learns faster than GRPO as first published.",
    arms=ARMS | {"lite/token/high": ARMS["lite/token"].with_hparams(clip_high=0.28)},
    method="lite/token",
    metrics=("success", MEAN, UPDATES, "clipped/learner", "length/learner"),
    predictions=(
        Higher(
            MEAN,
            "lite/token",
            than="grpo/row",
            source="paper",
            where="Section 5, Figure 15: on base models Lite PPO outperforms GRPO, with 'a stable upward trend' where "
            "other policies collapse.",
        ),
        Higher(
            "success",
            "lite/token",
            than="grpo/row",
            source="paper",
            where="Section 5, Figure 15; abstract: 'consistently improves performance, surpassing strategies such as "
            "GRPO and DAPO'. Added after a table of seeds 0 to 9: 0.962 against 0.953.",
        ),
        Higher(
            "success",
            "lite/row",
            than="grpo/row",
            source="paper",
            where="Section 4.1.2, Figure 6: on base models the batch's deviation has 'a clear advantage' over the "
            "group's. Added after a table of seeds 0 to 9: 0.962 against 0.953.",
        ),
        Higher(
            "success",
            "grpo/token",
            than="grpo/row",
            source="paper",
            where="Section 4.3.1, Figure 12: on base models token-level loss improves 'convergence, peak accuracy, and "
            "robustness'. Added after a table of seeds 0 to 9: 0.954 against 0.953.",
        ),
        Lower(
            "success",
            "lite/token/high",
            than="lite/token",
            source="paper",
            where="Section 4.2.1, Figure 8: on base models an upper clip of 0.28 'even damages the performance'. Added "
            "after a table of seeds 0 to 9: 0.961 against 0.962.",
        ),
    ),
    censored={UPDATES: BASE.updates},
    derived={
        MEAN: partial(mean_over_updates, metric="success"),
        UPDATES: partial(updates_to, metric="success", bound=0.8),
    },
)
