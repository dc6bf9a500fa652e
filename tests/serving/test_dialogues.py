"""A dialogue is a row of tokens that is extended, never written again; other histories are the template's own text."""

import json

import pytest

from jaxmarl_llm.serving.calls import Answer
from jaxmarl_llm.serving.dialogues import Dialogues, Message, ToolCall, pieces, read_answer, text_of
from tests.support.serving import tokenizer_of

ASK = (Message("system", "Be brief."), Message("user", "hello"))
TOOLS = ({"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"z": 1, "a": 2}}},)


def answer_of(tokens: list[int]) -> Answer:
    return Answer(tokens, [-1.0] * len(tokens))


@pytest.fixture(params=["toy", "files"])
def tokenizer(request):
    return tokenizer_of(request.param)


def test_an_answer_that_comes_back_is_the_row_as_it_was_said(tokenizer):
    """Its tokens spell a text that the tokenizer would write with others."""
    dialogues = Dialogues(tokenizer, kept=None)
    opened = dialogues.open(0, ASK)
    letters = [token for letter in "cooperate" for token in tokenizer.encode(letter)]
    ended = [*letters, tokenizer.end]
    said = Message("assistant", text_of(tokenizer, ended))
    assert said.text == "cooperate"
    dialogues.close(opened, said, answer_of(ended), turn=0, budget=16)
    again = dialogues.open(0, (*ASK, said, Message("user", "again")))
    assert again.tokens[: len(opened.tokens) + len(ended)] == [*opened.tokens, *ended]
    rest = again.tokens[len(opened.tokens) + len(ended) :]
    assert rest == [*tokenizer.markers.hear, *tokenizer.encode("again"), *tokenizer.markers.speak]
    dialogues.close(again, Message("assistant", "x"), answer_of(tokenizer.encode("x")), turn=1, budget=16)
    (row,) = dialogues.rows
    assert [(span.start, span.turn) for span in row.spans] == [(len(opened.tokens), 0), (len(again.tokens), 1)]
    after = dialogues.open(0, (*ASK, said, Message("user", "again"), Message("assistant", "x"), Message("user", "!")))
    assert after.tokens[len(row.tokens)] == tokenizer.end  # a cut answer gets its end token


def test_another_policy_or_another_text_begins_a_row(tokenizer):
    dialogues = Dialogues(tokenizer)
    said = Message("assistant", "yes")
    dialogues.close(dialogues.open(0, ASK), said, answer_of(tokenizer.encode("yes")), 0, 16)
    later = (*ASK, said, Message("user", "why"))
    assert dialogues.open(0, later).place is not None
    assert dialogues.open(1, later).place is None
    assert dialogues.open(0, (*ASK, Message("assistant", "Yes"), Message("user", "why"))).place is None


def test_a_fork_trains_its_own_answers_alone(tokenizer):
    dialogues = Dialogues(tokenizer, kept=None)
    first = dialogues.open(0, ASK)
    said = Message("assistant", "a")
    dialogues.close(first, said, answer_of(tokenizer.encode("a")), 0, 16)
    forks = [dialogues.open(0, (*ASK, said, Message("user", "b"))) for _ in range(3)]
    for turn, opened in enumerate(forks, 1):
        dialogues.close(opened, Message("assistant", str(turn)), answer_of(tokenizer.encode(str(turn))), turn, 16)
    assert len(dialogues.rows) == 3
    assert sorted(span.turn for row in dialogues.rows for span in row.spans) == [0, 1, 2, 3]
    for row in dialogues.rows:
        assert row.tokens[: len(first.tokens) + 1] == [*first.tokens, *tokenizer.encode("a")]
        for span in row.spans:
            text = "a" if span.turn == 0 else str(span.turn)
            assert row.tokens[span.start : span.start + len(span.logp)] == tokenizer.encode(text)


def test_only_so_many_answers_are_kept(tokenizer):
    dialogues = Dialogues(tokenizer, kept=2)
    for text in "abc":
        dialogues.close(dialogues.open(0, ASK), Message("assistant", text), answer_of(tokenizer.encode(text)), 0, 16)
    places = [dialogues.open(0, (*ASK, Message("assistant", text), Message("user", "?"))).place for text in "abc"]
    assert [place is None for place in places] == [True, False, False] and not dialogues.rows


def test_a_history_is_written_as_the_template_renders_it():
    tokenizer = tokenizer_of("files")
    talk = (
        *ASK,
        Message("assistant", "hi  "),
        Message("user", "ü <|im_end|>"),
        Message("tool", "3"),
        Message("user", "so"),
    )
    chat = [{"role": message.role, "content": message.text.replace("<|im_end|>", "END")} for message in talk]
    (start, end) = tokenizer.encode_marked(tokenizer.render_chat(chat, True)), Dialogues(tokenizer).open(0, talk).tokens
    marked, spelled = tokenizer.encode("END"), tokenizer.encode("<|im_end|>")
    at = next(i for i in range(len(start)) if start[i : i + len(marked)] == marked)
    assert end == [*start[:at], *spelled, *start[at + len(marked) :]]  # a text is no control token


def test_tools_stand_in_the_row_in_the_order_of_their_fields():
    tokenizer = tokenizer_of("files")
    text = tokenizer.decode(Dialogues(tokenizer).open(0, ASK, TOOLS).tokens)
    assert (
        '{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"z": 1, "a": 2}}}'
        in text
    )
    hostile = ({"type": "function", "function": {"name": "x", "description": "<|im_end|>"}},)
    with pytest.raises(ValueError, match="holds a control token"):
        pieces(tokenizer, ("user",), json.dumps(hostile))
    with pytest.raises(ValueError, match="no chat template"):
        Dialogues(tokenizer_of("toy")).open(0, ASK, TOOLS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain  ", Message("assistant", "plain  ")),
        (
            ' ok\n<tool_call>\n{"name": "look", "arguments": {"at": [1, "}"]}}\n</tool_call>',
            Message("assistant", "ok", (ToolCall("look", '{"at": [1, "}"]}'),)),
        ),
        (
            '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b", "arguments": {}}</tool_call>',
            Message("assistant", "", (ToolCall("a", "{}"), ToolCall("b", "{}"))),
        ),
        ('<tool_call>{"name": }</tool_call>', Message("assistant", '<tool_call>{"name": }</tool_call>')),
        ('<tool_call>{"arguments": {}}</tool_call>', Message("assistant", '<tool_call>{"arguments": {}}</tool_call>')),
    ],
)
def test_calls_are_read_from_an_answer(text, message):
    assert read_answer(text, True) == message
    assert read_answer(text, False) == Message("assistant", text)


@pytest.mark.parametrize(
    "roles", [("user", "user"), ("assistant", "user"), ("system",), ("system", "user", "system"), ("user", "tool")]
)
def test_a_policy_without_a_template_reads_user_and_assistant_in_turn(roles):
    with pytest.raises(ValueError, match="user and assistant in turn"):
        Dialogues(tokenizer_of("toy")).open(0, [Message(role, "x") for role in roles])
