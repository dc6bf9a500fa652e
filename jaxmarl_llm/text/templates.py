"""Chat templates of tokenizers: read from a model directory, rendered with limits on time, length and memory."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from jinja2 import TemplateError
from tokenizers import models

from jaxmarl_llm.text.refusals import quote, read_json

# Templates ask for today's date (Llama 3.2, SmolLM 3): rows would change from day to day. This is Llama 3.2's default.
MOMENT, CHANCE = datetime(2024, 7, 26), 0
PINNED = {"time": MOMENT.isoformat(), "random_seed": CHANCE}  # the only time and randomness that a template sees
OPTIONS = {"date_string": MOMENT.strftime("%d %b %Y")}
DIRECTIVES = [flag + letter for flag in ("", "-") for letter in "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyYzZ"] + ["f"]
# A macro hides transformers' function. It stands on a line before the template, so that the template keeps its lines.
CLOCK = (
    "{% macro strftime_now(format) %}{% set now = namespace(text=format) %}{% for name, text in "
    f"{[('%%', chr(0)), *((f'%{name}', MOMENT.strftime(f'%{name}')) for name in DIRECTIVES), (chr(0), '%')]}"
    " %}{% set now.text = now.text.replace(name, text) %}{% endfor %}{{ now.text }}{% endmacro %}\n"
)

# Gemma 3's chat format for plain texts, for the packaged base model, whose file has no template.
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% set rules = messages[0]['content'] + '\n\n' if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages if m['role'] != 'system' %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else 'user') + '\n' }}"
    "{{ (rules if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


MOST_TEMPLATE = 1 << 20  # characters
MOST_SECONDS, MOST_TEXT, MOST_MEMORY = 2.0, 1 << 20, 1 << 31  # limits of a rendering; characters and bytes


class TooSlow(TemplateError):
    """A template takes too long; this says nothing about the texts and roles that it takes."""


def expires(seconds: float) -> Callable[[], bool]:
    """A function that is True once this thread computed for so many seconds.

    Other programs on the machine do not count. They once made a template of 16,000 characters, whose first rendering
    compiles it, pass a limit in seconds of a clock.
    """
    wall, computed = time.monotonic() + seconds, time.thread_time() + seconds
    return lambda: time.monotonic() > wall and time.thread_time() > computed  # the first is much cheaper to read


@contextlib.contextmanager
def _no_advice() -> Iterator[None]:
    """A context without transformers' advice that PyTorch is missing, which nothing here needs."""
    quiet = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    given = os.environ.get(quiet)
    os.environ[quiet] = "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ[quiet]
        else:
            os.environ[quiet] = given


def chat_template(directory: Path, template: str | None) -> Any:
    """A tokenizer of transformers that renders a directory's chat template, or `template` in its place.

    It has no vocabulary, which would take seconds to load (262,144 tokens). The template reads MOMENT as the time.
    Raises ValueError if there is no template.
    """
    with _no_advice():
        from transformers import PreTrainedTokenizerFast  # takes a second to import, and only this function needs it

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
    return PreTrainedTokenizerFast(tokenizer_object=empty, chat_template=CLOCK + template, **named)


def render_chat(template: Any, chat: list[dict[str, str]], answer: bool, options: dict[str, Any]) -> str:
    """The text of a dialogue; with `answer` it ends with the prompt for an answer. Random choices are always the same.

    Passes on the template's exceptions. Raises TooSlow after MOST_SECONDS of computing, and TemplateError for more than
    MOST_TEXT characters and for the address of an object in the text.
    """
    with time_limit(MOST_SECONDS), fixed_seed(CHANCE):
        text = str(template.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer, **options))
    if len(text) > MOST_TEXT:
        raise TemplateError(f"it writes {len(text)} characters")
    if address := re.search(r" at 0x[0-9a-f]+>", text):
        raise TemplateError(f"it writes an address in memory ({address[0][4:-1]}), another one in every process")
    return text


def cut_at(text: str, marks: Sequence[str]) -> list[str] | None:
    """The texts before, between and after the last places of these marks in their order; None if they do not occur."""
    pieces: list[str] = []
    for mark in reversed(marks):
        text, middle, piece = text.rpartition(mark)
        if not middle:
            return None
        pieces.insert(0, piece)
    return [text, *pieces]


def spaces_taken(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str]:
    """A pattern of added tokens that absorb the spaces beside them, such as Phi 3's, with these spaces. A token of
    spaces is not among them."""
    patterns = [
        r"(?:(?<!\s)\s++)?" * token.lstrip + re.escape(token.content) + r"\s*" * token.rstrip
        for token in tokenizer.get_added_tokens_decoder().values()
        if (token.lstrip or token.rstrip) and token.content == token.content.strip()
    ]
    return re.compile("|".join(patterns) or "(?!)")


class Trims(NamedTuple):
    """The spaces at the edges of texts that a chat template strips. *Heard* texts are the messages of the user."""

    rules: bool = False  # spaces at the start of the rules
    first: bool = False  # at the start of the first message
    later: bool = False  # at the start of later messages
    rules_end: bool = False
    heard_end: bool = False
    said: str | None = None  # the template's text before an answer, if answers are stripped at both ends; else None
    hear_nothing: tuple[int, ...] | None = None  # the tokens in place of `hear_first` before an empty first message
    needs_rules: bool = False  # without rules the template also drops other text
    odd: bool = False  # some kinds of spaces are stripped and others are not
    lead: str = ""  # the tokenizer's prefix of a text after a control token; it stands in place of stripped spaces

    @property
    def heard(self) -> bool:
        """True if the template strips any spaces of messages."""
        return self.first or self.later or self.heard_end or self.odd


BLANKS = (" ", "\n", "\t\u00a0\r\n ")


def trims(
    render: Callable[[str, list[str]], str],
    encode: Callable[[str], list[int]],
    texts: Sequence[str],
    pieces: Sequence[str],
) -> Trims:
    """The spaces that a template strips, by rendering `texts`: rules and three messages, with spaces at every edge.

    `pieces` are four texts of the template: before the rules, before the first message, between generation prompt and
    answer, and after a last message. Passes on the template's exceptions. Raises ValueError if empty messages are
    rendered in a way that rows cannot follow.
    """
    plain, late = render(texts[0], list(texts[1:])), expires(4 * MOST_SECONDS)
    before, hear_first, answer, asked = pieces

    def stripped(number: int, start: bool) -> bool | None:
        seen = set()
        for blank in BLANKS:
            spaced = list(texts)
            spaced[number] = blank + spaced[number] if start else spaced[number] + blank
            if late():
                raise TooSlow(f"it takes more than {4 * MOST_SECONDS:g} seconds for a few messages")
            try:
                text = render(spaced[0], spaced[1:])
            except TooSlow:
                raise
            except TemplateError:
                return None
            seen.add({plain: True, plain.replace(texts[number], spaced[number]): False}.get(text))
        return seen.pop() if len(seen) == 1 else None

    edges = {(number, start): stripped(number, start) for number in range(4) for start in (True, False)}
    heard = [edges[number, start] for number in (0, 1, 3) for start in (True, False)]
    nothing = render(texts[0], [""]).removeprefix(before + texts[0]).removesuffix(asked)
    again = render(texts[0], [*texts[1:3], ""])
    if nothing != hear_first.removesuffix(hear_first.removeprefix(nothing)) or again != plain.replace(texts[3], ""):
        raise ValueError("an empty message is shown otherwise than others")
    return Trims(
        rules=bool(edges[0, True]),
        first=bool(edges[1, True]),
        later=bool(edges[3, True]),
        rules_end=bool(edges[0, False]),
        heard_end=bool(edges[1, False] or edges[3, False]),
        said=answer if edges[2, True] and edges[2, False] else None,
        hear_nothing=None if nothing == hear_first else tuple(encode(nothing)),
        needs_rules=render("", [texts[1]]) != f"{before}{hear_first}{texts[1]}{asked}",
        odd=None in heard,
    )


def check_edges(trims: Trims, rules: Sequence[Sequence[str]], heard: Sequence[Sequence[str] | None]) -> None:
    """Raises ValueError for texts of a game that a template would strip in a way that rows do not follow.

    `rules` and `heard` hold the phrases of each field of an observation; None stands for free words. Rows drop stripped
    spaces at the start of a text. Stripped spaces at the end are refused, unless a later field always has text. Free
    words need such a field after them, and a field of phrases before them.
    """
    begins = "The chat template strips spaces around a text, and "
    for fields, end in ((rules, trims.rules_end or trims.hear_nothing is not None), (heard, trims.heard_end)):
        for number, field in enumerate(fields):
            follows = any(later and all(phrase.strip() for phrase in later) for later in fields[number + 1 :])
            announced = any(before and any(before) for before in fields[:number])
            for phrase in field or ():
                if trims.odd and phrase != phrase.lstrip():
                    raise ValueError(f"{begins}a text of the game would begin with some: {quote(phrase)}.")
                if (end or trims.odd) and phrase != phrase.rstrip() and not (follows and phrase.strip()):
                    raise ValueError(f"{begins}a text of the game would end with some: {quote(phrase)}.")
            if field is None and trims.heard and not (follows and announced):
                raise ValueError(
                    f"{begins}free words that are told (field {number} of the observation) may begin or end with some: "
                    "they need a field of phrases before them, and one without an empty phrase after them."
                )
    if trims.needs_rules and not any(phrase for field in rules for phrase in field):
        raise ValueError(f"{begins}without rules it would strip its own before what is heard: the game needs some.")


@contextlib.contextmanager
def fixed_seed(seed: int) -> Iterator[None]:
    """A context in which `random` starts from a seed: jinja's filter `random` and its `lipsum` draw from it."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """A context that raises TooSlow after so many seconds of computing, checked at every line of Python that runs.

    A single operation of a template can ask for a long text: on Linux the process may map at most MOST_MEMORY further
    bytes in the block.
    """
    late, before, pages = expires(seconds), sys.gettrace(), Path("/proc/self/statm")

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if late():
            raise TooSlow(f"it takes more than {seconds:g} seconds")
        return trace

    limits = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    if pages.exists():
        bounds.append(int(pages.read_text(encoding="utf-8").split()[0]) * resource.getpagesize() + MOST_MEMORY)
        resource.setrlimit(resource.RLIMIT_AS, (min(bounds), limits[1]))
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
