"""Does advantage alignment keep cooperation if players talk and may lie? Trust-and-Split.

Two seats hold a hand of rock-paper-scissors each and see only their own. Each names a hand to the other, then both
claim coins. A coin is worth 10 points to the winning hand and 1 to the losing hand. Claiming all coins is dominant. The
joint optimum gives all coins to the winner, but the seats know the winner only if they tell each other. Hands and
claims are shown after the round, so trust can grow or end in later rounds. The methods are those of `social_dilemma`:

  naive                   a seat's return-to-go, compared round by round with the other episodes of its group
  sum                     the same with the rewards of both seats added up
  alignment               advantage alignment
  kl/naive, kl/alignment  with 0.1 times the KL divergence from the warm start; `alignment_exact` says that it helps
  kl/beta_2, kl/beta_5    kl/alignment with a weight of 2 or 5 instead of 0.5

A tiny policy names a hand with one token (`signals`); a pretrained model says a line of free text. The message of a
round shares the advantage of the round's claim. Tiny policies first imitate cooperative dialogues: their messages are
true, and the losing hand claims nothing with probability 0.7. Metrics:

  efficiency           share of the best joint points
  claim after a yield  a losing hand's claim, after a scripted player claimed nothing with its losing hand
  claim after a claim  the same, after that player claimed some coins
  greedy earns         points a round of a player that always claims all

Predictions, for 150 updates of 32 games of 3 rounds:

- Naive policies end by claiming the coins with every hand: efficiency is at most 0.6 (0.55 if both claim all).
  Otherwise nothing is tested. Aligned policies end above them.
- A player that always claims all earns more from the sum than from policies of alignment or kl/beta_2.
- With the KL penalty, aligned policies end above naive ones, and a beta of 2 ends at 0.8 or more.
- Policies of kl/beta_2 claim less after a yield than those of kl/naive, and more after a claim.

  python -m experiments trust_and_split --seeds 10    # 9 minutes on two cores beside other work
  python -m experiments trust_and_split --model smollm2 --seeds 1

Paper: Piche et al. 2025, Learning Robust Social Strategies with Large Language Models,
https://arxiv.org/abs/2511.19405. Game and method follow its released code (AdAlignLLM), but not its numbers for this
game: 10 rounds, gamma 0.96, beta 2, KL 0.001, and past agents. Gamma 0.9 and beta 0.5 are its numbers for the
prisoner's dilemma. The rules of the game were read there from one truncated line. The signals and the cooperative start
are additions of this study.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from experiments.social.social_dilemma import NAIVE as DILEMMA
from jaxmarl_llm.environments.social.trust_and_split import TrustAndSplit
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import are_kept, mean_of_kept
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.setup import jit_rollout

TURNS = 3  # turns of a round: one seat speaks, then the other, then both claim
YIELDED, CLAIMED = "claim after a yield", "claim after a claim"


def split(episodes: Episodes, *, game: TrustAndSplit) -> dict[str, jax.Array]:
    """Points per round and seat, share of the best joint points, mean claims of the winning and the losing hand."""
    points, claim, wins, known = game.rounds_played(episodes.reward[..., 0], episodes.action)
    known &= are_kept(episodes)[:, None, None]
    return {
        "points": mean_of_kept(episodes, points),
        "efficiency": mean_of_kept(episodes, points.sum(2), then=lambda mean: mean / (game.high * game.coins)),
        "claim of the winner": mean_of(claim, known & wins).value,
        "claim of the loser": mean_of(claim, known & ~wins).value,
    }


def against(parts: Parts) -> Callable[[dict, jax.Array], dict[str, float]]:
    """Evaluation against scripted players: `greedy` always claims all; `trusting`, only with signals, believes.

    Metrics are the points a round of `greedy`, and the policy's claims with the losing hand. These are split by the
    other seat's last claim with a losing hand: some coins, or none.
    """
    (name,), game, group_size = parts.learners, parts.recipe.game, 64
    others = ("greedy", "trusting") if game.signals else ("greedy",)
    lineup = Lineup(tuple(pair for other in others for pair in ((name, other), (other, name))) * 8, group_size // 8)
    rollout = Rollout(replace(game, trust=1.0), {name: parts.policy_sets[name]}, lineup, parts.recipe.budget)
    play = jit_rollout(rollout)

    def evaluate(weights: dict, key: jax.Array) -> dict[str, float]:
        episodes = play({name: weights[name]}, key).episodes
        group = np.asarray(episodes.group)
        own_seat = lambda x: np.take_along_axis(np.asarray(x), group[:, None, None] % 2, 2)[..., 0]
        points, claim, wins, known = game.rounds_played(episodes.reward[..., 0], episodes.action)
        greedy, yielded = group // 2 % len(others) == 0, own_seat(claim[..., ::-1])[:, :-1] == 0
        asked = own_seat(known & ~wins)[:, 1:] & own_seat(known & wins)[:, :-1]
        after = {CLAIMED: asked & ~yielded, YIELDED: asked & yielded}
        answers = {x: float(own_seat(claim)[:, 1:][at].mean()) if at.any() else np.nan for x, at in after.items()}
        return {"greedy earns": float(own_seat(points[..., ::-1])[greedy].mean()), **answers}

    return evaluate


# 5 coins: without an end token, no number may be the prefix of another one, as "1" is of "10".
GAME, WORDS = TrustAndSplit(rounds=3, coins=5, signals=True, trust=0.7), TrustAndSplit(rounds=2)


def game_and_measure(game: TrustAndSplit) -> dict[str, Any]:
    return {"game": game, "measure": partial(split, game=game)}


NAIVE = replace(
    DILEMMA,
    **game_and_measure(GAME),
    seats=(("learner", "learner"),),
    advantage=partial(cast(Any, DILEMMA.advantage), turns=TURNS),
    hparams={**DILEMMA.hparams, "reward_scale": 25.0},
    warm_start=(("trusting", "trusting"),),
    updates=150,
    groups=4,
    group_size=8,
    snapshots=None,
    evaluate=against,
    eval_every=150,
    # At temperature 1 a 135M model hardly writes English, and an entropy bonus makes it worse.
    pretrained={
        **game_and_measure(WORDS),
        "budget": (8, 24),
        "sampling": Sampling(temperature=0.7, top_p=0.9),
        "reference": True,
        "hparams": {"entropy": 0.0, "kl": 0.05},
    },
)
# weights of the other seat's reward and of alignment
METHODS = {"naive": (0.0, 0.0), "sum": (1.0, 0.0), "alignment": (0.0, 0.5)}
ARMS = {method: NAIVE.with_hparams(joint=joint, beta=beta) for method, (joint, beta) in METHODS.items()}
STRONGER = {**NAIVE.pretrained, "hparams": {"entropy": 0.0, "kl": 0.1}}
HELD = replace(NAIVE, reference=True, pretrained=STRONGER).with_hparams(kl=0.1)
BETAS = {"naive": 0.0, "alignment": 0.5, "beta_2": 2.0, "beta_5": 5.0}
ARMS |= {f"kl/{method}": HELD.with_hparams(beta=beta) for method, beta in BETAS.items()}
TUNED = (
    "seeds 100 to 104, two or three for each setting: the penalty of 0.1 was chosen because the direction shows with it"
)
STUDY = Study(
    paper=Paper(
        "Advantage Alignment for language models, Trust-and-Split (Piche et al.)",
        "https://arxiv.org/abs/2511.19405",
        2025,
        checked="release",
    ),
    question="Does advantage alignment keep two talking policies cooperative?",
    claim="Naive policies end with a joint efficiency of 0.6 at most, those that learn from the sum of rewards at 0.9 "
    "or more, but who always claims all earns more from these than from aligned ones. Aligned ones end higher than "
    "naive ones where both are held near their start, and answer claims with claims.",
    arms=ARMS,
    method="alignment",
    metrics=("efficiency", "points", "claim of the winner", "claim of the loser", "greedy earns", YIELDED, CLAIMED),
    predictions=(
        AtMost(
            "efficiency",
            "naive",
            0.6,
            source="theory",
            where="claiming all coins is dominant, and the efficiency is 0.55 if both seats do so",
            condition=True,
        ),
        Higher(
            "efficiency",
            "alignment",
            than="naive",
            source="paper",
            where="abstract: 'policies learned with Advantage Alignment achieve higher collective payoffs'",
        ),
        Lower(
            "greedy earns",
            "kl/beta_2",
            than="sum",
            source="paper",
            where="abstract: 'while remaining robust against exploitation by greedy agents'; the sum is an arm of the "
            "release",
        ),
        Higher(
            "greedy earns",
            "sum",
            than="alignment",
            source="theory",
            where="the sum yields unconditionally, and a greedy player earns 25; aligned policies claim all like naive "
            "ones, and it earns half of 27.5",
        ),
        *(
            Higher("efficiency", f"kl/{method}", than="kl/naive", source="pilot", where=TUNED)
            for method in ("alignment", "beta_2", "beta_5")
        ),
        AtLeast("efficiency", "kl/beta_2", 0.8, source="pilot", where=TUNED),
        Lower(YIELDED, "kl/beta_2", than="kl/naive", source="pilot", where=TUNED),
        Higher(CLAIMED, "kl/beta_2", than="kl/naive", source="pilot", where=TUNED),
    ),
    checks=(
        AtLeast("efficiency", "sum", 0.9),
        Higher("efficiency", "sum", than="alignment"),
    ),
)
