"""Policy sets with a common base, and line-ups: the assignment of policies and scripted players to seats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmarl_llm.environments.base import Environment, phrases
from jaxmarl_llm.environments.check import check_object
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.models.config import Config, Remat
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy import PLAIN, Sampling, Scorer
from jaxmarl_llm.text.grammar import Grammar, TokenTables
from jaxmarl_llm.text.tokenizers import SymbolTokenizer


@dataclass(frozen=True)
class PolicySet:
    """Policies with one base and one tokenizer: full weights (one policy, no `lora`) or an adapter for each policy.

    `lora` and `sampling` are one for all policies or a tuple with one for each. Without a `config` the policies are
    scripted players of the environment with recorded rows: dialogues for supervised training. Policies that are not
    `masked` may say anything, until the end token or the budget. An illegal answer then gives the game action -1.
    """

    tokenizer: Any
    policies: tuple[str, ...]
    config: Config | None = None
    lora: Lora | tuple[Lora, ...] | None = None
    sampling: Sampling | tuple[Sampling, ...] = PLAIN
    masked: bool = True

    def __post_init__(self):
        if self.config is not None and self.lora is None and len(self.policies) != 1:
            raise ValueError(f"Policies {self.policies} cannot share full weights: give each a policy set or use LoRA.")
        for name in ("lora", "sampling"):
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != len(self.policies):
                raise ValueError(f"{name} holds {len(given)} settings for policies {self.policies}: give one for each.")

    @property
    def loras(self) -> tuple[Lora, ...]:
        """The settings of every policy's adapter, () with full weights."""
        return self.lora if isinstance(self.lora, tuple) else (self.lora,) * len(self.policies) if self.lora else ()

    @property
    def merged(self) -> bool:
        """True if all rows have the same adapter: decoding then adds it to the base weights."""
        return self.lora is not None and len(self.policies) == 1

    def scorer(self, tables: TokenTables, remat: Remat = "none") -> Scorer:
        """A scorer for rows of these policies, sampled under `tables`. Raises ValueError for a scripted set."""
        if self.config is None:
            raise ValueError(f"Policies {self.policies} are scripted: there is no model to score with.")
        return Scorer(self.config, tables, self.sampling, self.masked, remat)


@dataclass(frozen=True)
class Lineup:
    """seats[q][a] names the policy or scripted player in seat a of group q's games; `group_size` episodes a group."""

    seats: tuple[tuple[str, ...], ...]
    group_size: int

    @property
    def episodes(self) -> int:
        return len(self.seats) * self.group_size

    def assignments(self, names: Sequence[str]) -> np.ndarray:
        """int [O, 3]: (group, seat, index into `names`) of every seat with one of these names, by group."""
        triples = [(q, a, names.index(n)) for q, row in enumerate(self.seats) for a, n in enumerate(row) if n in names]
        return np.array(triples, np.int32).reshape(-1, 3)

    def rows(self, assignments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(episode, seat), int [R] each, of every row of these assignments: a row for each episode of the group."""
        episode = assignments[:, :1] * self.group_size + np.arange(self.group_size)[None]
        return episode.ravel(), np.repeat(assignments[:, 1], self.group_size)

    def check(self, environment: Environment, policy_sets: dict[str, PolicySet]) -> None:
        """Raises ValueError for a wrong number of seats, an unknown name, a policy set without a seat, or no groups."""
        if self.group_size < 1 or not self.seats:
            raise ValueError(
                f"A batch needs a group of one episode at least, got {len(self.seats)} groups of {self.group_size}."
            )
        policies = [name for policy_set in policy_sets.values() for name in policy_set.policies]
        known = {*policies, *environment.scripts}
        for row in self.seats:
            if len(row) != environment.agents:
                raise ValueError(f"The game has {environment.agents} seats, but the line-up {row} has {len(row)}.")
            unknown = [name for name in row if name not in known]
            if unknown:
                raise ValueError(f"Nobody is called {unknown[0]!r}: possible are {', '.join(sorted(known))}.")
        for name, policy_set in policy_sets.items():
            if not len(self.assignments(policy_set.policies)):
                raise ValueError(
                    f"Policy set {name!r} has no seat in this line-up: remove it or seat one of its policies."
                )
        for name in (
            name for policy_set in policy_sets.values() if policy_set.config is None for name in policy_set.policies
        ):
            if name not in environment.scripts:
                raise ValueError(
                    f"{name!r} has no model and is no scripted player: possible are {', '.join(environment.scripts)}."
                )
        for name, policy_set in policy_sets.items():
            if not (policy_set.masked or Extras(environment).accepts_illegal):
                raise ValueError(
                    f"Policy set {name!r} plays unmasked, but the game does not say what an illegal answer does: wrap "
                    "it, Illegal(game, then='end') or then='retry'."
                )
        twice = sorted({name for name in policies if policies.count(name) > 1})
        if twice:
            raise ValueError(f"Policy {twice[0]!r} belongs to two policy sets: names must be unique.")


def strings(environment: Environment) -> list[str]:
    """Every phrase and action text of an environment: the vocabulary of a symbol tokenizer.

    Raises ValueError for an object that is no compiled game.
    """
    check_object(environment)
    said = [text for field in phrases((*environment.rules, *environment.observation)) for text in field if text]
    return [*said, *(text for grammar in environment.grammars for text in _grammar_texts(grammar))]


def words(environment: Environment, letters: Sequence[str] = "abcd") -> SymbolTokenizer:
    """A vocabulary for tiny policies with free text: `Recipe.tokenizer=partial(words, letters="abcd")`.

    Free text consists of `letters` and the answers of the game, never of the referee's phrases, and has an end token.
    """
    known = strings(environment)
    said = {text for grammar in environment.grammars for text in _grammar_texts(grammar)} | {*letters}
    return SymbolTokenizer([*known, *letters], heard=[text for text in known if text not in said], ends=True)


def answer_letters(environment: Environment) -> SymbolTokenizer:
    """A vocabulary of the game's phrases and the letters of its answers, so that an answer has several tokens."""
    said = {text for grammar in environment.grammars for text in _grammar_texts(grammar)}
    return SymbolTokenizer([*(text for text in strings(environment) if text not in said), *sorted({*"".join(said)})])


def _grammar_texts(grammar: Grammar) -> list[str]:
    texts: list[str] = []
    for part in grammar:
        texts += [text for _, text in part.options] if hasattr(part, "options") else [getattr(part, "text", "")]
    return [text for text in texts if text]
