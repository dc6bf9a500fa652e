"""Dialogues of agent programs and questions as records: their messages keep the roles that the program gave them."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.wrappers import Formatted
from jaxmarl_llm.environments.bridges.agent_programs import AgentProgram
from jaxmarl_llm.environments.bridges.prompts import Prompts, letters
from jaxmarl_llm.environments.bridges.python_games import PythonGame
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.environments.judged.graded import Graded
from jaxmarl_llm.environments.judged.replies import Replies
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.environments.solo.wordle import Wordle
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import records, rows

ABOUT = {"study": "program", "arm": "run", "seed": 0, "update": 0}
SHOT = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]


async def play(episode):
    """The writer holds a dialogue with an example and a tool, and a second one after the reader has spoken."""
    asked = [*SHOT, {"role": "user", "content": "a"}]
    said = await episode.say("writer", asked)
    await episode.say("reader", "bc")
    again = [*asked, {"role": "assistant", "content": said}, {"role": "user", "content": "cb"}]
    await episode.say("writer", again)
    await episode.say("writer", "cc", max_tokens=1)
    return {"writer": [0.0, 1.0, 2.0], "reader": 3.0}


RECIPE = Recipe(
    AgentProgram(play, seats=("writer", "reader"), turns=4),
    seats=(("me", "me"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    tokenizer=lambda game: SymbolTokenizer([*"abc?"], ends=True),
    budget=3,
    groups=2,
    group_size=4,
)


def games_of(recipe: Recipe) -> list[dict]:
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    return records.recorder(trainer)(trainer.init(), {0: ABOUT}, 8)[0]


def test_an_answer_is_cut_only_if_it_had_room_to_end():
    layout = SimpleNamespace(tables=None, policy_set=SimpleNamespace(tokenizer=SymbolTokenizer([*"ab?"], ends=True)))
    cut = lambda said, left: rows.cut_at(layout, np.array(said), {0: 0}, left, np.ones(1, bool))
    assert cut([0, 1], 3) == 3 and cut([0], 3) == 0
    assert cut([0], 2) == 0  # "[rock]" in one token, with the end as the only one that can follow


def test_a_game_that_was_cut_off_says_so():
    flags = {name: np.ones((2, 1, 1), bool) for name in ("acted", "valid")} | {"legal": np.ones((2, 1, 1, 1), bool)}
    numbers = {name: np.zeros((2, 1, 1), int) for name in ("action", "role", "told")}
    over, group = np.array([True, False]), np.zeros(2, int)
    episodes = Episodes(
        reward=np.zeros((2, 1, 1, 1)), **flags, **numbers, group=group, game=group, terminated=over, truncated=~over
    )
    examined = SimpleNamespace(trajectory=SimpleNamespace(episodes=episodes), start=())
    rollout = SimpleNamespace(lineup=SimpleNamespace(group_size=2, seats=(("me",),)), row_of={})
    whole, cut = (records.game_of(PythonGame(print, 1), rollout, examined, i, ABOUT, {}) for i in range(2))
    assert "cut_off" not in whole and cut["cut_off"] is True


@pytest.mark.long
def test_messages_of_a_program_keep_their_roles_and_dialogues():
    cuts = set()
    for game in games_of(RECIPE):
        writer, reader = game["seats"]
        assert (writer["role"], reader["role"]) == ("writer", "reader")
        heard = [(m["role"], m["content"]) for i, m in enumerate(writer["messages"])
                 if i not in {answer["message"] for answer in writer["answers"]}]  # fmt: skip
        assert heard == [("user", "b"), ("assistant", "c"), ("user", "a"), ("user", "cb"), ("user", "cc")]
        assert writer["dialogues"] == [0, 6] and "dialogues" not in reader
        assert [answer["turn"] for answer in writer["answers"]] == [0, 2, 3]
        assert [answer["reward"] for answer in writer["answers"]] == [0.0, 1.0, 2.0]
        assert reader["messages"][0] == {"role": "user", "content": "bc"}
        for seat in game["seats"]:
            for answer in seat["answers"]:
                assert "<end>" not in seat["messages"][answer["message"]]["content"]
                ended = answer["tokens"][-1].get("end", False)
                cut = not ended and len(answer["tokens"]) == 2
                assert cut == ("cut" in answer) and all("logp" in token for token in answer["tokens"])
                cuts.add(answer.get("cut"))
    assert cuts == {None, 3}, "the budget; the one token that a call asked for may be whole"


@pytest.mark.long
def test_a_question_is_the_users_and_its_fields_are_the_note():
    data = [{"prompt": f"{x}?", "answer": x, "level": 1} for x in "abc"]
    game = Prompts(
        data, reward=lambda completions, answer: [float(x == y) for x, y in zip(completions, answer, strict=True)]
    )
    recipe = replace(RECIPE, game=game, seats=(("me",),), tokenizer=letters)
    for record in games_of(recipe):
        (seat,) = record["seats"]
        assert [message["role"] for message in seat["messages"]] == ["user", "assistant"] and "role" not in seat
        assert record["note"] == f"answer: {seat['messages'][0]['content'][0]}; level: 1"


@pytest.mark.parametrize(
    ("game", "deal", "right"),
    [
        (Quiz(), 3, "D"),
        (Wordle(), 2, Wordle().words[2]),
        (Graded(), 5, None),
        (Replies(), 5, None),
        (Formatted(Quiz()), 4, "E"),
    ],
)
def test_the_right_answer_is_that_of_the_deal(game, deal, right):
    states, _ = getattr(game, "game", game).initial_states()
    state = jax.tree.map(lambda x: x[deal], states)
    if right is None:
        task = state.asked.task if isinstance(game, Replies) else state.task
        right = game.tasks.answers[int(game.tasks.task(task)[1])]
    assert Extras(game).right_answer(state) == right
    assert Extras(MatrixGame()).right_answer is None


def test_a_matrix_game_names_its_moves_and_labels():
    game = Formatted(MatrixGame(), "tag")
    assert Extras(game).moves == ("cooperate", "defect")
    notes = [Extras(game).note(game.reset(jax.random.key(0), jnp.int32(group))[0]) for group in range(2)]
    assert notes == ["A means cooperate, B means defect.", "B means cooperate, A means defect."]
