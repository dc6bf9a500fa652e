"""Chat templates: found beside a tokenizer, rendered with a bound on time and length."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from tokenizers import models

from jaxmarl_llm.text.refusals import read_json, shown

# Llama 3.2's template asks for today's date, so that rows would change from day to day. This is its own default.
OPTIONS = {"date_string": "26 Jul 2024"}

# Gemma 3's chat format for plain texts, for the packaged base model, whose file has no template.
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% set rules = messages[0]['content'] + '\n\n' if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages if m['role'] != 'system' %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else 'user') + '\n' }}"
    "{{ (rules if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


MOST_TEMPLATE = 1 << 20  # characters
MOST_SECONDS, MOST_TEXT = 2.0, 1 << 20  # of a template's work


def chat_template(directory: Path, template: str | None) -> Any:
    """transformers' renderer of a directory's chat template, without its vocabulary (seconds for 262,144 tokens).

    Raises ValueError if neither the directory nor `template` has one.
    """
    from transformers import PreTrainedTokenizerFast  # a second to import, and only this needs it

    about: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).exists():
            about |= read_json(directory / name)
    beside = directory / "chat_template.jinja"
    if template is None and beside.is_file() and beside.stat().st_size <= MOST_TEMPLATE:
        template = beside.read_text(encoding="utf-8", errors="replace")
    if template is None:
        template = about.get("chat_template")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = entries[0].get("template") if entries else None
    if not template or not isinstance(template, str) or len(template) > MOST_TEMPLATE:
        raise ValueError(f"The tokenizer in {directory} has no chat template, so it cannot hold a dialogue: give one.")
    named = {key: value for key, value in about.items() if key.endswith("_token")}
    named = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    named = {key: value for key, value in named.items() if isinstance(value, str)}
    empty = tokenizers.Tokenizer(models.BPE())
    return PreTrainedTokenizerFast(tokenizer_object=empty, chat_template=template, **named)


def rendered(template: Any, chat: list[dict[str, str]], answer: bool, options: dict[str, Any]) -> str:
    """The text of a dialogue, up to where an `answer` begins if one is due. Raises whatever the template raises, and
    TemplateError if it takes more than MOST_SECONDS or writes more than MOST_TEXT characters."""
    with bounded(MOST_SECONDS):
        text = str(template.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer, **options))
    if len(text) > MOST_TEXT:
        raise TemplateError(f"it writes {len(text)} characters")
    return text


def strips(render: Callable[[str, list[str]], str], rules: str, heard: str) -> bool:
    """Whether a template strips spaces around the rules or around a message, or takes no such text."""
    try:
        text = render(f" {rules}\n", [f" {heard}\n"])
    except Exception:  # a template is a program
        return True
    return f" {rules}\n" not in text or f" {heard}\n" not in text


def check_edges(trims: bool, rules: Sequence[Sequence[str]], heard: Sequence[Sequence[str]]) -> None:
    """Raises ValueError where a template that strips texts would change a game's: spaces at the start or the end of the
    rules, or at the end of what is heard. Both are fields, each a list of phrases.

    A phrase that begins with a space may follow another one; its space stays, also where none was told before it.
    """
    if not trims:
        return
    rules, heard = ([field for field in fields if any(field)] for fields in (rules, heard))
    ends = [
        (phrase, "end")
        for fields in (rules, heard)
        for phrase in (fields[-1] if fields else ())
        if phrase != phrase.rstrip()
    ]
    ends += [(phrase, "begin") for phrase in (rules[0] if rules else ()) if phrase != phrase.lstrip()]
    if ends:
        phrase, place = ends[0]
        raise ValueError(
            "The chat template strips spaces around a text, and a text of the game would "
            f"{place} with some: {shown(phrase)}."
        )


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raises TemplateError in the block once it has run so long: it counts lines of Python, as templates are run."""
    end, before = time.monotonic() + seconds, sys.gettrace()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TemplateError(f"it takes more than {seconds:g} seconds")
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
