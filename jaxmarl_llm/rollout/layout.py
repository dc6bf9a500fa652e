"""The static side of a rollout: the rows of a policy set, and the largest width of every part of a row.

Shapes: O prompts (one for each group and seat of the set), R = O * group_size rows, S tokens of a row after its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxmarl_llm.environments.base import Environment, MessageFrom, phrases
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.models import packing
from jaxmarl_llm.models.config import Remat
from jaxmarl_llm.rollout.policy import PerRow, Scorer, Shaping, per_row
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.text.grammar import UNREACHABLE, TokenTables, lift, utterances
from jaxmarl_llm.text.relay import Relay
from jaxmarl_llm.text.templates import check_edges
from jaxmarl_llm.text.tokenizers import Phrases, Tokenizer, compile_phrases, widest


class Messages(NamedTuple):
    """The free text between seats of a game, as static facts."""

    speakers: dict[int, int]  # field of the observation -> the seat that wrote its message
    max_said: int  # W, the most tokens of a message in the speaker's tokens; 0: no messages
    max_told: int  # the most tokens of a message in the tokens of another tokenizer

    @staticmethod
    def from_environment(environment: Environment, budget: np.ndarray, max_told: int | None) -> Messages:
        fields = enumerate(environment.observation)
        speakers = {k: field.seat for k, field in fields if isinstance(field, MessageFrom)}
        talks = [any(hasattr(part, "without") for part in grammar) for grammar in environment.grammars]
        max_said = int(budget[talks].max()) if speakers and any(talks) else 0
        return Messages(speakers, max_said, max_said if max_told is None else max_told)


@dataclass(frozen=True, eq=False)
class RowLayout:
    """The static facts about the rows of one policy set: `rollout.layouts[name]`.

    Rows are ordered by prompt: row o * group_size + g is member g of the group of prompt o. `episode`, `seat` and
    `policy` are NumPy arrays. If one seat of an alternating game decodes alone, they are traced and hold the rows of
    that seat.
    """

    policy_set: PolicySet
    tables: TokenTables  # the game's grammars in this set's tokens
    budget: np.ndarray  # int32 [grammars]: the most tokens of an utterance, end token included
    rules: Phrases  # the text at the start of a row; all fields twice if the template strips its start
    observation: Phrases  # the text before a turn, compiled likewise
    script: tuple[np.ndarray, np.ndarray]  # tokens [grammars, N, L] and lengths [grammars, N] of scripted utterances
    assignments: np.ndarray  # int [O, 3]: group, seat and policy of each prompt
    group_size: int  # rows of one prompt
    episode: Any  # int [R]
    seat: Any  # int [R]
    policy: Any  # int [R], index into policy_set.policies
    sampling: PerRow  # each row's sampling settings
    prompt_width: int  # the most tokens of a prompt
    max_heard: int  # the most tokens heard before a turn, markers and forced beginning included
    max_said: int  # the most tokens said in a turn, forced beginning excluded
    max_sampled: int  # the most tokens sampled in a turn, at least 1; the others are forced
    max_message: int  # W, the most tokens of a message
    slots: int  # S
    chunk: int  # the most tokens that a row's cache is given at a time
    alternating_seats: int  # seats of the set in each group if one acts at a time and decodes alone; 1: all rows decode
    relays: dict[str, Relay | None]  # by speaking set: translates its messages; None where the tokens are the same
    shaping: Shaping | None = None  # a hook on the distribution of these rows, traced

    @property
    def tokens(self) -> int:
        """The largest number of tokens in all rows, prompts counted once."""
        return len(self.episode) * self.slots + len(self.assignments) * self.prompt_width

    def scorer(self, remat: Remat = "none") -> Scorer:
        """A scorer for the rows of this set under any of its weights."""
        return self.policy_set.scorer(self.tables, remat)


def row_layout(
    name: str,
    policy_sets: dict[str, PolicySet],
    environment: Environment,
    lineup: Lineup,
    budget: np.ndarray,
    messages: Messages,
) -> RowLayout:
    """The layout of the policy set `name`.

    Raises ValueError for a budget too small for some action, or a context too short for the longest episode. A text
    of the game that the chat template would change also raises it. Long because every width depends on earlier ones.
    """
    policy_set = policy_sets[name]
    tokenizer, config = policy_set.tokenizer, policy_set.config
    tables = lift(environment.grammars, tokenizer.token_bytes, tokenizer.end)
    if not policy_set.masked:
        tables = _without_forced_tokens(tables)
    script = utterances(environment.grammars, tables, tokenizer.encode, tokenizer.end)
    _check_budget(name, policy_set, tables, script, budget)
    said, sampled = _max_tokens(tables, budget)
    if not policy_set.masked:
        sampled = int(budget.max()) if tokenizer.end is not None else 1
        said = sampled + (tokenizer.end is not None)  # the end token after a full budget is appended
    trims, told = tokenizer.trims, (phrases(environment.rules), phrases(environment.observation))
    free = [isinstance(field, MessageFrom) for field in environment.observation]
    check_edges(trims, told[0], [None if words else field for field, words in zip(told[1], free, strict=True)])
    rules = compile_fields(tokenizer, told[0], trims.rules)
    observation = compile_fields(tokenizer, told[1], trims.first or trims.later)
    relays = {}
    for other, speaker in policy_sets.items():
        same = speaker.tokenizer is tokenizer or speaker.tokenizer.token_bytes == tokenizer.token_bytes
        same |= not messages.max_said
        relays[other] = None if same else Relay(speaker.tokenizer, tokenizer, messages.max_told)
    markers, assignments = tokenizer.markers, lineup.assignments(policy_set.policies)
    prefix = int(tables.forced_length[tables.start].max())
    text = int(widest(observation, len(told[1])).sum()) + len(markers.speak) + prefix
    opening = max(len(markers.hear_first), len(trims.hear_nothing or ()))
    prompt = len(markers.before_rules) + int(widest(rules, len(told[0])).sum()) + opening + text
    seats, speakers = set(assignments[:, 1].tolist()), messages.speakers.values()
    heard_from = min(Extras(environment).voices, max(sum(speaker != seat for speaker in speakers) for seat in seats))
    heard = (
        max(len(markers.hear), len(markers.hear_first)) + text + heard_from * max(messages.max_said, messages.max_told)
    )
    nth = 1 + np.arange(
        Extras(environment).seat_turns
    )  # turns of a seat; what is told before its first is in the prompt
    after = nth * said + (nth - (len(nth) == environment.turns)) * heard
    if config is not None and prompt + after[-1] > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise ValueError(
            f"The context of {name} is too short by {prompt + after[-1] - limit} tokens: it holds {limit}, the longest "
            f"episode has {prompt + after[-1]}; it would overflow in turn {int(np.argmax(prompt + after > limit)) + 1} "
            f"of {len(nth)} of a seat (prompt {prompt}, then up to {heard} heard and {said} said a turn)."
        )
    together = np.unique(np.bincount(assignments[:, 0], minlength=len(lineup.seats)))
    rows = len(assignments) * lineup.group_size
    alternating = Extras(environment).alternating and len(together) == 1 and config is not None
    return RowLayout(
        policy_set=policy_set,
        tables=tables,
        budget=budget,
        rules=rules,
        observation=observation,
        script=script,
        **row_fields(lineup, policy_set),
        prompt_width=prompt,
        max_heard=heard,
        max_said=said,
        max_sampled=sampled,
        max_message=messages.max_said,
        slots=max(1, int(after[-1])),
        chunk=max(packing.chunk(config, rows, heard + said), 1 + tables.forced.shape[1]),
        alternating_seats=int(together[0]) if alternating else 1,
        relays=relays,
    )


def compile_fields(tokenizer: Tokenizer, fields: Sequence[Sequence[str]], strips: bool) -> Phrases:
    """The compiled phrases of all fields; with `strips` each field a second time, without leading spaces."""
    lead = tokenizer.trims.lead
    bare = [[lead + phrase.lstrip() if phrase.strip() else "" for phrase in field] for field in fields]
    return compile_phrases(tokenizer, [*fields, *bare] if strips and bare != [list(f) for f in fields] else fields)


def row_fields(lineup: Lineup, policy_set: PolicySet) -> dict[str, Any]:
    """The fields of a layout with the seat, the policy and the sampling settings of every row."""
    assignments = lineup.assignments(policy_set.policies)
    episode, seat = lineup.rows(assignments)
    policy = np.repeat(assignments[:, 2], lineup.group_size)
    return {
        "assignments": assignments,
        "group_size": lineup.group_size,
        "episode": episode,
        "seat": seat,
        "policy": policy,
        "sampling": per_row(policy_set.sampling, policy),
    }


def rows_of_seats(layout: Any, episodes: int, agents: int) -> np.ndarray:
    """The row of each seat in each episode for a policy set: int [B, A], -1 for a seat without a row."""
    rows = np.full((episodes, agents), -1)
    rows[layout.episode, layout.seat] = np.arange(len(layout.episode))
    return rows


def _without_forced_tokens(tables: TokenTables) -> TokenTables:
    """The tables of an unmasked policy: no token is forced after another."""
    states = np.arange(len(tables.next))
    return tables._replace(
        forced=np.zeros((len(states), 0), np.int32),
        forced_length=np.zeros_like(tables.forced_length),
        forced_state=states.astype(np.int16),
    )


def _check_budget(
    name: str, policy_set: PolicySet, tables: TokenTables, script: tuple[np.ndarray, np.ndarray], budget: np.ndarray
) -> None:
    shortest = tables.distance[tables.start]
    needed = script[1] if policy_set.config is None else np.where(shortest < UNREACHABLE, shortest, 0)
    for given, length in zip(budget, needed.max(1), strict=True):
        if length > given:
            raise ValueError(f"A budget of {given} tokens is too small: some action takes {length} ({name}).")


def _max_tokens(tables: TokenTables, budgets: np.ndarray) -> tuple[int, int]:
    """The largest numbers of tokens of an utterance after its forced beginning: in all, and sampled ones.

    The second is at least 1, so that rows without a choice have the shapes of others.
    """
    known: dict[int, tuple[int, int]] = {}
    endless = int(budgets.max())

    def explore(state: int) -> tuple[int, int]:
        if tables.ended[state]:
            return 0, 0
        if state not in known:
            known[state] = endless, endless  # a state reached again is in a loop that only the budget ends
            best = 0, 0
            for after in {int(s) for s in np.unique(tables.next[state]) if (tables.distance[s] < UNREACHABLE).any()}:
                said, sampled = explore(int(tables.forced_state[after]))
                best = max(best[0], 1 + int(tables.forced_length[after]) + said), max(best[1], 1 + sampled)
            known[state] = best
        return known[state]

    results = [explore(int(tables.forced_state[s])) for s in tables.start]
    said, sampled = (max(min(r[i], int(b)) for r, b in zip(results, budgets, strict=True)) for i in range(2))
    return said, max(1, sampled)
