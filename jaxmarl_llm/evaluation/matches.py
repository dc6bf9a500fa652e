"""Evaluation of play: head-to-head matches, cross-play, ratings, social metrics. NumPy, float64.

Shapes: B games, T turns, A seats. Rewards [B, T, A] are those of one component, or of several summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxmarl_llm.evaluation.statistics import paired_interval, student_interval, wilson_interval


def head_to_head(mine: Any, theirs: Any, seat: Any, confidence: float = 0.95) -> dict[str, Any]:
    """A player's match against another from payoffs [B] of both and the seat int [B] that it had in each game.

    {games, points, win, draw, loss, by_seat: {seat: the same}}: points is the mean payoff with Student's interval, the
    others are rates with Wilson's. If seats were played unequally often, the rates weigh the frequent seat more.
    Raises ValueError if the shapes differ.
    """
    mine, theirs, seat = np.asarray(mine, np.float64), np.asarray(theirs, np.float64), np.asarray(seat)
    if not mine.shape == theirs.shape == seat.shape or mine.ndim != 1:
        raise ValueError(
            f"Give payoffs and seats of the same games, [B] each: {mine.shape}, {theirs.shape}, {seat.shape}."
        )

    def summary(where: np.ndarray) -> dict[str, Any]:
        a, b = mine[where], theirs[where]
        results = {"win": a > b, "draw": a == b, "loss": a < b}
        rates = {name: wilson_interval(int(held.sum()), len(a), confidence) for name, held in results.items()}
        return {"games": len(a), "points": student_interval(a, confidence), **rates}

    by_seat = {int(number): summary(seat == number) for number in np.unique(seat)}
    return {**summary(np.ones(len(mine), bool)), "by_seat": by_seat}


def cross_play(names: Sequence[str], play: Callable[[str, str], Any], confidence: float = 0.95) -> dict[str, Any]:
    """All pairs: play(a, b), also with a = b, gives payoffs [B, 2] of games with a in seat 0 and b in seat 1.

    {names, mean, low, high}: [n, n, 2], indexed by the players of seat 0 and seat 1. `self_play` and cross_play are the
    means over seats on the diagonal and off it. Their difference is the loss with a partner from another run (NaN for
    one name). Cross-play: https://arxiv.org/abs/2003.02979.
    """
    size = len(names)
    table = np.zeros((3, size, size, 2))
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            payoff = np.asarray(play(a, b), np.float64)
            if payoff.ndim != 2 or payoff.shape[1] != 2:
                raise ValueError(f"play({a!r}, {b!r}) must give payoffs [B, 2], got {payoff.shape}.")
            table[:, i, j] = np.transpose([student_interval(column, confidence) for column in payoff.T])
    mean, low, high = table
    diagonal = np.eye(size, dtype=bool)
    apart = float(mean[~diagonal].mean()) if size > 1 else np.nan
    return {
        "names": tuple(names),
        "mean": mean,
        "low": low,
        "high": high,
        "self_play": float(mean[diagonal].mean()),
        "cross_play": apart,
    }


def ratings(games: Iterable[tuple[Sequence[str], Sequence[float]]]) -> dict[str, tuple[float, float]]:
    """Skill and its uncertainty (mu, sigma) of every player, from games in order: (players, their payoffs).

    OpenSkill (https://doi.org/10.21105/joss.05901), Plackett-Luce model, every player a team of one; mu starts at 25.
    Needs the extra `ratings`.
    """
    from openskill.models import PlackettLuce

    system = PlackettLuce()
    known: dict[str, Any] = {}
    for names, payoffs in games:
        teams = [[known.setdefault(name, system.rating(name=name))] for name in names]
        rated = system.rate(teams, scores=[float(payoff) for payoff in payoffs])
        known.update({name: team[0] for name, team in zip(names, rated, strict=True)})
    return {name: (rating.mu, rating.sigma) for name, rating in known.items()}


def collective_return(reward: np.ndarray) -> np.ndarray:
    """The sum of all seats' rewards in each game, [B], from rewards [B, T, A]."""
    return np.asarray(reward, np.float64).sum((1, 2))


def equality(reward: np.ndarray) -> np.ndarray:
    """1 - Gini coefficient of the seats' returns in each game, [B], from rewards [B, T, A].

    Perolat et al. 2017, https://arxiv.org/abs/1707.06600.

    1 - sum_ij |R_i - R_j| / (2 A sum_i R_i): 1 if all earn the same, 1/A if one earns everything. NaN if a return is
    negative or all are 0: the coefficient is then undefined.
    """
    returns = np.asarray(reward, np.float64).sum(1)
    gaps = np.abs(returns[:, :, None] - returns[:, None, :]).sum((1, 2))
    total = returns.sum(1)
    valid = (returns >= 0).all(1) & (total > 0)
    return np.where(valid, 1 - gaps / (2 * returns.shape[1] * np.where(valid, total, 1)), np.nan)


def sustainability(reward: np.ndarray) -> np.ndarray:
    """Mean turn, from 0 on, in which a seat is paid something positive, averaged over seats, [B] (Perolat et al. 2017).

    From rewards [B, T, A]. An early mean says that the resource was spent. Seats that are never paid do not count; NaN
    if no seat is paid.
    """
    paid = np.asarray(reward) > 0
    count = paid.sum(1)  # [B, A]
    when = (paid * np.arange(paid.shape[1])[:, None]).sum(1) / np.maximum(count, 1)
    seats = (count > 0).sum(1)
    return np.where(seats > 0, np.where(count > 0, when, 0).sum(1) / np.maximum(seats, 1), np.nan)


def peace(harmed: np.ndarray, played: np.ndarray) -> np.ndarray:
    """Mean number of unharmed seats in a turn, [B], from harmed bool [B, T, A] and played bool [B, T].

    The game defines harm: a punishment, a timeout (Perolat et al. 2017). NaN if no turn was played.
    """
    turns = played.sum(1)
    unharmed = (~np.asarray(harmed) & played[..., None]).sum((1, 2))
    return np.where(turns > 0, unharmed / np.maximum(turns, 1), np.nan)


OUTCOMES = ("first", "CC", "CD", "DC", "DD")  # a seat's own action first, then the other's


def cooperation_after(action: np.ndarray, acted: np.ndarray, cooperate: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Cooperation rate of each seat of a repeated game, in the first round and after each outcome of the last round.

    From action int [B, T, 2] and acted bool [B, T, 2] of rounds of moves (skip turns of messages: action[:, 1::2]). The
    results are rate [2, 5], NaN if an outcome never occurred, and count [2, 5], in the order of OUTCOMES. Tit-for-tat
    is 1 1 0 1 0.
    """
    cooperates = np.asarray(action) == cooperate
    played = np.asarray(acted).all(-1)
    rate, count = np.full((2, 5), np.nan), np.zeros((2, 5), int)
    for seat in range(2):
        mine, other = cooperates[..., seat], cooperates[..., 1 - seat]
        before = np.where(mine, np.where(other, 1, 2), np.where(other, 3, 4))[:, :-1]
        state = np.concatenate([np.zeros((len(mine), 1), int), before], 1)
        for outcome in range(5):
            where = played & (state == outcome)
            count[seat, outcome] = where.sum()
            if where.any():
                rate[seat, outcome] = mine[where].mean()
    return rate, count


def exploitation(defector: Any, victim: Any, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean difference of always-defect's and its victim's payoff in the same games [B], with Student's interval."""
    return paired_interval(defector, victim, confidence)
