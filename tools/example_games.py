"""The games of the example page of the docs: two tiny policies learn the prisoner's dilemma, against themselves and
tit-for-tat. It takes a minute.

python tools/example_games.py
"""

from pathlib import Path

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import page, records

EXAMPLE = Path(__file__).parents[1] / "docs/_static/example"
UPDATES = 60
SEATS = (("learner", "learner"), ("learner", "tit_for_tat"))


def main() -> None:
    recipe = Recipe(
        MatrixGame(rounds=4),
        seats=tuple(line_up for line_up in SEATS for _ in range(2)),  # each with either labels
        advantage=estimator(advantages.rloo, per_agent=True),
        hparams={"learning_rate": 3e-2},
        budget=2,
        groups=4,
        group_size=8,
    )
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    state = trainer.init()
    record = records.recorder(trainer)
    games = []
    for update in range(UPDATES + 1):
        if update in (0, UPDATES):
            about = {"study": "prisoners_dilemma", "arm": "rloo", "seed": 0, "update": update}
            (shown,) = record(state, {0: about}, recipe.groups * recipe.group_size)
            games += [game for game in shown if game["member"] < 3]
        if update < UPDATES:
            state, _ = trainer.update(state, update)
    EXAMPLE.mkdir(exist_ok=True)
    (EXAMPLE / page.GAMES).write_bytes(page.lines_of(games))


if __name__ == "__main__":
    main()
