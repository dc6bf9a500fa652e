"""Train one policy in several games at once, or merge specialists of one game each? M2RL reports similar results.

M2RL: "Mixed multi-task RLVR achieves comparable performance with separate RLVR followed by model merging". Interference
is "minimal", and cosines are "positive". Among merges the average is worst, task arithmetic better and TIES best.

Games: Kuhn poker and tic-tac-toe against random play, in both seats, and chains of up to four locks. A chain pays the
share of locks opened. A tiny policy with one vocabulary first imitates random legal play in all games: `base`. Arms:

  together                        one policy trained from base in all games, 80 updates
  kuhn, tic_tac_toe, lock_chain   a specialist: base trained in one game, with as many of its games and updates
  specialists                     three models, each game played by its specialist
  average                         mean of the specialists' weights
  sum/half, sum                   base + 0.5 or 1 times the sum of the specialists' changes (the release has 1)
  ties                            TIES: each specialist's largest fifth of changes, of an elected sign; the release's
                                  settings
  distilled                       base trained for 40 updates; a token's advantage is the log-probability of the game's
                                  specialist minus the policy's own

Metrics, measured after each quarter of the updates:

  kuhn, tic_tac_toe, lock_chain   points per game over 512 games; every arm is evaluated in all games
  gain                            (points - base's points) / (specialist's points - base's points), mean over games; a
                                  specialist that equals the base in the other games has 1/3

Metrics of two specialists' changes, mean over pairs:

  cosine    cosine of the changes
  overlap   of the weights that either has changed in bfloat16, the share that both have changed
  against   of the weights that both have changed, the share with opposite signs
  changed   share of weights that a specialist has changed

These arms are computed.

  python -m experiments merges --seeds 10

Paper: M2RL (Wang et al.) 2026, https://arxiv.org/abs/2602.12566. Its base is a 4B model that supervised training has
made good in all domains; ours only keeps the rules. Our games share no word, only the layers. In `merges_shared` two
games share words and need different answers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.environments.classic.board_games import TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods.merging import arms_of, compare_merges
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study, Within
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Common

ME, UPDATES = "learner", 80
KUHN = Recipe(
    KuhnPoker(), seats=((ME, "random"), ("random", ME)), advantage=estimator(advantages.rloo, per_agent=True),
    hparams={"learning_rate": 3e-3}, warm_start=Common((("random", "random"),)), budget=1, groups=8, group_size=8,
)  # fmt: skip
GAMES = {
    "kuhn": KUHN,
    "tic_tac_toe": replace(KUHN, game=TicTacToe(), groups=4),
    "lock_chain": replace(
        KUHN, game=LockChain(4, turns=6, pays="progress"), seats=((ME,),), warm_start=Common((("random",),)), groups=4
    ),
}
COMPARED = partial(compare_merges, games=GAMES, updates=UPDATES)
TABLE = "README of the release, table of merges, average over benchmarks:"
PILOT = "Seeds 100 and 101: this was seen."
STUDY = Study(
    paper=Paper("M2RL (Wang et al.)", "https://arxiv.org/abs/2602.12566", 2026, checked="release"),
    question="Train one policy in several games at once, or merge specialists of one game each?",
    claim="One policy of all games, the sum of what specialists learnt, TIES and distillation all keep nine tenths of "
    "what the specialists gain; the average does not, and TIES keeps more than the sum.",
    arms={arm: Computed(COMPARED, updates=UPDATES, part=arm, level=OFTEN) for arm in arms_of(GAMES)},
    method="ties",
    metrics=("gain", *GAMES, "cosine", "changed", "overlap", "against"),
    predictions=(
        Within(
            "gain",
            "together",
            than="ties",
            by=0.1,
            source="paper",
            where="README of the release, key finding 1: 'comparable performance with separate RLVR followed by "
            "model merging'. The margin is ours.",
        ),
        Within(
            "gain",
            "distilled",
            than="ties",
            by=0.1,
            source="paper",
            where=f"{TABLE} MT-OPD 59.26, TIES 59.41. The margin is ours.",
        ),
        *(AtLeast("gain", arm, 0.9, source="pilot", where=PILOT) for arm in ("sum", "ties")),
        Higher("gain", "sum/half", than="average", source="pilot", where=PILOT),
        Higher("gain", "sum", than="average", source="paper", where=f"{TABLE} task arithmetic 57.85, average 55.86."),
        Higher("gain", "ties", than="average", source="paper", where=f"{TABLE} TIES 59.41, average 55.86."),
        Higher("gain", "ties", than="sum", source="paper", where=f"{TABLE} TIES 59.41, task arithmetic 57.85."),
        AtLeast(
            "cosine",
            "specialists",
            0.0,
            source="paper",
            where="README of the release, key finding 3: 'positive cosine similarity after random projection'. Here "
            "nothing is projected.",
        ),
        AtMost("cosine", "specialists", 0.1, source="pilot", where=PILOT),
    ),
    checks=tuple(AtLeast("gain", game, 0.3) for game in GAMES),
)
