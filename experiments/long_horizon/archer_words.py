"""Does ArCHer need fewer games where answers are written token by token? Locks whose keys are words.

The game and the numbers are those of the study `archer`, but for the keys: AA, AB, BA and BB, of two tokens each.

  archer     The upper level is a critic of whole utterances, a separate network with twin Q and V. It learns from the
             games of the last 20 updates. The lower level is the policy. It learns from utterances drawn anew, token
             by token, in those games; each token has their advantage, min Q - min V
  turn_ppo   PPO with a value head and GAE from turn to turn (lambda 0.95); all tokens of a turn have its advantage
  token_ppo  as turn_ppo, with GAE from token to token; the discount applies at the end of a turn
  reinforce  the discounted return-to-go minus that of the group's other episodes (leave-one-out)

`games to 80%` is the number of games until 80% of a batch is solved. ArCHer takes 40 critic steps and 5 policy steps in
an update, the others one. Its critic learns alone in the first five updates; their games count. Each arm's learning
rate is the better of 0.003 and 0.01 on other seeds.

  python -m experiments archer_words --seeds 20

Paper: ArCHer (Zhou et al.) 2024, https://arxiv.org/abs/2402.19446. A cloned GPT-2 says up to 32 tokens there, in 128
games an update with 50 critic steps and 3 policy steps. Here an utterance has two tokens, and policies start from
random weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from experiments.long_horizon.archer import ARCHER, GAMES, LOCKS, PLAIN
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rollout.team import answer_letters
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience


def by_turn(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE from turn to turn."""
    reward, acted = experience.episodes.reward[..., 0], experience.episodes.acted
    return Advantages(*returns.gae(reward, experience.turn_value, acted, gamma=hparams["gamma"], lam=0.95))


def by_token(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE from token to token, through all turns of a game."""
    ((name, rows),) = experience.rows.items()
    sampled, reward = experience.sampled[name], experience.episodes.reward[..., 0]
    targets = returns.gae_by_token(
        reward[rows.episode, :, rows.seat],
        experience.token_value[name],
        sampled.turn,
        sampled.mask,
        gamma=hparams["gamma"],
        lam=0.95,
        discount="turns",
    )
    return Advantages({name: targets.advantage}, {name: targets.value_target})


def games(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Games [seeds] until 80% of a batch is solved."""
    return updates_to(curves, metric="solved", bound=0.8) * PLAIN.groups * PLAIN.group_size


def spell(recipe: Recipe) -> Recipe:
    """The same arm with keys of two letters, a token each."""
    game = LockChain(LOCKS, turns=8, alphabet="AB", spelled=2)
    return dataclasses.replace(recipe, game=game, tokenizer=answer_letters, budget=2)


REINFORCE = spell(PLAIN).with_hparams(learning_rate=3e-3)
PPO = dataclasses.replace(REINFORCE, advantage=by_turn, critic=True)
EFFICIENT = 'abstract: "sample efficiency boosts of about 100x over prior on-policy methods"'
STUDY = Study(
    paper=Paper("ArCHer (Zhou et al.)", "https://arxiv.org/abs/2402.19446", 2024, checked="release"),
    question="Does ArCHer need fewer games where answers are written token by token?",
    claim="An utterance critic that learns from past games needs fewer games than PPO by token or turn and REINFORCE.",
    arms={
        "archer": spell(ARCHER),
        "turn_ppo": PPO,
        "token_ppo": dataclasses.replace(PPO, advantage=by_token),
        "reinforce": REINFORCE,
    },
    method="archer",
    metrics=(GAMES, "solved", "loss/network"),
    predictions=(
        Lower(
            GAMES,
            "archer",
            than="token_ppo",
            source="paper",
            where='project page, results: "100x better sample complexity than state-of-the-art on-policy method PPO"',
        ),
        Lower(GAMES, "archer", than="reinforce", source="paper", where=EFFICIENT),
        Lower(
            GAMES,
            "archer",
            than="turn_ppo",
            source="theory",
            where="It learns from each game up to twenty times, and PPO by turn once.",
        ),
    ),
    censored={GAMES: PLAIN.updates * PLAIN.groups * PLAIN.group_size},
    x="update of 8 games",
    derived={GAMES: games},
)
