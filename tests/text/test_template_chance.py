"""Time and chance in chat templates: the same in every run, whatever the day and the draws of the process are."""

import random

import pytest

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
