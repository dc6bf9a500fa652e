"""Does an utterance critic that learns from past games need fewer games? ArCHer on chains of locks.

One seat opens four locks within eight turns and tries one key per turn. Each lock's colour is drawn from four. Only the
last lock pays; the discount is 0.95 per turn. An update plays eight games.

  archer   Two Q(s, a) and two V(s), heads of a separate network, learn from the games of the last 20 updates against
           target networks. The policy learns from answers sampled anew in those games. Their advantage is
           min Q - min V, without an importance ratio for the old states
  fresh    as archer, from the last update's games alone
  critic   PPO with a value head on the policy's trunk and GAE from turn to turn (lambda 0.95)
  to_go    the discounted return-to-go minus that of the group's other episodes (REINFORCE, leave-one-out)

`games to 80%` is the number of games until 80% of a batch is solved. ArCHer takes 40 critic steps and 5 policy steps in
an update. Its critic learns alone in the first five updates; their games count. Each arm's learning rate is the better
of 0.003 and 0.01 on other seeds.

  python -m experiments archer --seeds 10

Paper: ArCHer (Zhou et al.) 2024, https://arxiv.org/abs/2402.19446. A cloned GPT-2 says up to 32 tokens there, in 128
games an update with 50 critic steps and 3 policy steps. Here utterances have one token, and the policy starts from
random weights. The paper's on-policy baseline is PPO.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods import archer
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Lower, Paper, Study
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Hparams, Recipe, always, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

LOCKS, GROUPS, MEMBERS, WARM_UP, GAMES = 4, 2, 4, 5, "games to 80%"


def rewards(experience: Experience, hparams: Hparams, state: Any) -> Advantages:
    return Advantages(experience.episodes.reward[..., 0], state=state)


def by_turn(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    reward, acted = experience.episodes.reward[..., 0], experience.episodes.acted
    return Advantages(*returns.gae(reward, experience.turn_value, acted, gamma=hparams["gamma"], lam=0.95))


def games(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    return updates_to(curves, metric="solved", bound=0.8) * GROUPS * MEMBERS


PLAIN = Recipe(
    LockChain(LOCKS, turns=8),
    seats=(("learner",),),
    advantage=estimator(advantages.round_leave_one_out, hparams=("gamma",)),
    arrange=partial(always, deal=LOCKS),
    hparams={"learning_rate": 1e-2, "gamma": 0.95},
    budget=1,
    updates=100,
    groups=GROUPS,
    group_size=MEMBERS,
    measure=partial(component_returns, solved=0),
    pretrained={"budget": 4},
)
ARCHER = dataclasses.replace(
    PLAIN.with_hparams(
        learning_rate=lambda update: np.where(np.asarray(update) < WARM_UP, 0.0, 3e-3), critic_rate=3e-3
    ),
    advantage=rewards,
    step=partial(archer.off_policy, steps=(40, 5)),
    init_state=partial(archer.empty_memory, kept=20),
)
EFFICIENT = 'abstract: "sample efficiency boosts of about 100x over prior on-policy methods"'
PPO = 'project page, results: "100x better sample complexity than state-of-the-art on-policy method PPO"'
STUDY = Study(
    paper=Paper("ArCHer (Zhou et al.)", "https://arxiv.org/abs/2402.19446", 2024, checked="release"),
    question="Does an utterance critic that learns from past games need fewer games?",
    claim="An utterance critic that learns from past games needs fewer games than learning from fresh ones alone.",
    arms={
        "archer": ARCHER,
        "fresh": dataclasses.replace(ARCHER, init_state=partial(archer.empty_memory, kept=1)),
        "critic": dataclasses.replace(PLAIN, advantage=by_turn, critic=True),
        "to_go": PLAIN,
    },
    method="archer",
    metrics=(GAMES, "solved", "loss/network"),
    predictions=(
        Lower(GAMES, "archer", than="to_go", source="paper", where=EFFICIENT),
        Lower(GAMES, "archer", than="critic", source="paper", where=PPO),
        Lower(
            GAMES,
            "archer",
            than="fresh",
            source="pilot",
            where="seeds 100 to 102: 112, 88, 104 games with 20 kept updates; 440, 216, 104 from the last update alone",
        ),
    ),
    censored={GAMES: PLAIN.updates * GROUPS * MEMBERS},
    x="update of 8 games",
    derived={GAMES: games},
)
