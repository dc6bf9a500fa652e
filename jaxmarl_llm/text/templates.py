"""Chat templates: found beside a tokenizer, rendered with a bound on time and length."""

from __future__ import annotations

import contextlib
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

from jaxmarl_llm.text.refusals import read_json, shown

# Templates ask for today's date (Llama 3.2, SmolLM 3): rows would change from day to day. This is Llama 3.2's default.
MOMENT, CHANCE = datetime(2024, 7, 26), 0
PINNED = {"time": MOMENT.isoformat(), "random_seed": CHANCE}  # all that a template learns of time and chance
OPTIONS = {"date_string": MOMENT.strftime("%d %b %Y")}
DIRECTIVES = [flag + letter for flag in ("", "-") for letter in "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyYzZ"] + ["f"]
# A macro hides the function of transformers. It stands in a line before the template, whose first line stays one.
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
MOST_SECONDS, MOST_TEXT, MOST_MEMORY = 2.0, 1 << 20, 1 << 31  # of a template's work


def chat_template(directory: Path, template: str | None) -> Any:
    """transformers' renderer of a directory's chat template, without its vocabulary (seconds for 262,144 tokens).

    The time that the template reads is MOMENT. Raises ValueError if neither the directory nor `template` has one.
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
    return PreTrainedTokenizerFast(tokenizer_object=empty, chat_template=CLOCK + template, **named)


def rendered(template: Any, chat: list[dict[str, str]], answer: bool, options: dict[str, Any]) -> str:
    """The text of a dialogue, up to where an `answer` begins if one is due; its random choices are always the same.

    Raises whatever the template raises, and TemplateError if it takes more than MOST_SECONDS, or writes more than
    MOST_TEXT characters or the address of an object.
    """
    with bounded(MOST_SECONDS), seeded(CHANCE):
        text = str(template.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer, **options))
    if len(text) > MOST_TEXT:
        raise TemplateError(f"it writes {len(text)} characters")
    if address := re.search(r" at 0x[0-9a-f]+>", text):
        raise TemplateError(f"it writes an address in memory ({address[0][4:-1]}), another one in every process")
    return text


def spaces_taken(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str]:
    """Control tokens with the spaces that they take to themselves (Phi 3's take those behind them)."""
    found = [
        r"\s*" * token.lstrip + re.escape(token.content) + r"\s*" * token.rstrip
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special and (token.lstrip or token.rstrip)
    ]
    return re.compile("|".join(found) or "(?!)")


class Trims(NamedTuple):
    """Which spaces around a text a template strips, or changes in another way."""

    rules: bool = False  # those that begin the rules
    first: bool = False  # those that begin what is heard first
    later: bool = False  # those that begin what is heard after an answer
    rules_end: bool = False
    heard_end: bool = False
    said: str | None = None  # what stands before an answer that is stripped at both ends; None: no answer is
    hear_nothing: tuple[int, ...] | None = None  # in place of `hear_first` where nothing is heard, if not the same
    needs_rules: bool = False  # empty rules take other text with them
    odd: bool = False  # some spaces are stripped and others are not
    lead: str = ""  # what a tokenizer puts before a text that follows a control token, in place of what is stripped

    @property
    def heard(self) -> bool:
        """Whether anything is stripped of what is heard."""
        return self.first or self.later or self.heard_end or self.odd


BLANKS = (" ", "\n", "\t\u00a0\r\n ")


def trims(
    render: Callable[[str, list[str]], str],
    encode: Callable[[str], list[int]],
    texts: Sequence[str],
    pieces: Sequence[str],
) -> Trims:
    """What a template strips, found with rules and three messages, `texts`, and with `pieces`: what it puts before
    rules, before what is heard first, between the call to speak and an answer, and behind a message that is heard last.

    Raises what the template raises, and ValueError if it shows an empty message in a way not known here.
    """
    plain, until = render(texts[0], list(texts[1:])), time.monotonic() + 4 * MOST_SECONDS
    before, hear_first, answer, asked = pieces

    def stripped(number: int, start: bool) -> bool | None:
        seen = set()
        for blank in BLANKS:
            own = list(texts)
            own[number] = blank + own[number] if start else own[number] + blank
            if time.monotonic() > until:
                raise TemplateError(f"it takes more than {4 * MOST_SECONDS:g} seconds for a few messages")
            try:
                text = render(own[0], own[1:])
            except TemplateError:
                return None
            seen.add({plain: True, plain.replace(texts[number], own[number]): False}.get(text))
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
    """Raises ValueError for texts of a game that a template would change in a way that rows do not follow.

    `rules` and `heard` are fields, each a list of phrases, None: free words. Rows leave out spaces that begin a text if
    the template strips them. Spaces that end one are refused, unless a later field has no empty phrase, and follows.
    Free words need such a field after them, and a field of phrases before them.
    """
    begins = "The chat template strips spaces around a text, and "
    for fields, end in ((rules, trims.rules_end or trims.hear_nothing is not None), (heard, trims.heard_end)):
        for number, field in enumerate(fields):
            follows = any(later and all(phrase.strip() for phrase in later) for later in fields[number + 1 :])
            announced = any(before and any(before) for before in fields[:number])
            for phrase in field or ():
                if trims.odd and phrase != phrase.lstrip():
                    raise ValueError(f"{begins}a text of the game would begin with some: {shown(phrase)}.")
                if (end or trims.odd) and phrase != phrase.rstrip() and not (follows and phrase.strip()):
                    raise ValueError(f"{begins}a text of the game would end with some: {shown(phrase)}.")
            if field is None and trims.heard and not (follows and announced):
                raise ValueError(
                    f"{begins}free words that are told (field {number} of the observation) may begin or end with some: "
                    "they need a field of phrases before them, and one without an empty phrase after them."
                )
    if trims.needs_rules and not any(phrase for field in rules for phrase in field):
        raise ValueError(f"{begins}without rules it would strip its own before what is heard: the game needs some.")


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws of `random` in the block, as jinja's filter `random` and its `lipsum` make them, are those of a seed."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raises TemplateError in the block once it has run so long: it counts lines of Python, as templates are run.

    On Linux the process may map MOST_MEMORY bytes more meanwhile: a template can ask for a long text in one operation.
    """
    end, before, pages = time.monotonic() + seconds, sys.gettrace(), Path("/proc/self/statm")

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TemplateError(f"it takes more than {seconds:g} seconds")
        return trace

    limits = resource.getrlimit(resource.RLIMIT_AS)
    most = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    if pages.exists():
        most.append(int(pages.read_text(encoding="utf-8").split()[0]) * resource.getpagesize() + MOST_MEMORY)
        resource.setrlimit(resource.RLIMIT_AS, (min(most), limits[1]))
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
