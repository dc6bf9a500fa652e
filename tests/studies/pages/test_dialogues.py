"""Dialogues and preference pairs of a run's games, as the lines that other trainers read."""

import json

import pytest
from rich.console import Console

from jaxmarl_llm.studies.pages.dialogues import Options, run
from jaxmarl_llm.view import page

SYSTEM, HEARD = {"role": "system", "content": "Rules."}, {"role": "user", "content": "Choose."}


def seat(policy, reward, *said):
    messages = [SYSTEM]
    for word in said:
        messages += [HEARD, {"role": "assistant", "content": word}]
    return {"policy": policy, "reward": reward, "messages": [*messages, {"role": "user", "content": "Over."}]}


def game(update, group, member, *seats):
    return {"study": "s", "arm": "a", "seed": 0, "update": update, "group": group, "member": member, "seats": seats}


SCRIPT = {"policy": "random", "reward": 9.0, "messages": []}
GAMES = [
    game(0, 0, 0, seat("x", 9.0, "early"), SCRIPT),
    game(5, 0, 0, seat("x", 1.0, "A", "<|im_end|> B"), SCRIPT),
    game(5, 0, 1, seat("x", 3.0, "B", "B"), SCRIPT),
    game(5, 0, 2, seat("x", 2.0, "A", "B"), SCRIPT),
    game(5, 1, 0, seat("x", 2.0, "A"), SCRIPT),
    game(5, 1, 1, seat("x", 2.0, "B"), SCRIPT),
]


@pytest.fixture
def written(tmp_path):
    (tmp_path / "run" / "a").mkdir(parents=True)
    (tmp_path / "run" / "a" / page.GAMES).write_bytes(page.lines_of(GAMES))

    def lines(**options):
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        run(Options((tmp_path / "run",), tmp_path / "out.jsonl", **options), Console(quiet=True))
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]

    return lines


def test_dialogues_end_with_an_answer_and_have_the_reward_that_is_asked_for(written):
    lines = written()
    assert [line["reward"] for line in lines] == [1, 3, 2, 2, 2]
    assert lines[1]["messages"] == [SYSTEM, *[HEARD, {"role": "assistant", "content": "B"}] * 2]
    assert lines[1]["member"] == 1 and lines[1]["seat"] == 0 and lines[1]["policy"] == "x"
    assert [line["reward"] for line in written(least=2.5)] == [3]
    assert len(written(before=True)) == 6


def test_pairs_are_the_best_and_the_worst_of_a_group(written):
    (pair,) = written(pairs=True)
    assert pair["prompt"] == [SYSTEM, HEARD]
    assert [message["content"] for message in pair["chosen"]] == ["B", "Choose.", "B"]
    assert [message["content"] for message in pair["rejected"]] == ["A", "Choose.", "<|im_end|> B"]


def test_two_runs_are_not_paired_with_each_other_and_one_counts_once(written, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / page.GAMES).write_bytes(page.lines_of(GAMES))
    both = (tmp_path / "run", tmp_path / "other", tmp_path / "run")
    run(Options(both, tmp_path / "out.jsonl", pairs=True), Console(quiet=True))
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


def test_what_has_no_dialogues_is_one_sentence(written, tmp_path):
    with pytest.raises(ValueError, match="None of 5 games"):
        written(least=50.0)
    with pytest.raises(ValueError, match="is a file already, which --out would overwrite"):
        run(Options((tmp_path / "run",), tmp_path / "run" / "a" / page.GAMES), Console(quiet=True))
    with pytest.raises(ValueError, match="at least one run"):
        run(Options((), tmp_path / "out.jsonl"), Console(quiet=True))
    with pytest.raises(ValueError, match=r"holds no games\.jsonl"):
        run(Options((tmp_path / "nothing",), tmp_path / "out.jsonl"), Console(quiet=True))
