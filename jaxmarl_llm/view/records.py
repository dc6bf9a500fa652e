"""Games as records: one JSON object a game, which `games.jsonl` holds a line each and `games.html` shows.

    study, arm, seed, update   which run; `update` counts the updates made before the game
    game, group, member        index in the batch; the games of a group are siblings: they start alike
    right, note                the right answer to the deal, and the game's note on it, where a game has them
    cut_off                    true for a game that was cut off before its end (`Episodes.truncated`), else absent
    seats                      by seat:
      policy                   name of the policy or of the scripted player
      role                     the seat's role in its first turn, a name of the game's
      reward, components       sum of the game's rewards; {component: sum}
      measured                 {measure: sum}, facts that are not paid; absent in a game without
      messages                 all that the seat was told and said, as OpenAI messages: [{"role", "content"}]; none of a
                               scripted player, whose text is not recorded. A game's rules are the system message
      turns                    for each message the turn in which it was said, or before which it was told
      dialogues                for a program that held several in this seat: their beginnings, as places in `messages`
      answers                  for each answer of the policy, in order:
        turn, action, reward   -1: no legal action; the reward paid to the seat for this turn
        message                its place in `messages`
        role                   its role, where it is another than the seat's
        means                  the name of its action, in a game whose answers are labels
        cut                    the budget in tokens, the end included, if the answer used it up before it ended; absent
                               under a budget of 2: a whole answer of one token looks the same
        tokens                 [{"text"}], `end` for the token that ends answers, and of a token that was sampled, not
                               forced by grammar or budget:
          logp                 natural logarithm of its probability as it was sampled (float32, exactly)
          entropy              of the distribution it was drawn from, nats
          advantage            that an update would give it; absent under a step of a recipe's own
          top                  [[text, probability]]: the most probable legal tokens there, at most `examine.MOST`
        values                 [[answer, value]]: the exact value of every legal action, in games with a small tree
      acts                     of a scripted player in place of answers: turn, action, reward, role, means, values

A value is the mean reward of the seat over the whole game with this action, given all that it was told. All seats then
play on as the present policies do (`solve.action_values`). A character whose bytes are split
over tokens is written at the last of them. Chat markers stand in no message; the token that ends an answer is listed
among its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.environments.bridges.agent_programs import AgentProgram
from jaxmarl_llm.environments.bridges.prompts import Prompts
from jaxmarl_llm.environments.bridges.python_games import HostGame
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.policy_table import tabulate
from jaxmarl_llm.rollout.names import name_text
from jaxmarl_llm.text.grammar import options_of
from jaxmarl_llm.text.visible import visible
from jaxmarl_llm.training.examine import Examined
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import page
from jaxmarl_llm.view.rows import plain, read

LARGEST = 1000  # histories of a game whose values are computed
LONGEST = 300  # characters of a field of a question in a note
Game = dict[str, Any]
Values = dict[tuple[int, int, int], list]  # by episode, seat and turn


def select_games(recipe: Recipe, limit: int) -> list[int]:
    """The episodes of a batch that are recorded: whole groups within `limit`, all of them if it is 0.

    A limit below a group's size takes the first members of as many groups as it reaches, since a group is one deal.
    """
    size, games = recipe.group_size, recipe.groups * recipe.group_size
    if not limit or limit >= size:
        return [*range(min(limit or games, games) // size * size)]
    return sorted(sorted(range(games), key=lambda episode: (episode % size, episode))[:limit])


def recorder(trainer: Trainer) -> Callable[[Any, Mapping[int, Mapping[str, Any]], int], list[list[Game]]]:
    """record(state, runs, limit): by run the games of `select_games`.

    `runs` is {run of the trainer: the fields study, arm, seed, update}.
    """
    exact = exact_values(trainer)

    def record(state: Any, runs: Mapping[int, Mapping[str, Any]], limit: int) -> list[list[Game]]:
        update = next(iter(runs.values()))["update"]
        batch = jax.device_get(trainer.examine(state, tuple(runs), update))
        shown = select_games(trainer.recipe, limit)
        games = []
        for i, (run, about) in enumerate(runs.items()):
            examined = jax.tree.map(lambda x, i=i: x[i], batch)
            values = exact and exact(trainer.weights(state, run), examined, shown)
            record_game = partial(game_of, trainer.recipe.game, trainer.rollout, examined, about=about)
            games.append([record_game(episode, values=values or {}) for episode in shown])
        return games

    return record


def save_games(trainer: Trainer, state: Any, out: str | Path, update: int = 0, count: int = 16) -> Path:
    """Writes games of a trainer's first run into `out`, for scripts: games.jsonl, and games.html, which is
    returned. Older games of other updates are kept and shown beside these. Raises ValueError for the directory of a
    study's run, and for one with a page of another origin."""
    file = Path(out) / page.GAMES
    if (file.parent / page.STUDY).exists():
        raise ValueError(f"{out} holds the run of a study, whose page has its own games: name another directory.")
    if (file.parent / page.PAGE).exists() and not file.exists():
        raise ValueError(f"{out} holds a {page.PAGE} without its {page.GAMES}: name another directory.")
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
    moves = Extras(game).moves if len(Extras(game).moves) == game.actions else ()
    seats: list[Game] = []
    for seat, policy in enumerate(rollout.lineup.seats[group]):
        paid = episodes.reward[episode, :, seat]
        reward = {name: plain(x) for name, x in zip(game.components, paid.sum(0), strict=True)}
        roles = {int(t): name for t in np.flatnonzero(episodes.acted[episode, :, seat])
                 if (name := role_in(game, episodes, episode, int(t), seat))}  # fmt: skip
        seats.append({"policy": policy, **({"role": next(iter(roles.values()))} if roles else {})})
        seats[-1] |= {"reward": plain(paid.sum()), "components": reward}
        if episodes.measured is not None:
            facts = zip(Extras(game).measures, episodes.measured[episode, :, seat].sum(0), strict=True)
            seats[-1]["measured"] = {name: plain(x) for name, x in facts}
        seats[-1] |= {"messages": [], "turns": [], "answers": []}
        for name in rollout.row_of:
            add_dialogues(seats[-1], rollout, examined, name, episode, seat)
        if not seats[-1]["messages"]:
            turns = np.flatnonzero(episodes.acted[episode, :, seat]).tolist()
            seats[-1]["acts"] = [{"turn": t, "action": int(episodes.action[episode, t, seat])} for t in turns]
        for act in (*seats[-1]["answers"], *seats[-1].get("acts", ())):
            at, legal = act["turn"], episodes.legal[episode, act["turn"], seat]
            act["reward"] = plain(paid[at].sum())
            if roles.get(at) != seats[-1].get("role"):
                act["role"] = roles[at]
            if moves and legal.sum() > 1 and act["action"] >= 0:  # a message is the only action of its turn
                act["means"] = moves[act["action"]]
            if (episode, seat, at) in values:
                act["values"] = values[episode, seat, at]
    return {
        **about,
        "game": episode,
        "group": group,
        "member": member,
        **deal_of(game, examined, episode),
        **({"cut_off": True} if episodes.truncated[episode] else {}),
        "seats": seats,
    }


def role_in(game: Any, episodes: Any, episode: int, turn: int, seat: int) -> str:
    """The role of a seat in a turn; the seats of a program are roles themselves, and other host games have none."""
    if isinstance(game, HostGame):
        return game.seats[seat] if isinstance(game, AgentProgram) else ""
    return game.roles[int(episodes.role[episode, turn, seat])]


def add_dialogues(record: Game, rollout: Any, examined: Examined, name: str, episode: int, seat: int) -> None:
    """Adds the dialogues of a seat in a policy set's rows, the earliest answer first; a program can hold several."""
    first, rows = int(rollout.row_of[name][episode, seat]), examined.trajectory.rows[name]
    if first < 0:
        return
    mine = (rows.episode == episode) & (rows.seat == seat) & (rows.length > 0)
    further = [row for row in np.flatnonzero(mine).tolist() if row >= len(rollout.layouts[name].episode)]
    dialogues = [read(rollout.layouts[name], examined, name, row) for row in (first, *further)]
    dialogues.sort(key=lambda dialogue: dialogue["answers"][0]["turn"] if dialogue["answers"] else 0)
    if len(dialogues) > 1:
        lengths = [len(dialogue["messages"]) for dialogue in dialogues]
        record["dialogues"] = [sum(lengths[:i]) for i in range(len(lengths))]
    for dialogue in dialogues:
        for answer in dialogue["answers"]:
            answer["message"] += len(record["messages"])
        for field, values in dialogue.items():
            record[field] += values


def deal_of(game: Any, examined: Examined, episode: int) -> dict[str, str]:
    """Facts on the deal that no seat is told: the right answer, and the game's note."""
    extras, group = Extras(game), int(examined.trajectory.episodes.group[episode])
    if isinstance(game, Prompts):
        name = int(examined.trajectory.episodes.told[episode, 0, 0])
        question = next(q for q in game.training if name_text(str(q.messages)) == name)
        note = "; ".join(f"{field}: {str(value)[:LONGEST]}" for field, value in question.fields.items())
        return {"note": note} if note else {}
    if isinstance(game, HostGame) or not jax.tree.leaves(examined.start):
        return {}
    state = jax.tree.map(lambda x: x[group], examined.start)
    facts = {"right": extras.right_answer, "note": extras.note}
    return {name: tell(state) for name, tell in facts.items() if tell is not None}


def exact_values(trainer: Trainer) -> Callable[[dict, Examined, Sequence[int]], Values] | None:
    """values(weights, games, episodes): {(episode, seat, turn): [[answer, value]]} of these games.

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

    def values(weights: dict, examined: Examined, episodes: Sequence[int]) -> Values:
        table = {policy: probabilities(weights[name]) for policy, (name, probabilities) in tables.items()}
        values_of_turns: Values = {}
        worth: dict[tuple[str, ...], np.ndarray] = {}
        for episode in episodes:
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


def token_values(games: Iterable[Game]) -> dict[str, list[float]]:
    """{name/policy: the numbers of all sampled tokens} for entropy (nats), logp and advantage, where they are known."""
    values: dict[str, list[float]] = {}
    for seat in (seat for game in games for seat in game["seats"]):
        for token in (token for answer in seat["answers"] for token in answer["tokens"]):
            for name in ("entropy", "logp", "advantage"):
                if token.get(name) is not None:
                    values.setdefault(f"{name}/{seat['policy']}", []).append(token[name])
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
