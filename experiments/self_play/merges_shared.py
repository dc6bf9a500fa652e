"""Do merges still do as well as one policy of all games where games share words and want different answers?

"Mixed multi-task RLVR achieves comparable performance with separate RLVR followed by model merging", with little
interference, say M2RL, and `merges` found it so of three games without a common word, the easiest case. Here two of
four have all words in common but one. `series_1` and `series_2` are chains of up to four locks in four turns, whose pay
is the share that opens; each colour has one right key, in series 2 the next one. The rules end with "These locks are of
series 1." or 2, without which no policy could open the first lock of both for certain. A specialist has no reason to
read it. Kuhn poker and tic-tac-toe, against random play in both seats, share no word with another game: they are apart.

The arms are those of `merges` (`methods/merging.py`): one tiny policy imitates random legal play in all games, `base`,
and from there learns in 80 updates in all games, `together`, or in one, as the specialists `kuhn`, `tic_tac_toe`,
`series_1` and `series_2`. `specialists` are those four models. `average`, `sum/half`, `sum` and `ties` are merges of
them, `distilled` learns from each in its game in 40 updates.

Columns of games: points a game, 512 games. `gain`: those points less the base's over the specialist's less the base's,
the mean over all games; `gain, apart` over the first two, `gain, shared` over the two series. Of two specialists'
changes `cosine`, the mean over the six pairs, of the games apart, and of the two series; `overlap`, of the weights that
either has changed in bfloat16 the share that both have; `against`, of those the share with opposite signs. All are
measured after each quarter of the updates. These arms are computed.

Known exactly, by enumeration: in a series random keys open a share of .435, the right ones 1, those of the other series
0. A policy that does not read the series and forgets its turns, and says the key of either as often, opens .724, a gain
of .51; one that does not read it, but infers it from its first try, .969, a gain of .94.

The predictions go against the paper in the shared games: what merges lose there is what no specialist has learnt, to
read the series. TIES is predicted to be above the sum in them, since it was made for changes that conflict.

  python -m experiments merges_shared --seeds 10

Paper: M2RL (Wang et al.) 2026, https://arxiv.org/abs/2602.12566, where the average merges worst, task arithmetic better
and TIES best, and cosines are positive. Its domains differ in what they ask, and none wants another answer to the same
question; so this is a harder case than the paper's, on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments.self_play.merges import GAMES, UPDATES
from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods.merging import arms_of, compare_merges
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study

SHARED = {
    f"series_{n}": replace(GAMES["lock_chain"], game=LockChain(4, turns=4, shift=n, pays="progress")) for n in (1, 2)
}
APART = {name: GAMES[name] for name in ("kuhn", "tic_tac_toe")}
ALL = APART | SHARED
WITHIN = {"apart": tuple(APART), "shared": tuple(SHARED)}
COMPARED = partial(compare_merges, games=ALL, updates=UPDATES, within=WITHIN)
MERGES, LIE = ("average", "sum/half", "sum", "ties"), ("cosine", "overlap", "against")
STUDY = Study(
    paper=Paper("M2RL (Wang et al.)", "https://arxiv.org/abs/2602.12566", 2026, checked="release"),
    question="Do merges of specialists still do well where games share words and want other answers?",
    claim="One policy of all games and distillation keep nine tenths of what specialists gain in the games that share "
    "words, though merges of them do not: those lose four tenths there, and in the games apart they are as before. "
    "Cosines of the games that share words are above 0 nevertheless.",
    arms={arm: Computed(COMPARED, updates=UPDATES, part=arm, level=OFTEN) for arm in arms_of(ALL)},
    method="ties",
    metrics=("gain", *(f"gain, {of}" for of in WITHIN), *ALL, "cosine", *(f"{x}, {of}" for x in LIE for of in WITHIN)),
    predictions=(
        *(AtLeast("gain, shared", arm, 0.9) for arm in ("together", "distilled")),
        *(AtMost("gain, shared", arm, 0.6) for arm in MERGES),
        *(Higher("gain, shared", "together", than=arm) for arm in MERGES),
        Higher("gain, shared", "sum/half", than="sum"),
        Higher("gain, shared", "ties", than="sum"),
        *(AtLeast("gain, apart", arm, 0.9) for arm in ("together", "sum")),
        Higher("gain, apart", "sum", than="ties"),
        AtMost("series_2", "series_1", 0.2),
        AtMost("series_1", "series_2", 0.2),
        AtLeast("cosine, shared", "specialists", 0.1),
        AtMost("cosine, apart", "specialists", 0.1),
        AtMost("against, shared", "specialists", 0.5),
    ),
)
