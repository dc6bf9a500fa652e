"""Time and chance in chat templates: the same in every run, whatever the day and the draws of the process are."""

import itertools
import random
import time
from types import SimpleNamespace

import pytest

from jaxmarl_llm.text import templates
from jaxmarl_llm.text.templates import MOMENT, PINNED, render_chat
from jaxmarl_llm.text.tokenizers import HFTokenizer
from tests.support.tokenizer_files import CHATML, tiny

SMOLLM3 = (
    "{%- if messages[0].role == 'system' -%}{%- set rules = messages[0].content -%}{%- set messages = messages[1:] -%}"
    "{%- endif -%}{%- set today = strftime_now('%d %B %Y') -%}"
    "{{- '<|im_start|>system\n## Metadata\n\nToday Date: ' ~ today ~ '\n\n' ~ rules ~ '<|im_end|>\n' -}}" + CHATML
)
FORMATS = [
    "%d %B %Y",
    "%d %b %Y",
    "%Y-%m-%d %H:%M:%S.%f",
    "%-d/%-m/%y",
    "%A %j %p",
    "100%% %%d %%%d",
    "%c|%x|%X|%Z%z",
    "",
]
SOURCES = {  # a piece of a template, and the text that it writes
    **{f"{{{{ strftime_now({format!r}) }}}}": MOMENT.strftime(format) for format in FORMATS},
    "{{ strftime_now(format='%Y') | int + 1 }}": "2025",
    "{% set now = strftime_now %}{{ now('%d') }}": "26",
    "{% macro day() %}{{ strftime_now('%d') }}{% endmacro %}{{ day() }}": "26",
    "{{ date_string }}": "26 Jul 2024",
    "{% if date_string is not defined %}{{ strftime_now('%f') }}{% endif %}": "",
    "{{ range(10 ** 5) | random }}": None,
    "{% for _ in range(9) %}{{ ['a', 'b', 'c'] | random }}{% endfor %}": None,
    "{{ lipsum(1, html=False, min=2, max=9) }}": None,
}


def head(directory, template: str) -> str:
    tokenizer = HFTokenizer(directory, template=template)
    return tokenizer.decode(tokenizer.markers.before_rules).removesuffix("<|im_start|>system\n")


@pytest.mark.parametrize("source", SOURCES)
def test_a_template_learns_the_same_of_time_and_chance_in_every_run(tmp_path, source):
    directory, texts = tiny(tmp_path, CHATML), []
    for seed in (1, 2):
        random.seed(seed)
        state = random.getstate()
        texts.append(head(directory, source + CHATML))
        assert random.getstate() == state
    assert texts[0] == texts[1]
    assert texts[0] == SOURCES[source] or (SOURCES[source] is None and texts[0])


def test_smollm_3_is_told_the_same_day_every_day(tmp_path):
    tokenizer = HFTokenizer(tiny(tmp_path, SMOLLM3))
    assert "## Metadata\n\nToday Date: 26 July 2024\n\n" in tokenizer.decode(tokenizer.markers.before_rules)
    assert PINNED == {"time": "2024-07-26T00:00:00", "random_seed": 0}


def test_a_template_that_is_slow_on_a_busy_machine_is_cut_as_ever(tmp_path, monkeypatch):
    """Seconds of other programs do not count: a clock leaps by 100 seconds whenever it is read."""
    expected, hours = HFTokenizer(tiny(tmp_path, CHATML)), itertools.count(0, 100)
    monkeypatch.setattr(templates, "time", SimpleNamespace(monotonic=hours.__next__, thread_time=time.thread_time))
    tokenizer = HFTokenizer(tmp_path)
    assert next(hours) > 10_000 and tokenizer.system_role
    assert (tokenizer.markers, tokenizer.trims) == (expected.markers, expected.trims)


@pytest.mark.parametrize(
    "when", ["messages[0]['role'] == 'system'", "messages[-1]['content'].endswith(' ')"], ids=["rules", "a space"]
)
def test_a_template_that_takes_too_long_for_some_texts_is_cut_in_no_other_way(tmp_path, monkeypatch, when):
    """Rules would become a part of the first message, or stripped spaces would be unknown, on slow machines alone."""
    monkeypatch.setattr(templates, "MOST_SECONDS", 0.3)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = 1 %}{% endfor %}{% endfor %}"
    with pytest.raises(
        ValueError, match=r"cannot be cut into markers: .* It raises TooSlow: 'it takes more than 0\.3 s"
    ):
        HFTokenizer(tiny(tmp_path, f"{{% if {when} %}}{loop}{{% endif %}}{CHATML}"))


@pytest.mark.parametrize("source", ["joiner()", "cycler('a')", "'a'.join", "messages.index", "raise_exception"])
def test_an_address_in_memory_is_refused(tmp_path, source):
    with pytest.raises(ValueError, match="it writes an address in memory"):
        head(tiny(tmp_path, CHATML), f"{{{{ {source} }}}}{CHATML}")


@pytest.mark.parametrize("start", ["", "\n", "  ", "\n\n  ", "{%- set a = 1 %}\n"])
def test_a_template_begins_as_in_transformers(tmp_path, start):
    from transformers import PreTrainedTokenizerFast

    template, chat = f"{start}{{% set b = 2 %}} text{CHATML}", [{"role": "user", "content": "a"}]
    theirs = PreTrainedTokenizerFast.from_pretrained(str(tiny(tmp_path, template)))
    assert render_chat(HFTokenizer(tmp_path)._template, chat, True, {}) == theirs.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )


def test_transformers_gives_templates_no_source_of_time_but_those_seen_here():
    """One that a later version adds has to be pinned too."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    known = {"range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now"}
    environment = _compile_jinja_template("").environment
    assert set(environment.globals) == known
    assert set(environment.extensions) <= {
        "jinja2.ext.LoopControlExtension",
        *(name for name in environment.extensions if name.endswith("AssistantTracker")),
    }
