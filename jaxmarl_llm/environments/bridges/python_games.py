"""Text environments in plain Python, and adapters for TextArena's games and reasoning_gym's tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from jaxmarl_llm.text.refusals import suggest

NOBODY: Mapping[int, Any] = MappingProxyType({})


class Turn(NamedTuple):
    """The output of a Python game before a turn, and the rewards of the turn before."""

    told: Mapping[int, str] = NOBODY  # by seat, the text that it is told now; a seat without a text needs no entry
    acting: tuple[int, ...] = ()  # the seats that speak now: one at least, until the game is done
    reward: Mapping[int, float] = NOBODY  # by seat, for the turn just played; also seats that did not speak
    done: bool = False
    invalid: tuple[int, ...] = ()  # the seats whose last answer was not a legal move


class TextEnvironment(Protocol):
    """One game of A seats in texts. Each game has its own state of Python's and NumPy's global generators (`_Dice`)."""

    @property
    def agents(self) -> int: ...  # A

    def reset(self, seed: int) -> tuple[Sequence[str], Turn]:
        """Deals a game: the rules as each seat is told them, and the first turn. Equal seeds, equal deals."""
        ...

    def step(self, said: dict[int, str]) -> Turn:
        """Plays the texts of the acting seats; a text may be anything, also empty."""
        ...


Script = Callable[[Sequence[str]], str]  # (the rules, then in turn the texts that its seat was told and said) -> answer


class HostGame:
    """A game that is played on the host, as a recipe's game: it pays one component and has one action, to speak."""

    components = ("reward",)
    actions = 1
    spelled_by = "lambda game: SymbolTokenizer([*string.printable], ends=True)"  # a tokenizer that an error proposes


@dataclass(frozen=True, eq=False)
class PythonGame(HostGame):
    """A game in plain Python as a recipe's game: `Recipe(PythonGame(textarena("KuhnPoker-v0", 2), turns=6), ...)`.

    Games are played on the host, one run after another, and the update is one compiled function, as with
    `PythonRollout`. `make`, `turns`, `context`, `scripts` and `slots` are the arguments of
    `PythonRollout`. Such a recipe has no
    past selves, arrangement, warm start or step of its own. A tiny policy needs a `Recipe.tokenizer` that can spell the
    texts, e.g. `lambda game: SymbolTokenizer([*string.printable], ends=True)`.
    """

    make: Callable[[], TextEnvironment]
    turns: int
    scripts: Mapping[str, Script] = field(default_factory=dict)
    context: int | None = None
    slots: int | None = None


def textarena(env_id: str, players: int, **settings: Any) -> Callable[[], TextEnvironment]:
    """A function that makes games of TextArena, e.g. textarena("KuhnPoker-v0", 2): an argument of PythonRollout.

    The prompts are the rules. Before it speaks a seat is told all messages since its last answer, one on a line, as
    "[GAME] ..." or "[Player 1] ...". Its own answers are not repeated, because its row holds them. Wrappers of `env_id`
    that change actions (brackets put around them) work. Wrappers that show a view of the history are bypassed: a row is
    the history.

    Rewards are paid when the game is over. `invalid` marks answers that TextArena has rejected. In four games of 0.7.4
    the reward for such an answer is a text; it counts as -1, as in all other games.

    Raises ValueError without the package and for an unknown game.
    """
    try:
        import textarena as package
    except ImportError as error:
        raise ValueError("TextArena's games need the package: run `pip install textarena`.") from error
    names = package.envs.registration.ENV_REGISTRY
    if env_id not in names:
        raise ValueError(f"TextArena has no game {env_id!r}. {suggest(env_id, names)}".rstrip())
    return lambda: _TextArena(package, package.make(env_id, **settings), players)


class _TextArena:
    def __init__(self, package: Any, wrapped: Any, agents: int):
        self.agents, self._kinds, self._wrapped, self._game = agents, package.ObservationType, wrapped, wrapped
        while isinstance(self._game, package.Wrapper):
            self._game = self._game.env
        self.name = type(self._game).__name__

    def reset(self, seed: int) -> tuple[list[str], Turn]:
        try:
            self._wrapped.reset(num_players=self.agents, seed=seed)
        except AssertionError as error:  # TextArena's games refuse a number of players so
            raise ValueError(f"{self.name} cannot begin with {self.agents} players: {error}.") from error
        messages, rules = self._game.state.observations, []
        for seat in range(self.agents):
            prompt = [message for message in messages[seat] if message[2] is self._kinds.PROMPT]
            messages[seat] = [message for message in messages[seat] if message[2] is not self._kinds.PROMPT]
            rules.append("\n\n".join(text for _, text, _ in prompt))
        return rules, self._turn()

    def step(self, said: dict[int, str]) -> Turn:
        [(seat, text)] = said.items()
        state = self._game.state
        flagged = state.game_info[seat]["invalid_move"]
        done, _ = self._wrapped.step(text)
        invalid = getattr(state, "error_count", 0) > 0 or (state.game_info[seat]["invalid_move"] and not flagged)
        if not done:
            return self._turn()._replace(invalid=(seat,) * invalid)
        paid = {seat: -1.0 if isinstance(x, str) else x for seat, x in (state.rewards or {}).items()}
        invalid = invalid or any(isinstance(x, str) for x in (state.rewards or {}).values())
        return Turn(reward=paid, done=True, invalid=(seat,) * invalid)

    def _turn(self) -> Turn:
        seat, messages = self._game.get_observation()
        lines = [
            f"[{self._game.state.role_mapping.get(sender, f'Player {sender}')}] {text}"
            for sender, text, kind in messages
            if (sender, kind) != (seat, self._kinds.PLAYER_ACTION)
        ]
        return Turn({seat: "\n".join(lines)}, (seat,))


def reasoning_gym(task: str, rules: str = "", tag: str | None = None, **settings: Any) -> Callable[[], TextEnvironment]:
    """A function that makes games of one seat and one turn: a reasoning_gym question, an answer, its score in [0, 1].

    `settings` are the task's. Without a seed the questions are those of seed 0; a game's seed picks one of `size`. The
    whole stripped answer is scored. With a `tag` such as "answer" only the text between <answer> and </answer> is
    scored, and `rules` should ask for it. An answer that the task's scorer cannot read (two scorers raise) scores 0 and
    is invalid, like an answer without the tag.
    """
    try:
        import reasoning_gym as package
    except ImportError as error:
        raise ValueError("These tasks need the package: run `pip install reasoning-gym`.") from error
    dataset = package.create_dataset(task, **{"seed": 0, **settings})
    extract = partial(package.utils.extract_answer, tag_name=tag) if tag else str.strip
    return lambda: _Question(dataset, rules, extract)


class _Question:
    agents = 1

    def __init__(self, dataset: Any, rules: str, extract: Callable[[str], str | None]):
        self._dataset, self._rules, self._extract = dataset, rules, extract

    def reset(self, seed: int) -> tuple[list[str], Turn]:
        self._entry = self._dataset[seed % len(self._dataset)]
        return [self._rules], Turn({0: self._entry["question"]}, (0,))

    def step(self, said: dict[int, str]) -> Turn:
        answer = self._extract(said[0])
        try:
            score = 0.0 if answer is None else float(self._dataset.score_answer(answer, self._entry))
        except Exception:  # scorers parse a model's text, and any exception means that they could not
            score, answer = 0.0, None
        return Turn(reward={0: score}, done=True, invalid=(0,) * (answer is None))
