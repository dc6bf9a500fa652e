"""The social dilemma with words: Trust-and-Split, where a message says who should have the coins, and need not be true.

Two seats hold a hand of rock-paper-scissors each and see their own. Each names a hand to the other, then both claim
coins, worth 10 points to the winning hand and 1 to the losing one. To claim all is dominant; all to the winner is best
for both together, and to know who that is they must tell each other. Afterwards hands and claims are shown, so that
trust can be kept or withdrawn in the rounds that follow. The methods are those of `social_dilemma`:

  naive      each seat's return-to-go against the other episodes of its group, round by round
  sum        the same with both seats' rewards added up
  alignment  advantage alignment

A tiny policy has one token for the name of a hand (`signals`), a real model says a line of its own. What is said in a
round shares in the credit of the round's claim. Tiny policies start from a cooperative prior: they tell the truth, and
where the other one's hand wins they claim nothing with probability 0.7.

Stated before any run, of 150 updates of 32 games of 3 rounds: naive policies end by claiming the coins whatever they
hold, so that joint efficiency, the share of the best joint points, is 0.6 at most (0.55 if both claim all). With
alignment it ends higher than with naive credit, and with the sum higher still, at 0.9 or more, while who always claims
all earns more from sum policies than from aligned ones.

Found (10 seeds, 4 minutes): naive policies end by claiming all (efficiency 0.550), and so do aligned ones (p = 0.37 for
a difference), although both begin at 0.86. With the sum it is 0.986, and who always claims all earns 26.2 points a
round of it, 13.8 of the others.

SmolLM2 with the sum (12 updates of 8 games at temperature 0.7, 25 minutes on two busy cores,
results/trust_and_split-smollm2) learnt to claim, not to tell: it claims 8 coins at first and all 10 at last, whatever
it holds (efficiency 0.52, then 0.57; 0.55 is what claiming all gives). Its messages stay English, but name hands at
random and then copy each other: "You both say scissors", 0.6 nats a token at first, 0.3 at last. At temperature 1, with
a bonus of 0.01 on the entropy and no divergence, the same run had lost its English by then (2.9 nats, then 3.8).

  python -m experiments trust_and_split --seeds 10
  python -m experiments trust_and_split --model smollm2 --seeds 1

Game and method as in the code that Duque et al. released for language models (AdAlignLLM); the rules of the game were
read there from one truncated line, the signals and the prior are ours.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.social.social_dilemma import NAIVE as DILEMMA
from experiments.social.social_dilemma import PRIOR, arms, dilemma
from jaxmarl_llm.environments.trust_and_split import TrustAndSplit
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.training.trainer import Trainer, readable

TURNS = 3  # of a round: one speaks, the other one speaks, both claim


def split(episodes: Episodes, *, coins: int, high: float, low: float) -> dict[str, jax.Array]:
    """Points a round and seat, the share of the best joint points, mean claims with the winning and the losing hand."""
    points, claim = episodes.reward[:, TURNS - 1 :: TURNS, :, 0], episodes.action[:, TURNS - 1 :: TURNS]
    share = coins * claim / jnp.maximum(claim.sum(2, keepdims=True), coins)
    likely = points > share * (high + low) / 2  # wins, if it claimed anything; else the other one tells
    wins = jnp.where(claim > 0, likely, (claim > 0)[..., ::-1] & ~likely[..., ::-1])
    known = jnp.broadcast_to((claim > 0).any(2, keepdims=True), wins.shape)
    return {
        "points": points.mean(),
        "efficiency": points.sum(2).mean() / (high * coins),
        "claim of the winner": mean_of(claim, known & wins).value,
        "claim of the loser": mean_of(claim, known & ~wins).value,
    }


def exploited(trainer: Trainer) -> Callable[[dict], dict[str, float]]:
    """Points a round of who always claims all (and tells its hand) against the policy, in both seats."""
    (name,), game, group_size = trainer.learners, trainer.recipe.game, 64
    lineup = Lineup(((name, "greedy"), ("greedy", name)) * 8, group_size // 8)
    play = readable(Rollout(game, {name: trainer.policy_sets[name]}, lineup, trainer.recipe.budget))

    def evaluate(weights: dict) -> dict[str, float]:
        episodes = play({name: weights[name]}, jax.random.key(0)).episodes
        points = np.asarray(episodes.reward[..., 0].sum(1)) / game.rounds  # [B, 2]
        greedy = 1 - np.asarray(episodes.group) % 2
        return {"greedy earns": float(points[np.arange(len(points)), greedy].mean())}

    return evaluate


# 5 coins: without an end token, "1" may not be the beginning of "10".
GAME, WORDS = TrustAndSplit(rounds=3, coins=5, signals=True, trust=PRIOR), TrustAndSplit(rounds=2)


def measured(game: TrustAndSplit) -> dict[str, Any]:
    return {"game": game, "measure": partial(split, coins=game.coins, high=game.high, low=game.low)}


NAIVE = replace(
    DILEMMA,
    **measured(GAME),
    seats=(("learner", "learner"),),
    advantage=partial(dilemma, turns=TURNS),
    hparams={**DILEMMA.hparams, "reward_scale": 25.0},
    warm_start=(("trusting", "trusting"),),
    updates=150,
    groups=4,
    group_size=8,
    snapshots=0,
    evaluate=exploited,
    eval_every=50,
    # at temperature 1 a 135M model hardly speaks English, and a bonus on the entropy takes the rest
    pretrained={
        **measured(WORDS),
        "budget": (8, 24),
        "sampling": Sampling(temperature=0.7, top_p=0.9),
        "reference": True,
        "hparams": {"entropy": 0.0, "kl": 0.05},
    },
)
STUDY = Study(
    paper="Advantage Alignment (Duque et al. 2025), Trust-and-Split",
    claim="Naive policies end with a joint efficiency of 0.6 at most. Aligned ones end higher, and those that learn "
    "from the sum of rewards higher still, at 0.9 or more; who always claims all earns more from these than from "
    "aligned ones.",
    arms=arms(NAIVE),
    method="alignment",
    metrics=("efficiency", "points", "claim of the winner", "claim of the loser", "greedy earns"),
    stated=(
        {"metric": "efficiency", "arm": "naive", "at_most": 0.6},
        {"metric": "efficiency", "arm": "sum", "at_least": 0.9},
        {"metric": "efficiency", "a": "alignment", "b": "naive", "sign": 1},
        {"metric": "efficiency", "a": "sum", "b": "alignment", "sign": 1},
        {"metric": "greedy earns", "a": "sum", "b": "alignment", "sign": 1},
    ),
)
