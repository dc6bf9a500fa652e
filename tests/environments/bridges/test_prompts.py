"""Questions from files: what is read, what is held out, and a sentence for everything that is none."""

import json

import numpy as np
import pytest

from jaxmarl_llm.environments.bridges import prompts
from jaxmarl_llm.environments.bridges.prompt_rewards import Exact
from jaxmarl_llm.environments.bridges.prompts import Prompts, letters, read_questions, split
from jaxmarl_llm.environments.bridges.python_games import PythonGame

RECORDS = [{"prompt": f"Say {number}.", "answer": number} for number in range(10)]


def written(path, records) -> str:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def test_prompts_are_texts_or_messages_and_further_fields_are_kept(tmp_path):
    dialogue = (("user", "1 + 1?"), ("assistant", "2"), ("user", "é"))
    chat = [{"role": role, "content": text} for role, text in dialogue]
    strict = [{"role": "system", "content": "Be strict."}, {"role": "user", "content": "Hi"}]
    records = [{"prompt": "Hello", "answer": 3}, {"prompt": chat}, {"messages": strict, "level": [1, None]}]
    file = tmp_path / "questions.jsonl"
    written(file, records)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n\r\n"))  # as Windows writes it
    for data in (file, str(file), records):
        first, second, third = read_questions(data, "Be kind.")
        assert first.messages == (("system", "Be kind."), ("user", "Hello")) and first.fields == {"answer": 3}
        assert second.messages[1:] == dialogue
        assert third.messages == (("system", "Be strict."), ("user", "Hi"))  # a question's own message counts
        assert third.fields == {"level": [1, None]} and third.prompt == strict
    assert "line 5" in read_questions(file)[2].place


WRONG = [
    ("", "holds no questions"),
    ("\n \n", "holds no questions"),
    ('{"prompt": "a"}\n{"prompt": \n', r"questions.jsonl, line 2, is no JSON: Expecting value"),
    ("[" * 100_000, "line 1, is no JSON"),
    ('[\n{"prompt": "a"}\n]', r"line 1, is no JSON: .*\. The file holds one JSON object a line\.$"),
    ("prompt,answer\na,1\n", r"line 1, is no JSON: .*\. The file holds one JSON object a line\.$"),
    ("3", r"line 1, is no question: it is an object with a prompt"),
    (
        '{"question": "a", "answer": 1}',
        "line 1, needs a prompt, which is a text, or messages; it has only question, answer",
    ),
    ('{"prompt": "a", "messages": []}', "it has both"),
    ('{"prompt": "  "}', "line 1, has an empty prompt"),
    ('{"prompt": 3}', r"line 1, has a prompt that is no text: write \[{"),
    ('{"messages": "a"}', "has a messages that is no list"),
    ('{"messages": []}', "has a messages that is no list"),
    ('{"messages": [{"role": "user"}]}', "a message that is no role of system, user, assistant with a text"),
    ('{"messages": [{"role": "tool", "content": "a"}]}', "a message that is no role of system, user, assistant"),
    ('{"messages": [{"role": "assistant", "content": "a"}]}', "ends with a message of assistant"),
    ('{"prompt": "a", "completions": 1}', "has a field 'completions', a name that rewards use"),
]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_a_line_that_is_no_question_is_named(tmp_path, text, says):
    file = tmp_path / "questions.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=says):
        Prompts(file, Exact())


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"There is no file .*nowhere.jsonl\.$"):
        Prompts(tmp_path / "nowhere.jsonl", Exact())
    with pytest.raises(ValueError, match="cannot be read"):
        Prompts(tmp_path, Exact())
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    (tmp_path / "wide").write_text('{"prompt": "a"}', encoding="utf-16")
    for name in ("latin", "wide"):
        with pytest.raises(ValueError, match=f"{name} is no UTF-8 text: save it as UTF-8.$"):
            Prompts(tmp_path / name, Exact())
    with pytest.raises(ValueError, match="a file of JSON lines or a list of records, got 3"):
        Prompts(3, Exact())


def test_a_share_is_held_out_by_its_seed_alone():
    twice = [*RECORDS, *RECORDS[:5]]  # five prompts stand there twice
    halves = [split(read_questions(twice), 0.3, seed) for seed in (0, 0, 1)]
    assert halves[0] == halves[1] != halves[2]
    for training, testing in halves:
        assert sorted(q.place for q in training + testing) == sorted(q.place for q in read_questions(twice))
        prompts_of = [{q.messages for q in side} for side in (training, testing)]
        assert len(prompts_of[1]) == 3 and not prompts_of[0] & prompts_of[1]
    sizes = [len(split(read_questions(RECORDS), share, 0)[1]) for share in (0.01, 0.26, 0.99)]
    assert sizes == [1, 3, 9]
    drawn = [{q.place for q in split(read_questions(RECORDS), 0.5, seed)[1]} for seed in range(200)]
    share = np.mean([[q.place in out for q in read_questions(RECORDS)] for out in drawn], 0)
    assert (abs(share - 0.5) < 0.15).all()  # 4 standard errors


def test_held_out_questions_may_stand_in_a_file_of_their_own(tmp_path):
    further = [{"prompt": "Say 10.", "answer": 10}]
    game = Prompts(RECORDS, Exact(), held_out=written(tmp_path / "held.jsonl", further))
    assert (len(game.training), [q.prompt for q in game.testing]) == (10, ["Say 10."])
    with pytest.raises(ValueError, match=r"held\.jsonl, line 1, is held out, and trained as well: it is Question 3"):
        Prompts(RECORDS, Exact(), held_out=written(tmp_path / "held.jsonl", RECORDS[3:4]))


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, float("nan"), True])
def test_a_share_lies_between_0_and_1(share):
    with pytest.raises(ValueError, match="held_out is a share of the questions between 0 and 1, or a file"):
        Prompts(RECORDS, Exact(), held_out=share)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reward": {}}, "reward is a function, or several by name"),
        ({"reward": {3: Exact()}}, "reward is a function, or several by name"),
        ({"reward": "exact"}, "The reward 'reward' is a function of completions, or an object such as Exact"),
        ({"answers": 0}, "answers is a whole number from 1 on, got 0"),
        ({"slots": 1.5}, "slots is a whole number from 1 on, got 1.5"),
        ({"data": RECORDS[:1] * 2, "held_out": 0.5}, "All questions are the same"),
    ],
)
def test_options_that_cannot_work_are_said(options, says):
    with pytest.raises(ValueError, match=says):
        Prompts(**{"data": RECORDS, "reward": Exact(), **options})


def test_another_question_field_or_split_has_another_digest():
    games = [
        Prompts(RECORDS, Exact()),
        Prompts(RECORDS, Exact(), held_out=0.2),
        Prompts(RECORDS, Exact(), held_out=0.2, seed=1),
        Prompts([*RECORDS[:9], {"prompt": "Say 9.", "answer": 8}], Exact()),
        Prompts(RECORDS[::-1], Exact()),
        Prompts(RECORDS, Exact(), system="Speak."),
    ]
    assert len({game.questions for game in games}) == len(games)
    assert Prompts(RECORDS, Exact(), held_out=0.2).questions == games[1].questions


def test_rewards_get_every_field_as_a_list():
    game = Prompts([*RECORDS[:2], {"prompt": "Hi", "level": 2}], {"a": Exact(), "b": Exact()}, held_out=0.4)
    assert game.components == ("a", "b") and game.agents == 1
    questions = sorted((*game.training, *game.testing), key=lambda question: question.place)
    given = game.arguments(questions, ["x", "y", "z"])
    assert given == {
        "completions": ["x", "y", "z"],
        "prompts": ["Say 0.", "Say 1.", "Hi"],
        "answer": [0, 1, None],
        "level": [None, None, 2],
    }
    assert set(given) == {*game.names}
    assert Prompts(RECORDS, Exact()).components == ("reward",)


def test_letters_of_a_game_without_questions_names_another_tokenizer():
    with pytest.raises(
        ValueError, match=r"a PythonGame has none: .*SymbolTokenizer\(\[\*string.printable\], ends=True\)"
    ):
        letters(PythonGame(print, turns=1))


def test_letters_spell_every_question_and_field():
    game = Prompts([{"prompt": "añ"}, {"prompt": "b", "answer": "xy"}], Exact(), system="S", held_out=0.5)
    tokenizer = letters(game)
    assert set(tokenizer.strings) == {*"Sabñxy?"} and tokenizer.end == 7
    assert prompts.read_questions([{"prompt": "a"}])[0].fields == {}
