"""Does SmolLM2-135M use a tool, or a planner's note, as an agent program behind OpenAI's protocol?

`calculator` asks each question in four ways. The model's template has no tools, so a system message tells of the
calculator. A call such as calc(23*48) is computed, its result is told, and the next answer counts.

  alone  four worked examples of answers, and no calculator
  told   the system message alone
  one    one worked example of a call
  four   four worked examples of calls

`planned` has a planner that reads a story and notes its sum, and an answerer that reads the note alone. Each has an
adapter of rank 4, and `--updates` trains both. The pairs of numbers of the evaluated stories are not trained.

  python -m experiments.gallery.small_programs calculator --questions products
  python -m experiments.gallery.small_programs planned --count 96
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.gallery.programs import CALCULATORS, TEAMS
from jaxmarl_llm.environments.bridges.agent_programs import AgentProgram
from jaxmarl_llm.evaluation.statistics import sign_flip_interval, wilson_interval
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.serving.agent_rollout import AgentRollout
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer

BUDGET = 16  # tokens of an answer
QUESTIONS_KEY = 7  # all evaluations meet the same questions


def recipe_of(game: AgentProgram, players: tuple[str, ...], temperature: float, **settings: Any) -> Recipe:
    """A recipe with these players in the seats of a program."""
    return Recipe(
        game,
        seats=(players,),
        advantage=estimator(advantages.rloo, per_agent=True),
        hparams={"learning_rate": 3e-4, "entropy": 0.0},
        lora=Lora(4, 8.0, ("*",)),
        sampling=Sampling(temperature=temperature),
        budget=BUDGET,
        groups=8,
        group_size=4,
        grad_accumulation=8,
        **settings,
    )


def evaluate(trainer: Trainer, state: Any, game: Any, count: int) -> dict[str, list[Any]]:
    """{arm: talks}: one about each of so many questions, which are the same in all calls."""
    recipe, talks = trainer.recipe, game.play.talks
    rollout = AgentRollout(game, trainer.policy_sets, Lineup(recipe.seats * count, 1), BUDGET)
    talks.clear()
    rollout(trainer.weights(state, 0), jax.random.key(QUESTIONS_KEY))
    arms = dict.fromkeys(arm for _, arm in talks)
    return {arm: [talk for (_, name), talk in sorted(talks.items()) if name == arm] for arm in arms}


def rate(talks: Sequence[Any], field: str) -> str:
    """A share with its interval over questions (Wilson)."""
    count = sum(getattr(talk, field) for talk in talks)
    share, low, high = wilson_interval(count, len(talks))
    return f"{count} of {len(talks)}" + f" ({share:.2f} [{low:.2f}, {high:.2f}])" * bool(talks)


def describe(arm: str, talks: Sequence[Any]) -> str:
    """Three rates: calls or right notes, right answers, and right answers after them."""
    first = "right notes" if arm.startswith("team") else "calls"
    asked, right = rate(talks, "asked"), rate(talks, "right")
    after = rate([talk for talk in talks if talk.asked], "right")
    return f"{arm:12} {first} {asked}, right {right}, after {first} {after}"


def difference(later: Sequence[Any], earlier: Sequence[Any], field: str) -> str:
    """The mean of paired differences over questions, with the interval of sign flips."""
    new, old = ([float(getattr(talk, field)) for talk in talks] for talks in (later, earlier))
    mean, low, high = sign_flip_interval(new, old)
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def transcript(talks: Sequence[Any], **wanted: bool) -> str:
    """The first talk that is as wanted, or nothing."""
    for talk in talks:
        if all(getattr(talk, name) == value for name, value in wanted.items()):
            return "\n".join(f"    {message['role']:10}{message['content']!r}" for message in talk.messages)
    return "    none"


def ask_calculator(questions: str, count: int, temperature: float) -> None:
    """Prints the rates of all arms, and a right and a wrong talk with the calculator."""
    game = CALCULATORS[questions]
    recipe = recipe_of(game, ("learner",) * game.agents, temperature)
    trainer = Trainer(recipe, [recipe.all_hparams], [0], "smollm2")
    talks = evaluate(trainer, trainer.init(), game, count)
    for arm in game.seats:
        print(describe(arm, talks[arm]))
    print("four minus alone", difference(talks["four"], talks["alone"], "right"))
    for wanted in ({"asked": True, "right": True}, {"right": False}):
        print(wanted, transcript(talks["four"], **wanted), sep="\n")


def train_team(updates: int, count: int, temperature: float, seed: int) -> None:
    """Prints the rates of planner and answerer before training, during and after it."""
    game, held_out = TEAMS["trained"], TEAMS["held out"]
    recipe = recipe_of(game, game.seats, temperature, updates=max(updates, 1))
    trainer = Trainer(recipe, [recipe.all_hparams], [seed], "smollm2")
    state = trainer.init()
    before = evaluate(trainer, state, held_out, count)["team"]
    print(describe("team before", before), flush=True)
    for wanted in ({"asked": True, "right": True}, {"asked": False}, {"asked": True, "right": False}):
        print(wanted, transcript(before, **wanted), sep="\n")
    for number in range(updates):
        start = time.perf_counter()
        state, metrics = trainer.update(state, number)
        paid = float(np.mean(metrics["return"]))
        print(f"update {number}: mean reward of a seat {paid:.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    if updates:
        after = evaluate(trainer, state, held_out, count)["team"]
        print(describe("team after", after))
        print("right notes", difference(after, before, "asked"), "right answers", difference(after, before, "right"))
        print(transcript(after, asked=True, right=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("program", choices=("calculator", "planned"))
    parser.add_argument("--questions", choices=tuple(CALCULATORS), default="products", help="of the calculator")
    parser.add_argument("--count", type=int, default=64, help="questions of an evaluation")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--updates", type=int, default=0, help="of the planned team")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start = time.perf_counter()
    if given.program == "calculator":
        ask_calculator(given.questions, given.count, given.temperature)
    else:
        train_team(given.updates, given.count, given.temperature, given.seed)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
