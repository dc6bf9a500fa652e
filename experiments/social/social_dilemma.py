"""Does the advantage estimator decide if language models cooperate in the iterated prisoner's dilemma?

Two seats play several rounds of the prisoner's dilemma (3/1/5/0) and learn from their points. Tiny policies begin with
a warm start that cooperates with probability 0.7. The arms differ in two numbers, `joint` and `beta`:

  naive       a seat's return-to-go, compared round by round with the other episodes of its group
  sum         the same with the rewards of both seats added up
  alignment   advantage alignment: a seat also values the effect of its past gains on the other seat's advantages
  talk        with `--arms`: both seats say a line before each move; a tiny policy says up to four letters
  two_models  with `--arms`: each seat learns its own policy

Predictions:

- Naive policies end in mutual defection: at most 1.2 points a round in self-play. Otherwise nothing is tested.
- Policies with alignment end with more points than naive ones. Always-defect earns less from them than from policies
  that learn from the sum.
- SmolLM2's cooperation falls under naive learning, both as label A and as label B.

Before any run the second prediction had levels: at least 2.4 points of 3, and at most 1.6 for always-defect.

  python -m experiments social_dilemma --seeds 10    # 11 minutes on two CPU cores
  python -m experiments social_dilemma --model smollm2 --seeds 1    # naive, 24 updates of 64 games
  python -m experiments social_dilemma --arms two_models --models seat_0=smollm2 seat_1=gemma3-270m --seeds 1
                                                     # 24 updates, about 20 minutes
  python -m experiments social_dilemma --arms talk --model smollm2 --seeds 1

Paper: Duque et al. 2025, Advantage Alignment Algorithms, https://arxiv.org/abs/2406.14662
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.social.matrix_games import COOPERATE, MatrixGame
from jaxmarl_llm.rl import advantages, losses, rewards
from jaxmarl_llm.rl.masked import Mean, keep, mean_of
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, words
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import are_kept
from jaxmarl_llm.training.recipe import SNAPSHOT, Hparams, Parts, Recipe
from jaxmarl_llm.training.records import Advantages, Experience, Snapshots
from jaxmarl_llm.training.setup import jit_rollout

PRIOR = 0.7  # share of cooperation in the dialogues of a tiny policy's warm start
BETA = 0.5  # weight of the alignment term
METHODS = {
    "naive": (0.0, 0.0),
    "sum": (1.0, 0.0),
    "alignment": (0.0, 1.0),
}  # weights of the other seat's reward and of alignment
SCRIPTED = ("always_defect", "tit_for_tat", "always_cooperate", "grim", "win_stay_lose_shift", "random")
OUTCOMES = ("CC", "CD", "DC", "DD")  # the previous round: the policy's move first


def by_round(
    reward: jax.Array,
    acted: jax.Array,
    group: jax.Array,
    groups: int,
    *,
    turns: int,
    joint: jax.Array,
    gamma: jax.Array,
    beta: jax.Array,
) -> jax.Array:
    """Advantages [B, T, 2] by advantage alignment, counted in rounds of `turns` turns.

    A message shares the advantage of its round's move. A seat's reward is its own plus `joint` times the other
    seat's. With beta = 0 the result is `advantages.round_leave_one_out`; the other arguments are the same as there.
    """
    rounds = lambda x: x.reshape(len(x), -1, turns, x.shape[2])
    paid = rounds(reward).sum(2)
    valued = paid + joint * paid[:, :, ::-1]
    aligned = advantages.advantage_alignment(valued, rounds(acted).any(2), group, groups, gamma=gamma, beta=beta)
    return keep(jnp.repeat(aligned, turns, axis=1), acted)


def dilemma(experience: Experience, hparams: Hparams, state: tuple, *, turns: int = 1) -> Advantages:
    """`by_round` for rewards divided by `reward_scale`."""
    reward = rewards.weigh(experience.episodes.reward, jnp.ones(1)) / hparams["reward_scale"]
    joint, gamma, beta = (hparams[name] for name in ("joint", "gamma", "beta"))
    return Advantages(by_round(reward, *experience.acts, turns=turns, joint=joint, gamma=gamma, beta=beta))


def truncated_loss(scores: losses.Scores, batch: losses.Batch, hparams: Hparams) -> losses.LossAndMetrics:
    """`losses.alignment`, plus `kl` times the KL penalty if the recipe has a reference; the loss of all arms."""
    total, metrics = losses.alignment(
        scores.logp, batch.behaviour_logp, batch.advantage, scores.entropy, batch.mask,
        cap=hparams["cap"], entropy_weight=hparams["entropy"],
    )  # fmt: skip
    if batch.reference_logp is None:
        return total, metrics
    drift, more = losses.kl_penalty(scores.logp, batch.reference_logp, batch.mask)
    return Mean(total.sum + hparams["kl"] * drift.sum, total.count), metrics | more


def self_play(
    episodes: Episodes, *, alone: int, talk: bool = False, labels: tuple[str, str] = MatrixGame.labels
) -> dict[str, jax.Array]:
    """Points a round and cooperation in the first `alone` groups, in which no snapshot plays.

    Both are given for all seats and for each seat; cooperation also under each labeling.
    """
    move = slice(1, None, 2) if talk else slice(None)  # turns of moves; the others are messages
    points = episodes.reward[:, move, :, 0].mean(1)  # [B, 2]
    cooperated = (episodes.action[:, move] == COOPERATE).mean(1)
    where = jnp.broadcast_to(((episodes.group < alone) & are_kept(episodes))[:, None], points.shape)
    measures = {"points": mean_of(points, where).value, "cooperation": mean_of(cooperated, where).value}
    for seat in range(2):
        measures[f"points/seat_{seat}"] = mean_of(points[:, seat], where[:, seat]).value
        measures[f"cooperation/seat_{seat}"] = mean_of(cooperated[:, seat], where[:, seat]).value
    for i, label in enumerate(labels if alone > 1 else ()):
        labeled = where & (episodes.group % 2 == i)[:, None]
        measures[f"cooperation/as_{label}"] = mean_of(cooperated, labeled).value
    return measures


def evaluate(parts: Parts, *, group_size: int = 32) -> Callable[[dict, jax.Array], dict[str, np.ndarray]]:
    """Points a round against every scripted player and in self-play, and probabilities of cooperation.

    Cooperation is measured in the first round, after each outcome, and under each labeling. Each metric has a value per
    game, NaN if the case did not occur. Each pair plays `group_size` games under each labeling; a policy keeps the seat
    in which it was trained.
    """
    game, names = replace(parts.recipe.game, cooperation=0.5), parts.learners
    seats = [(name, script)[:: 1 - 2 * seat] for seat, name in enumerate(names) for script in SCRIPTED]
    lineup = Lineup(tuple(pair for pair in (*seats, (names[0], names[-1])) for _ in game.labels), group_size)
    policy_sets = {name: policies for name, policies in parts.policy_sets.items() if name != SNAPSHOT}
    play = jit_rollout(Rollout(game, policy_sets, lineup, parts.recipe.budget))
    by_pair = lambda x: np.asarray(x).reshape(len(seats) + 1, -1, *x.shape[1:])

    def measure(weights: dict, key: jax.Array) -> dict[str, np.ndarray]:
        episodes = play({name: weights[name] for name in policy_sets}, key).episodes
        move = slice(1, None, 2) if game.talk else slice(None)
        points = by_pair(episodes.reward[:, move, :, 0].mean(1))  # [pairs, games, 2]
        cooperated = by_pair(episodes.action[:, move] == COOPERATE)  # [pairs, games, rounds, 2]
        swapped = np.broadcast_to(by_pair(episodes.group % 2)[..., None], cooperated.shape[:-1])
        metrics = {}
        for seat, name in enumerate(names):
            prefix, partner = ("", "itself") if len(names) == 1 else (f"{name} ", names[1 - seat])
            pairs = [seat * len(SCRIPTED) + i for i in range(len(SCRIPTED))]
            for i, script in zip(pairs, SCRIPTED, strict=True):
                metrics[f"{prefix}against {script}"] = points[i, :, seat]
                metrics[f"{script} earns" + f" of {name}" * bool(prefix)] = points[i, :, 1 - seat]
            metrics[f"{prefix}against {partner}"] = points[-1, :, seat]
            ours, theirs = (cooperated[[*pairs, -1]][..., side] for side in (seat, 1 - seat))
            last = np.full(ours.shape, -1)
            last[..., 1:] = 2 * ~ours[..., :-1] + ~theirs[..., :-1]  # index of OUTCOMES
            cases = {"first round": last < 0, **{f"after {x}": last == i for i, x in enumerate(OUTCOMES)}}
            cases |= {f"called {label}": swapped[[*pairs, -1]] == i for i, label in enumerate(game.labels)}
            with np.errstate(invalid="ignore"):
                for case, met in cases.items():
                    metrics[f"{prefix}P(cooperate) {case}"] = ((ours & met).sum(-1) / met.sum(-1)).reshape(-1)
        return metrics

    return measure


GROUPS = 4  # both labelings, in self-play and against a snapshot
SELF_PLAY = ("learner", "learner")
NAIVE = Recipe(
    MatrixGame(rounds=10, cooperation=PRIOR),
    seats=(SELF_PLAY, SELF_PLAY, ("learner", SNAPSHOT), ("learner", SNAPSHOT)),
    advantage=partial(dilemma, turns=1),
    loss=truncated_loss,
    hparams={
        "gamma": 0.9,
        "cap": 2.0,  # bound of the importance weight
        "entropy": 0.01,
        "reward_scale": 5.0,
        "kl": 0.0,
        "learning_rate": 3e-4,
        "joint": 0.0,
        "beta": 0.0,
    },
    warm_start=(("random", "random"),),
    warm_start_updates=200,
    updates=400,
    groups=GROUPS,
    group_size=32,
    measure=partial(self_play, alone=GROUPS // 2),
    snapshots=Snapshots(30),
    evaluate=evaluate,
    eval_every=100,
    pretrained={
        "game": MatrixGame(rounds=3),
        "updates": 24,
        "groups": GROUPS,
        "group_size": 16,
        "grad_accumulation": 2,
        "measure": partial(self_play, alone=GROUPS),
        "evaluate": partial(evaluate, group_size=8),
    },
)
TALK = replace(
    NAIVE,
    tokenizer=words,
    game=MatrixGame(rounds=3, talk=True),
    advantage=partial(dilemma, turns=2),
    budget=(2, 2, 5),
    measure=partial(self_play, alone=GROUPS // 2, talk=True),
    pretrained={
        **NAIVE.pretrained,
        "game": MatrixGame(rounds=3, talk=True),
        "budget": (8, 8, 24),
        "measure": partial(self_play, alone=GROUPS, talk=True),
    },
)
TWO_MODELS = replace(
    NAIVE,
    seats=(("seat_0", "seat_1"),),
    snapshots=None,
    measure=partial(self_play, alone=GROUPS),
    # At 3e-4 one update makes Gemma 3 270M give the same letter always.
    pretrained={**NAIVE.pretrained, "hparams": {"learning_rate/seat_0": 3e-4, "learning_rate/seat_1": 3e-5}},
)
ARMS = {method: NAIVE.with_hparams(joint=joint, beta=aligned * BETA) for method, (joint, aligned) in METHODS.items()}

STUDY = Study(
    paper=Paper("Advantage Alignment (Duque et al.)", "https://arxiv.org/abs/2406.14662", 2025, checked="paper"),
    question="Does advantage alignment keep cooperation in the iterated prisoner's dilemma?",
    claim="Naive learners end in mutual defection, at most 1.2 points a round in self-play. With advantage alignment "
    "they end with 2.4 points or more, of which always-defect gets 1.6 at most; with the sum of rewards they end with "
    "2.4 or more too, but always-defect earns 3 or more from them.",
    arms=ARMS,
    extra={"talk": TALK, "two_models": TWO_MODELS},
    expected={
        ("smollm2", "naive"): "Two copies of SmolLM2-135M play the prisoner's dilemma and learn by policy gradient. "
        "Expect cooperation to fall from 0.50 to about 0.14 within 24 updates (6 minutes), most of it after the 16th."
    },
    method="alignment",
    metrics=("points", "always_defect earns", "against tit_for_tat"),
    predictions=(
        AtMost(
            "points",
            "naive",
            1.2,
            source="theory",
            where="defection is dominant in each round of a finite game, so selfish learners end at mutual defection, "
            "1 point",
            condition=True,
        ),
        Higher(
            "points",
            "alignment",
            than="naive",
            source="paper",
            where="abstract: naive learners converge to Pareto-suboptimal Nash equilibria; Advantage Alignment "
            "achieves state-of-the-art cooperation",
        ),
        Lower(
            "always_defect earns",
            "alignment",
            than="sum",
            source="paper",
            where="abstract: '... and robustness against exploitation'; the arm `sum` as comparison is ours",
        ),
    ),
    checks=(
        AtLeast("points", "sum", 2.4),
        AtLeast("always_defect earns", "sum", 3.0),
    ),
)
