"""Games as records: one JSON object a game, which `games.jsonl` holds a line each and `games.html` shows.

    study, arm, seed, update   which run; `update` counts the updates made before the game
    game, group, member        index in the batch; the games of a group are siblings: they start alike
    seats                      by seat:
      policy                   name of the policy or of the scripted player
      reward, components       sum of the game's rewards; {component: sum}
      measured                 {measure: sum}, facts that are not paid; absent in a game without
      messages                 all that the seat was told and said, as OpenAI messages: [{"role", "content"}]; none of a
                               scripted player, whose text is not recorded
      turns                    for each message the turn in which it was said, or before which it was told
      answers                  for each message of the assistant, in order:
        turn, action, reward   -1: no legal action; the reward paid to the seat for this turn
        tokens                 [{"text"}], and of a token that was sampled, not forced by the grammar:
          logp                 natural logarithm of its probability as it was sampled (float32, exactly)
          entropy              of the distribution it was drawn from, nats
          advantage            that an update would give it; absent under a step of a recipe's own
          top                  [[text, probability]]: the most probable legal tokens there, at most `examine.MOST`
        values                 [[answer, value]]: the exact value of every legal action, in games with a small tree

A value is the mean reward of the seat over the whole game with this action, given all that it was told. All seats then
play on as the present policies do (`solve.action_values`). A character whose bytes are split
over tokens is written at the last of them. Chat markers stand in no message; the token that ends an answer is listed
among its tokens.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.policy_table import tabulate
from jaxmarl_llm.rollout.layout import RowLayout
from jaxmarl_llm.rollout.policy import NEVER
from jaxmarl_llm.text.grammar import TokenTables, options_of
from jaxmarl_llm.text.tokenizers import Tokenizer
from jaxmarl_llm.text.visible import visible
from jaxmarl_llm.training.examine import Examined, Look
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import page

LARGEST = 1000  # histories of a game whose values are computed
Game = dict[str, Any]
Values = dict[tuple[int, int, int], list]  # by episode, seat and turn


def count_games(recipe: Recipe, limit: int) -> int:
    """The number of games of a batch that are recorded: whole groups within `limit`, or part of one group; 0: all."""
    games = recipe.groups * recipe.group_size
    shown = min(limit or games, games)
    return shown - shown % recipe.group_size if shown > recipe.group_size else shown


def recorder(trainer: Trainer) -> Callable[[Any, Mapping[int, Mapping[str, Any]], int], list[list[Game]]]:
    """record(state, runs, limit): by run its games, as many as `count_games` says.

    `runs` is {run of the trainer: the fields study, arm, seed, update}.
    """
    exact = exact_values(trainer)

    def record(state: Any, runs: Mapping[int, Mapping[str, Any]], limit: int) -> list[list[Game]]:
        update = next(iter(runs.values()))["update"]
        batch = jax.device_get(trainer.examine(state, tuple(runs), update))
        shown = count_games(trainer.recipe, limit)
        games = []
        for i, (run, about) in enumerate(runs.items()):
            examined = jax.tree.map(lambda x, i=i: x[i], batch)
            values = exact and exact(trainer.weights(state, run), examined, shown)
            record_game = partial(game_of, trainer.recipe.game, trainer.rollout, examined, about=about)
            games.append([record_game(episode, values=values or {}) for episode in range(shown)])
        return games

    return record


def save_games(trainer: Trainer, state: Any, out: str | Path, update: int = 0, count: int = 16) -> Path:
    """Writes games of a trainer's first run into `out`, for scripts: games.jsonl, and games.html, which is
    returned. Older games of other updates are kept and shown beside these."""
    file = Path(out) / page.GAMES
    file.parent.mkdir(parents=True, exist_ok=True)
    about = {"study": type(trainer.recipe.game).__name__, "arm": "run", "seed": trainer.seeds[0], "update": update}
    (games,) = recorder(trainer)(state, {0: about}, count)
    kept = [game for game in page.read(file) if game["update"] != update] if file.exists() else []
    file.write_bytes(page.lines_of(kept + games))
    return page.write(file.parent, file.parent)[0]


def game_of(
    game: Any, rollout: Any, examined: Examined, episode: int, about: Mapping[str, Any], values: Values
) -> Game:
    """The record of one game of one run, played by `rollout`; `values` is {(episode, seat, turn): the field of this
    name}."""
    episodes, (group, member) = examined.trajectory.episodes, divmod(episode, rollout.lineup.group_size)
    seats: list[Game] = []
    for seat, policy in enumerate(rollout.lineup.seats[group]):
        paid = episodes.reward[episode, :, seat]
        reward = {name: plain(x) for name, x in zip(game.components, paid.sum(0), strict=True)}
        seats.append({"policy": policy, "reward": plain(paid.sum()), "components": reward})
        if episodes.measured is not None:
            facts = zip(Extras(game).measures, episodes.measured[episode, :, seat].sum(0), strict=True)
            seats[-1]["measured"] = {name: plain(x) for name, x in facts}
        seats[-1] |= {"messages": [], "turns": [], "answers": []}
        for name, rows in rollout.row_of.items():
            if (row := rows[episode, seat]) >= 0:
                seats[-1] |= read(rollout.layouts[name], examined, name, int(row))
        for answer in seats[-1]["answers"]:
            at = answer["turn"]
            answer |= {"action": int(episodes.action[episode, at, seat]), "reward": plain(paid[at].sum())}
            if (episode, seat, at) in values:
                answer["values"] = values[episode, seat, at]
    return {**about, "game": episode, "group": group, "member": member, "seats": seats}


def read(layout: RowLayout, examined: Examined, name: str, row: int) -> dict[str, Any]:
    """The messages, turns and answers of a row."""
    rows, tokenizer = examined.trajectory.rows[name], layout.policy_set.tokenizer
    prompt, seat, episode = rows.prompt[row], rows.seat[row], rows.episode[row]
    before, length = rows.prompts.length[prompt], rows.length[row]
    tokens = np.concatenate([rows.prompts.tokens[prompt, :before], rows.tokens[row, :length]])
    turn = np.concatenate([np.zeros(before, int), rows.turn[row, :length]])
    number = {
        int(before + at): i for i, at in enumerate(examined.looks[name].sampled.at[row]) if rows.loss_mask[row, at]
    }
    told = int(examined.rules[name][prompt])
    markers, begin = tokenizer.markers, len(tokenizer.markers.before_rules)
    at, marker = begin + told, markers.hear_first
    messages, turns, answers = [{"role": "system", "content": text(tokenizer, tokens[begin:at])}], [0], []

    def hear(until: int, now: int) -> None:
        if at < until:
            messages.append({"role": "user", "content": text(tokenizer, tokens[at + len(marker) : until])})
            turns.append(now)

    for t in np.flatnonzero(examined.trajectory.episodes.acted[episode, :, seat]).tolist():
        first, end = np.searchsorted(turn, [t, t + 1]).tolist()
        action = int(examined.trajectory.episodes.action[episode, t, seat])
        sampled = examined.looks[name].sampled.grammar_state[row]
        states = {place: int(sampled[i]) for place, i in number.items() if first <= place < end}
        start = answer_start(layout.tables, tokens, first, end, action, states)
        hear(start - len(markers.speak), t)
        said = tokens[start : end - (tokens[end - 1] == tokenizer.end)]
        messages.append({"role": "assistant", "content": text(tokenizer, said)})
        turns.append(t)
        listed: list[dict[str, Any]] = [{"text": piece} for piece in texts(tokenizer, tokens[start:end])]
        for place, token in enumerate(listed, start):
            if place in number:
                token |= token_numbers(tokenizer, examined.looks[name], row, number[place])
                if name in examined.advantage:
                    token["advantage"] = plain(examined.advantage[name][row, number[place]])
        answers.append({"turn": t, "action": 0, "reward": 0.0, "tokens": listed})
        at, marker = end, markers.hear
    hear(len(tokens), int(turn[-1]))
    return {"messages": messages, "turns": turns, "answers": answers}


def answer_start(
    tables: TokenTables, tokens: np.ndarray, first: int, end: int, action: int, states: Mapping[int, int]
) -> int:
    """The place of the answer's first token among the tokens [first, end) of a turn, which hold the texts told to the
    seat, then its answer.

    `states` are the grammar states of the sampled tokens {place: state}. The answer begins at the last place from which
    the grammar leads to the first sampled token. An answer that was forced as a whole leads to its end, with `action`,
    instead; `action` is read for such an answer only.
    """
    goal = min(states, default=end)
    starts = np.unique(tables.start).tolist()
    for begin in range(goal, first - 1, -1):
        for state in starts:
            for token in tokens[begin:goal].tolist():
                state = int(tables.next[state, tables.token_class[token]])
            if state == states[goal] if states else tables.ended[state] and tables.action[state] == action:
                return begin
    return goal


def token_numbers(tokenizer: Tokenizer, look: Look, row: int, i: int) -> dict[str, Any]:
    """The numbers of sampled token i of a row."""
    top = [
        [text(tokenizer, [token]), float(f"{np.exp(logp):.5g}")]
        for token, logp in zip(look.token[row, i].tolist(), look.logp[row, i], strict=True)
        if logp > NEVER / 2
    ]
    return {"logp": plain(look.sampled.behaviour_logp[row, i]), "entropy": plain(look.entropy[row, i]), "top": top}


def plain(x: Any) -> float | None:
    """A float32 as the shortest decimal number that is read back as the same float32; None if it is not finite."""
    return float(str(np.float32(x))) if np.isfinite(x) else None


def texts(tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray) -> Iterator[str]:
    """The text of each token: control tokens by name, bytes that are not UTF-8 as U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for at, token in enumerate(ids, 1):
        data = tokenizer.token_bytes[token]
        final = data is None or at == len(ids)
        name = tokenizer.decode([int(token)]) if data is None else ""
        yield decoder.decode(data or b"", final) + name


def text(tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray) -> str:
    return "".join(texts(tokenizer, ids))


def exact_values(trainer: Trainer) -> Callable[[dict, Examined, int], Values] | None:
    """values(weights, games, count): {(episode, seat, turn): [[answer, value]]} of the first games.

    None for a game with more than `LARGEST` histories or without a tree, and for weights divided over devices. None
    also for a policy that is no table."""
    recipe = trainer.recipe
    if trainer.mesh.size > 1 or trainer.on_host:
        return None
    try:
        tree = solve.tree(recipe.game, limit=LARGEST)
        tables: dict[str, tuple[str, Callable[[dict], np.ndarray]]] = {}
        for name, policy_set in trainer.policy_sets.items():
            for i, policy in enumerate(policy_set.policies):
                batch = min(len(tree.owner), 64)
                tables[policy] = name, tabulate(tree, policy_set, i, recipe.budget, batch)
    except ValueError:
        return None
    child = {pair: node for node, pair in enumerate(zip(tree.parent.tolist(), tree.action.tolist(), strict=True))}

    def values(weights: dict, examined: Examined, count: int) -> Values:
        table = {policy: probabilities(weights[name]) for policy, (name, probabilities) in tables.items()}
        values_of_turns: Values = {}
        worth: dict[tuple[str, ...], np.ndarray] = {}
        for episode in range(count):
            group = episode // recipe.group_size
            seats = trainer.rollout.lineup.seats[group]
            if not set(seats) <= set(table):
                continue  # a scripted player is no table
            if seats not in worth:
                policies = np.stack([table[policy] for policy in seats])
                worth[seats] = solve.action_values(tree, policies[tree.owner, np.arange(len(tree.owner))])
            leaves = zip(jax.tree.leaves(tree.start[0]), jax.tree.leaves(examined.start), strict=True)
            same = [(deals == dealt[group][None]).reshape(len(deals), -1).all(1) for deals, dealt in leaves]
            node: int | None = int(np.argmax(np.all(same, 0)))
            for turn, action in enumerate(examined.trajectory.episodes.action[episode]):
                if node is None or (seat := int(tree.seat[node])) < 0:
                    break
                i, answers = tree.information[node], options_of(recipe.game.grammars[tree.grammar[node]])
                legal = np.flatnonzero(tree.legal[i]).tolist()
                values_of_turns[episode, seat, turn] = [[answers[a], plain(worth[seats][i, a])] for a in legal]
                node = child.get((node, int(action[seat])))
        return values_of_turns

    return values


def transcript(games: Sequence[Game]) -> str:
    """Markdown of games: the messages of every seat."""
    parts = []
    for game in games:
        parts.append(f"# Update {game['update']}, group {game['group']}, game {game['member']}")
        for seat, record in enumerate(game["seats"]):
            said = visible("\n".join(f"{message['role']}: {message['content']}" for message in record["messages"]))
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", said)), default=0))
            parts.append(f"Seat {seat} ({record['policy']}), reward {record['reward']}\n\n{fence}\n{said}\n{fence}")
    return "\n\n".join(parts) + "\n"
