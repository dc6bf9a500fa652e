"""Do dense rewards and credit by turns save updates, compared with sparse rewards and credit by tokens or episodes?

Two seats share one policy for six turns. Each colour has one right answer of two tokens (`SixTurns` with AA, AB, BA,
BB). A turn's reward depends on that turn alone. Dense rewards are paid in their turn. Sparse rewards pay each seat's
sum when the game ends. Four estimators learn from both:

  token     GAE (lambda 0.95) from token to token, through all turns of the row
  turn      GAE from turn to turn; all tokens of a turn share the advantage
  bi_level  GAE from turn to turn; its target is the reward of a turn's last token for GAE over tokens
  episode   no critic: the seat's return minus the mean of the group's other episodes

Predicted, for the updates until 90% of the answers are right (120 at most):

- Each critic needs fewer updates with dense rewards than with sparse ones.
- `token` needs fewer updates than `episode`, with dense and with sparse rewards.
- With dense rewards, `turn` needs fewer updates than `episode`. The seat's return holds two other turns, which are
  noise here.

The seat's return is the same for both densities, so the two `episode` arms are the same. No difference is expected
between `token` and `turn`, because an answer has only two tokens. Nothing else is claimed among the sparse arms.

  python -m experiments credit_levels --seeds 10    # 4 minutes on two quiet cores
  python -m experiments credit_levels --model smollm2 --seeds 1

Paper: Wang & Ammanabrolu 2025, A Practitioner's Guide to Multi-turn Agentic RL, https://arxiv.org/abs/2510.01132. Its
models are pretrained, its PPO has lambda 1, and it compares success after equal training. The released RLOO recipe
draws one episode for each task, so its baseline is zero; here eight episodes share the cues.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.team import answer_letters
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience


def compute_reward(experience: Experience, hparams: Hparams) -> jax.Array:
    """Rewards [B, T, A]: dense ones in their turn, the sum of sparse ones in the last turn."""
    hit = experience.episodes.reward[..., 0]
    end = jnp.zeros_like(hit).at[:, -1].set(hit.sum(1))
    return select(hparams, "reward", dense=hit, sparse=end)


def by_token(experience: Experience, hparams: Hparams, state: tuple, *, gae: Callable) -> Advantages:
    """Advantages of tokens by `gae`, a generalised advantage estimate over the tokens of a row."""
    reward, estimates = compute_reward(experience, hparams), {}
    for name, rows in experience.rows.items():
        sampled = experience.sampled[name]
        seat_reward = reward[rows.episode, :, rows.seat]
        estimates[name] = gae(seat_reward, experience.token_value[name], sampled.turn, sampled.mask, lam=hparams["lam"])
    advantage = {name: targets.advantage for name, targets in estimates.items()}
    return Advantages(advantage, {name: targets.value_target for name, targets in estimates.items()})


def by_turn(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE from turn to turn."""
    reward, acted = compute_reward(experience, hparams), experience.episodes.acted
    return Advantages(*returns.gae(reward, experience.turn_value, acted, lam=hparams["lam"]))


def by_episode(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The seat's return minus the mean of the group's other episodes."""
    return Advantages(advantages.rloo(compute_reward(experience, hparams), *experience.acts, per_agent=True))


def right(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of right answers, over both seats and all turns."""
    return {"right": (episodes.reward[..., 0] > 0).sum() / jnp.maximum(episodes.acted.sum(), 1)}


BASE = Recipe(
    SixTurns(letters=("AA", "AB", "BA", "BB")),
    seats=(("learner", "learner"),),
    advantage=by_turn,
    hparams={"learning_rate": 2e-3, "value": 0.1, "lam": 0.95},
    choices={"reward": ("dense", "sparse")},
    critic=True,
    tokenizer=answer_letters,
    updates=120,
    groups=8,
    measure=right,
)
LEVELS = {
    "token": replace(BASE, advantage=partial(by_token, gae=returns.gae_by_token)),
    "turn": BASE,
    "bi_level": replace(BASE, advantage=partial(by_token, gae=returns.gae_bi_level)),
    "episode": replace(BASE, advantage=by_episode, critic=False),
}
ARMS = {
    f"{reward}/{name}": level.with_choice(reward=reward)
    for reward in ("dense", "sparse")
    for name, level in LEVELS.items()
}
UPDATES = "updates to 90%"


STUDY = Study(
    paper=Paper(
        "A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu)",
        "https://arxiv.org/abs/2510.01132",
        2025,
        checked="release",
    ),
    question="Do dense rewards and credit by turns save updates?",
    claim="Every critic reaches 90% in fewer updates with dense rewards than with sparse ones, and credit by turns in "
    "fewer than credit by episodes.",
    arms=ARMS,
    method="dense/turn",
    metrics=(UPDATES, "right"),
    predictions=(
        Lower(
            UPDATES,
            "dense/token",
            than="sparse/token",
            source="paper",
            where="Section 7.1, Table 11: PPO 0.41 with sparse rewards, 0.58 with the densest, 0.29 in between",
        ),
        Lower(
            UPDATES,
            "dense/token",
            than="dense/episode",
            source="paper",
            where="Section 7.1, Table 11, densest rewards: PPO 0.58, RLOO 0.55",
        ),
        Lower(
            UPDATES,
            "sparse/token",
            than="sparse/episode",
            source="paper",
            where="Sections 6.2 and 7.1, Tables 10 and 11, sparse rewards: PPO 0.88 and 0.41, RLOO 0.51 and 0.35",
        ),
        *(
            Lower(
                UPDATES,
                f"dense/{name}",
                than=f"sparse/{name}",
                source="theory",
                where="A dense reward shortens the span over which lambda 0.95 sums the noise of other turns.",
            )
            for name in ("turn", "bi_level")
        ),
        Lower(
            UPDATES,
            "dense/turn",
            than="dense/episode",
            source="theory",
            where="The seat's return holds two other turns. Turns are independent, so these add variance alone.",
        ),
    ),
    censored={UPDATES: BASE.updates},
    derived={UPDATES: partial(updates_to, metric="right")},
)
