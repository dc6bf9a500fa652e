"""The social dilemma with words: Trust-and-Split, where a message names a hand and need not be true.

Two seats hold a hand of rock-paper-scissors each and see their own. Each names a hand to the other, then both claim
coins, worth 10 points to the winning hand and 1 to the losing one. To claim all is dominant. All coins to the winner is
best for both together, and to know the winner they must tell each other. Afterwards hands and claims are shown, so that
trust can be kept or withdrawn in the rounds that follow. The methods are those of `social_dilemma`:

  naive                   each seat's return-to-go against the other episodes of its group, round by round
  sum                     the same with both seats' rewards added up
  alignment               advantage alignment
  kl/naive, kl/alignment  with 0.1 times the KL divergence from the warm start, which `alignment_exact` says should help
  kl/beta_2, kl/beta_5    alignment with more weight, 2 and 5 in place of 0.5

A tiny policy has one token for the name of a hand (`signals`); a pretrained model says a line of its own. The message
of a round shares the credit of the round's claim. Tiny policies first imitate cooperative dialogues: they tell the
truth, and claim nothing against a winning hand with probability 0.7. `efficiency` is the share of the best joint
points, `claim after a yield` what a losing hand claims from a scripted player that has just claimed nothing with it.

Predicted, for 150 updates of 32 games of 3 rounds: naive policies end by claiming the coins with every hand, with an
efficiency of 0.6 at most (0.55 if both claim all). The sum ends at 0.9 or more, and a player that always claims all
earns more from it than from aligned policies. With the KL penalty aligned policies end above naive ones, with a beta of
2 at 0.8 or more; and these claim less after a yield than naive ones, and more after a claim.

  python -m experiments trust_and_split --seeds 10    # 9 minutes on two cores beside other work
  python -m experiments trust_and_split --model smollm2 --seeds 1

Paper: Piche et al. 2025, Learning Robust Social Strategies with Large Language Models,
https://arxiv.org/abs/2511.19405. Game and method follow its released code (AdAlignLLM). The rules of the game were read
there from one truncated line; the signals and the cooperative start are ours.
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
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.setup import jit_rollout

TURNS = 3  # of a round: one speaks, the other one speaks, both claim
YIELDED, CLAIMED = "claim after a yield", "claim after a claim"


def split(episodes: Episodes, *, game: TrustAndSplit) -> dict[str, jax.Array]:
    """Points a round and seat, the share of the best joint points, mean claims with the winning and the losing hand."""
    points, claim, wins, known = game.rounds_played(episodes.reward[..., 0], episodes.action)
    return {
        "points": points.mean(),
        "efficiency": points.sum(2).mean() / (game.high * game.coins),
        "claim of the winner": mean_of(claim, known & wins).value,
        "claim of the loser": mean_of(claim, known & ~wins).value,
    }


def against(parts: Parts) -> Callable[[dict], dict[str, float]]:
    """What `greedy` earns a round, which always claims all; what the losing hand claims, after the other one had it and
    claimed something or nothing, in games with greedy and, with signals, with who always trusts."""
    (name,), game, group_size = parts.learners, parts.recipe.game, 64
    others = ("greedy", "trusting") if game.signals else ("greedy",)
    lineup = Lineup(tuple(pair for other in others for pair in ((name, other), (other, name))) * 8, group_size // 8)
    rollout = Rollout(replace(game, trust=1.0), {name: parts.policy_sets[name]}, lineup, parts.recipe.budget)
    play = jit_rollout(rollout)

    def evaluate(weights: dict) -> dict[str, float]:
        episodes = play({name: weights[name]}, jax.random.key(0)).episodes
        group = np.asarray(episodes.group)
        of = lambda x: np.take_along_axis(np.asarray(x), group[:, None, None] % 2, 2)[..., 0]
        points, claim, wins, known = game.rounds_played(episodes.reward[..., 0], episodes.action)
        greedy, yielded = group // 2 % len(others) == 0, of(claim[..., ::-1])[:, :-1] == 0
        asked = of(known & ~wins)[:, 1:] & of(known & wins)[:, :-1]
        after = {CLAIMED: asked & ~yielded, YIELDED: asked & yielded}
        answers = {x: float(of(claim)[:, 1:][at].mean()) if at.any() else np.nan for x, at in after.items()}
        return {"greedy earns": float(of(points[..., ::-1])[greedy].mean()), **answers}

    return evaluate


# 5 coins: without an end token, "1" may not be the beginning of "10".
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
    # at temperature 1 a 135M model hardly speaks English, and a bonus on the entropy takes the rest
    pretrained={
        **game_and_measure(WORDS),
        "budget": (8, 24),
        "sampling": Sampling(temperature=0.7, top_p=0.9),
        "reference": True,
        "hparams": {"entropy": 0.0, "kl": 0.05},
    },
)
METHODS = {"naive": (0.0, 0.0), "sum": (1.0, 0.0), "alignment": (0.0, 0.5)}  # weights: the other's reward, alignment
ARMS = {method: NAIVE.with_hparams(joint=joint, beta=beta) for method, (joint, beta) in METHODS.items()}
STRONGER = {**NAIVE.pretrained, "hparams": {"entropy": 0.0, "kl": 0.1}}
HELD = replace(NAIVE, reference=True, pretrained=STRONGER).with_hparams(kl=0.1)
BETAS = {"naive": 0.0, "alignment": 0.5, "beta_2": 2.0, "beta_5": 5.0}
ARMS |= {f"kl/{method}": HELD.with_hparams(beta=beta) for method, beta in BETAS.items()}
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
        AtMost("efficiency", "naive", 0.6),
        AtLeast("efficiency", "sum", 0.9),
        Higher("efficiency", "alignment", than="naive"),
        Higher("efficiency", "sum", than="alignment"),
        Higher("greedy earns", "sum", than="alignment"),
        *(Higher("efficiency", f"kl/{method}", than="kl/naive") for method in ("alignment", "beta_2", "beta_5")),
        AtLeast("efficiency", "kl/beta_2", 0.8),
        Lower(YIELDED, "kl/beta_2", than="kl/naive"),
        Higher(CLAIMED, "kl/beta_2", than="kl/naive"),
    ),
)
