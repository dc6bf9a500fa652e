"""Train one policy in several games at once, or merge specialists of one game each? M2RL says that both end alike.

"Mixed multi-task RLVR achieves comparable performance with separate RLVR followed by model merging"; interference is
"minimal", cosines are "positive". There the average merges worst, task arithmetic better and TIES best.

Games: Kuhn poker and tic-tac-toe against random play, in both seats, and chains of up to four locks, whose pay is the
share that opens. A tiny policy, one vocabulary, first imitates random legal play in all of them: `base`. Then learn

  together      one policy in all games, 80 updates
  kuhn, tic_tac_toe, lock_chain   one in that game alone, with as many of its games and updates; judged in all games
  specialists   each game by its own specialist: three models
  average       the mean of the specialists' weights
  sum/half, sum base + 0.5 or 1 times the sum of what each specialist has learnt (the release has 1)
  ties          TIES: the largest fifth of each specialist's changes, of an elected sign (the release's settings)
  distilled     base, in 40 updates: a token's advantage is the log-probability of the game's specialist less its own

`kuhn`, `tic_tac_toe`, `lock_chain`: points a game, 512 games. `gain`: those points less the base's over the
specialist's less the base's, the mean over games: a specialist that is as good as the base elsewhere has 1/3. Of two
specialists' changes, the mean over pairs: `cosine`; `overlap`, of the weights that either has changed in bfloat16 the
share that both have; `against`, of those the share with opposite signs; `changed`, the share of weights that one has
changed. All are measured after each quarter of the updates. These arms are computed.

  python -m experiments merges --seeds 10

Paper: M2RL (Wang et al.) 2026, https://arxiv.org/abs/2602.12566, whose base is a 4B model that supervised training has
made good in all domains; ours only keeps to the rules, and its games share no word: what they share are the layers. In
`merges_shared` two games share their words and want other answers.
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
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
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
STUDY = Study(
    paper=Paper("M2RL (Wang et al.)", "https://arxiv.org/abs/2602.12566", 2026, checked="release"),
    question="Train one policy in several games at once, or merge specialists of one game each?",
    claim="One policy of all games, the sum of what specialists learnt, TIES and distillation all keep nine tenths of "
    "what the specialists gain; the average does not, and TIES keeps less than the sum.",
    arms={arm: Computed(COMPARED, updates=UPDATES, part=arm, level=OFTEN) for arm in arms_of(GAMES)},
    method="ties",
    metrics=("gain", *GAMES, "cosine", "changed", "overlap", "against"),
    predictions=(
        *(AtLeast("gain", arm, 0.9) for arm in ("together", "sum", "ties", "distilled")),
        *(Higher("gain", arm, than="average") for arm in ("sum/half", "sum", "ties")),
        Higher("gain", "sum", than="ties"),
        *(AtLeast("gain", game, 0.3) for game in GAMES),
        AtLeast("cosine", "specialists", 0.0),
        AtMost("cosine", "specialists", 0.1),
    ),
)
