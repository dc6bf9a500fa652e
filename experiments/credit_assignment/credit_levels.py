"""Which level: reward density by estimator, and credit by token, turn or episode.

Two seats, one policy, six turns in turn; each colour has one right answer of two tokens (`SixTurns` with AA, AB, BA,
BB). A turn's reward depends on that turn alone. It is paid in its turn (dense), or all of it to each seat when the game
ends (sparse), to four estimators:

  token     GAE (lambda 0.95) from token to token, through all turns of the row
  turn      GAE from turn to turn, all tokens of a turn alike
  bi_level  GAE from turn to turn, whose target rewards the last token of its turn for GAE over the tokens
  episode   no critic: the seat's sum less the mean of the other episodes of the group

Stated before the run, of the updates to 90% right answers (120 at most): each critic needs fewer with dense rewards
than with sparse ones; with dense rewards turns need fewer than the episode, whose sum holds two other turns that are
noise here. The episode's sum is the same for both, and so are its two arms. Tokens against turns: no difference
expected, as two tokens are few; among the sparse arms nothing is claimed.

Found (10 seeds): dense rewards save each critic 5 to 7 of 40 updates (p < 0.01, each). The episode's sum needs 33,
dense/turn 34 (difference 0.7 [-1.9, 3.3]): with groups of the same cues its baseline is as good as the critic's, and it
does not care how the reward is paid.

  python -m experiments credit_levels --seeds 10    # 4 minutes on two quiet cores
  python -m experiments credit_levels --model smollm2 --seeds 1

Wang & Ammanabrolu 2025, A Practitioner's Guide to Multi-turn Agentic RL, from its abstract: dense turn-level rewards
accelerate training, how much depends on the algorithm. There the games are TextWorld, ALFWorld and SWE-Gym.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from experiments.credit_assignment.mars import UPDATES, right, updates_to_90
from jaxmarl_llm.environments.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rollout.team import strings
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe


def paid(played: Experience, hparams: Hparams) -> jax.Array:
    """What was earned, [B, T, A]: in its turn where `dense` is 1, in the last turn where it is 0."""
    hit = played.episodes.reward[..., 0]
    end = jnp.zeros_like(hit).at[:, -1].set(hit.sum(1))
    return hparams["dense"] * hit + (1 - hparams["dense"]) * end


def by_token(played: Experience, hparams: Hparams, memory: tuple, *, of: Callable) -> Advantages:
    reward, found = paid(played, hparams), {}
    for name, rows in played.rows.items():
        sampled = played.sampled[name]
        own = reward[rows.episode, :, rows.seat]
        found[name] = of(own, played.token_value[name], sampled.turn, sampled.mask, lam=hparams["lam"])
    advantage = {name: targets.advantage for name, targets in found.items()}
    return Advantages(advantage, {name: targets.target for name, targets in found.items()})


def by_turn(played: Experience, hparams: Hparams, memory: tuple) -> Advantages:
    return Advantages(*returns.gae(paid(played, hparams), played.turn_value, played.episodes.acted, lam=hparams["lam"]))


def by_episode(played: Experience, hparams: Hparams, memory: tuple) -> Advantages:
    return Advantages(advantages.rloo(paid(played, hparams), *played.acts, per_agent=True))


def spelled(game: SixTurns) -> SymbolTokenizer:
    """A token for each phrase and each letter of the answers, so that an answer is two tokens."""
    told = [text for text in strings(game) if text not in game.letters]
    return SymbolTokenizer([*told, *sorted(set("".join(game.letters)))])


BASE = Recipe(
    SixTurns(letters=("AA", "AB", "BA", "BB")),
    seats=(("learner", "learner"),),
    advantage=by_turn,
    hparams={"learning_rate": 2e-3, "value": 0.1, "lam": 0.95, "dense": 1.0},
    critic=True,
    tokenizer=spelled,
    updates=120,
    groups=8,
    measure=right,
)
LEVELS = {
    "token": replace(BASE, advantage=partial(by_token, of=returns.gae_by_token)),
    "turn": BASE,
    "bi_level": replace(BASE, advantage=partial(by_token, of=returns.gae_bi_level)),
    "episode": replace(BASE, advantage=by_episode, critic=False),
}
ARMS = {
    f"{density}/{name}": replace(level, hparams={**level.hparams, "dense": dense})
    for density, dense in (("dense", 1.0), ("sparse", 0.0))
    for name, level in LEVELS.items()
}
STUDY = Study(
    paper="A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu 2025)",
    claim="Every critic reaches 90% in fewer updates with dense rewards than with sparse ones, and credit by turns in "
    "fewer than credit by episodes.",
    arms=ARMS,
    method="dense/turn",
    metrics=(UPDATES, "right"),
    stated=(
        *(
            {"metric": UPDATES, "a": f"dense/{name}", "b": f"sparse/{name}", "sign": -1}
            for name in ("token", "turn", "bi_level")
        ),
        {"metric": UPDATES, "a": "dense/turn", "b": "dense/episode", "sign": -1},
    ),
    derived={UPDATES: updates_to_90},
)
