"""Do merges still match one policy of all games, if games share words and need different answers?

M2RL: "Mixed multi-task RLVR achieves comparable performance with separate RLVR followed by model merging", with little
interference. The study `merges` agrees for three games without a common word, the easiest case.

Here two of four games share all words but one. `series_1` and `series_2` are chains of up to four locks in four turns,
which pay the share of locks opened. Each colour has one right key, in series 2 the next one. The rules end with "These
locks are of series 1." or 2. Without that sentence no policy could open the first lock of both for certain. A
specialist has no reason to read it. Kuhn poker and tic-tac-toe, against random play in both seats, share no word with
another game: they are `apart`.

The arms are those of `merges` (`methods/merging.py`). One tiny policy, `base`, imitates random legal play in all games:

  together                                  base trained in all games, 80 updates
  kuhn, tic_tac_toe, series_1, series_2     specialists: base trained in one game, 80 updates
  specialists                               the four specialists, each in its own game
  average, sum/half, sum, ties              merges of the specialists
  distilled                                 base trained for 40 updates by each specialist in its game

Metrics, measured after each quarter of the updates:

  the games         points per game over 512 games
  gain              (points - base's points) / (specialist's points - base's points), mean over all games
  gain, apart       the mean over Kuhn poker and tic-tac-toe
  gain, shared      the mean over the two series
  cosine            cosine of two specialists' changes, mean over the six pairs
  overlap           of the weights that either has changed in bfloat16, the share that both have changed
  against           of the weights that both have changed, the share with opposite signs
  ..., apart        the metric for the pair of games apart
  ..., shared       the metric for the pair of series

These arms are computed. Payoffs in a series, known exactly by enumeration:

  random keys                                .435
  right keys                                 1
  keys of the other series                   0
  series not read, turns forgotten           .724, a gain of .51; both series' keys are equally probable
  series not read, inferred from first try   .969, a gain of .94

The predictions go against the paper in the shared games. Merges lose a skill there that no specialist has learned, to
read the series. TIES is predicted to be above the sum in these games, since it is made for conflicting changes. In the
games apart the predictions include the paper's: TIES is above the sum and within a tenth of one policy of all games.

  python -m experiments merges_shared --seeds 10

Paper: M2RL (Wang et al.) 2026, https://arxiv.org/abs/2602.12566. There the average merges worst, task arithmetic better
and TIES best, and cosines are positive. Its domains ask different questions; no domain wants another answer to the same
question. This case is harder on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments.self_play.merges import GAMES, PILOT, TABLE, UPDATES
from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods.merging import arms_of, compare_merges
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study, Within

SHARED = {
    f"series_{n}": replace(GAMES["lock_chain"], game=LockChain(4, turns=4, shift=n, pays="progress")) for n in (1, 2)
}
APART = {name: GAMES[name] for name in ("kuhn", "tic_tac_toe")}
ALL = APART | SHARED
WITHIN = {"apart": tuple(APART), "shared": tuple(SHARED)}
COMPARED = partial(compare_merges, games=ALL, updates=UPDATES, within=WITHIN)
MERGES, GEOMETRY = ("average", "sum/half", "sum", "ties"), ("cosine", "overlap", "against")
STUDY = Study(
    paper=Paper("M2RL (Wang et al.)", "https://arxiv.org/abs/2602.12566", 2026, checked="release"),
    question="Do merges of specialists still do well where games share words and want other answers?",
    claim="One policy of all games and distillation keep nine tenths of what specialists gain in the games that share "
    "words, though merges of them do not: those lose four tenths there, and in the games apart they are as before. "
    "Cosines of the games that share words are above 0 nevertheless.",
    arms={arm: Computed(COMPARED, updates=UPDATES, part=arm, level=OFTEN) for arm in arms_of(ALL)},
    method="ties",
    metrics=(
        "gain",
        *(f"gain, {part}" for part in WITHIN),
        *ALL,
        "cosine",
        *(f"{x}, {part}" for x in GEOMETRY for part in WITHIN),
    ),
    predictions=(
        *(AtLeast("gain, shared", arm, 0.9, source="pilot", where=PILOT) for arm in ("together", "distilled")),
        *(Higher("gain, shared", "together", than=arm, source="pilot", where=PILOT) for arm in MERGES),
        Higher("gain, shared", "sum/half", than="sum", source="pilot", where=PILOT),
        Higher(
            "gain, shared",
            "ties",
            than="sum",
            source="theory",
            where="TIES drops changes of the minority's sign, so opposed changes cancel less.",
        ),
        *(AtLeast("gain, apart", arm, 0.9, source="pilot", where=PILOT) for arm in ("together", "sum")),
        Within(
            "gain, apart",
            "together",
            than="ties",
            by=0.1,
            source="paper",
            where="README of the release, key finding 1: 'comparable performance with separate RLVR followed by "
            "model merging'. The margin is ours.",
        ),
        Higher("gain, apart", "ties", than="sum", source="paper", where=f"{TABLE} TIES 59.41, task arithmetic 57.85."),
        *(
            AtLeast(
                f"cosine, {part}",
                "specialists",
                0.0,
                source="paper",
                where="README of the release, key finding 3: 'positive cosine similarity after random projection'. "
                "Here nothing is projected.",
            )
            for part in WITHIN
        ),
        AtLeast("cosine, shared", "specialists", 0.1, source="pilot", where="Seeds 100 and 101: .155."),
        AtMost("cosine, apart", "specialists", 0.1, source="pilot", where="Seen in the study merges."),
        AtMost("against, shared", "specialists", 0.5, source="pilot", where=PILOT),
    ),
    checks=(AtMost("series_2", "series_1", 0.2), AtMost("series_1", "series_2", 0.2)),
)
