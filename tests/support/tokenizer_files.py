"""Small tokenizers of every family, their chat templates, and texts that are hard to cut."""

import json
from pathlib import Path

import tokenizers
from tokenizers import pre_tokenizers

from jaxmarl_llm.text.gguf_tokenizer import from_gguf
from jaxmarl_llm.text.templates import GEMMA_TEMPLATE
from jaxmarl_llm.text.tokenizers import (
    byte_alphabet,
)

# {text: token ids}, read from the GGUF by transformers: `python -m tests.models.test_real_models` writes SmolLM2's, and
# `python -m tests.text.test_gguf_tokenizer GGUF` Gemma's.
GOLDEN = Path(__file__).parent / "golden"

# Chat templates that render a plain dialogue as those of the families do.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN2_5 = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}{% endif %}" + CHATML
)
QWEN3 = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% set said = m['content'].split('</think>')[-1].lstrip('\n') %}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' + said }}"
    "{% elif m['role'] == 'assistant' %}{{ said }}{% else %}{{ m['content'] }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{% endif %}{% endif %}"
)
QWEN3_5 = (  # without `enable_thinking` 4B and larger ones think, smaller ones do not
    "{% if not messages | selectattr('role', 'eq', 'user') | list %}{{ raise_exception('No user query.') }}{% endif %}"
    "{% for m in messages %}{% set text = m['content'] | trim %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% set text = text.split('</think>')[-1].lstrip('\n') %}{% if loop.last %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}{{ text + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{{ '<think>\n' if enable_thinking | default(true) else '<think>\n\n</think>\n\n' }}{% endif %}"
)
QWEN_TOOLS = (  # as Qwen2.5 shows tools, and their results as messages of the user
    "{% set rules = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% if tools %}{{ '<|im_start|>system\n' + rules + '\n\n# Tools\n<tools>' }}"
    "{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '\n</tools>\nTo call one, write <tool_call>\n{...}\n</tool_call>.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m['content'] + '\n</tool_response><|im_end|>\n' }}"
    "{% elif not (tools and loop.first and m['role'] == 'system') %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% set rules = '' %}{% if messages[0]['role'] == 'system' %}"
    "{% set rules = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + ((rules if loop.first else '') + m['content']).strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3_TURNS = (
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{{ m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA3 = "{{ bos_token }}" + LLAMA3_TURNS
LLAMA3_2 = (
    "{{ bos_token }}{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% set rules = '' %}{% if messages[0]['role'] == 'system' %}"
    "{% set rules = messages[0]['content'] | trim %}{% set messages = messages[1:] %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n' }}"
    "{{ 'Today Date: ' + date_string + '\n\n' + rules + '<|eot_id|>' }}" + LLAMA3_TURNS
)
GEMMA2 = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}"
    "{{ m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA4 = (
    "{{ bos_token }}{% set thinks, ruled = enable_thinking | default(false), messages[0]['role'] == 'system' %}"
    "{% if thinks or ruled %}{{ '<|turn>system\n' + ('<|think|>\n' if thinks else '') }}"
    "{{ (messages[0]['content'] | trim if ruled else '') + '<turn|>\n' }}{% endif %}"
    "{% for m in messages[1 if ruled else 0:] %}"
    "{{ '<|turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}"
    "{{ m['content'].split('<channel|>')[-1 if m['role'] == 'assistant' else 0:] | join('<channel|>') | trim }}"
    "{{ '<turn|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)
GEMMA4_NO_THOUGHT = GEMMA4 + (  # as in earlier files of 31B
    "{% if add_generation_prompt and not enable_thinking | default(false) %}"
    "{{ '<|channel>thought\n<channel|>' }}{% endif %}"
)
UNMARKED = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
TODAY = "26 Jul 2024"
TEXTS = (
    "Round 3 of 10: you scored 15 points, they 0.5.",
    "  leading, trailing and   inner spaces \n\tand a tab\n\nand\r\nlines\n",
    "Ünïcödé 漢字 かな עברית 🙂👩‍👩‍👧 e\u0301",
    "it's they'll I'm DON'T x=3; y==[1,2] # %$§ --> <tag/>",
    "",
)
DIALOGUES = (
    ("You play a game.", ["Choose A or B.", "A", "They chose B.", "B"]),
    ("Rules: C or D?\nBe brief.", ["1", "C", "2 and 3", "D", " spaced", " C "]),
    ("Ignore 🙂", ["hi", "", "", "bye"]),
    ("R", ["u", "a"]),
)


SPM_WORDS = ("▁▁", "▁t", "▁th", "▁the", "▁[", "▁C", "in", "ing", "th", "he", "</", "s>", "er", "▁a", "[", "▁s", "es")


def byte_fields(control=("<|im_start|>", "<|im_end|>"), user=(), merges=("Ġ a",), pre="smollm", words=()) -> dict:
    """The metadata of a GGUF with a byte-level tokenizer."""
    merged = dict.fromkeys(merge.replace(" ", "") for merge in merges)
    names = [*control, *user, *byte_alphabet(), *merged, *words]
    types = [3] * len(control) + [4] * len(user) + [1] * (len(names) - len(control) - len(user))
    about = {"model": "gpt2", "pre": pre, "tokens": names, "token_type": types, "merges": list(merges)}
    return {f"tokenizer.ggml.{key}": value for key, value in {**about, "bos_token_id": 0}.items()}


def spm_fields(control=("<s>", "</s>"), user=(), words=SPM_WORDS, prefix=True) -> dict:
    """The metadata of a GGUF with a SentencePiece tokenizer whose words are ordered best first."""
    characters = dict.fromkeys("▁" + "".join(words) + "abcdefgRulesSIN<>/[]")
    words = dict.fromkeys([*words, *characters])
    names = ["<unk>", *control, *user, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [2] + [3] * len(control) + [4] * len(user) + [6] * 256 + [1] * len(words)
    scores = [-1000.0] * (1 + len(control) + len(user)) + [0.0] * 256 + [-float(i) for i in range(len(words))]
    about = {"model": "llama", "pre": "default", "tokens": names, "token_type": types, "scores": scores}
    about |= {"bos_token_id": 1, "unknown_token_id": 0, "add_space_prefix": prefix}
    return {f"tokenizer.ggml.{key}": value for key, value in about.items()}


def written(directory: Path, tokenizer: tokenizers.Tokenizer, template: str | None = None, **about) -> Path:
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    about |= {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(about))
    return directory


def tiny(directory: Path, template: str | None) -> Path:
    """A tokenizer of single bytes, one merge (space, a) and two control tokens."""
    return written(directory, from_gguf(byte_fields()), template)


LLAMA2_STYLES = ("prepend", "first", "always")


def llama2(style: str) -> tokenizers.Tokenizer:
    """Llama 2's tokenizer in the three ways in which Hugging Face has stored where its first space goes."""
    tokenizer = from_gguf(spm_fields())
    if style != "prepend":
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=style, split=False)
    return tokenizer


QWEN_CONTROL, QWEN_USER = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<think>", "</think>", "<tool_call>")
LLAMA3_CONTROL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA_CONTROL = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
GEMMA4_CONTROL = ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>")
GEMMA_USER = ("\n", "\n\n", "  ", "   ", "<b>")
NEWLINES = ("Ċ Ċ", ". ĊĊ", "Ġ a", "1 2", "12 3", "h e")


def qwen() -> tokenizers.Tokenizer:
    return from_gguf(byte_fields(QWEN_CONTROL, QWEN_USER, NEWLINES, "qwen2") | {"tokenizer.ggml.add_bos_token": False})


def llama3() -> tokenizers.Tokenizer:
    return from_gguf(byte_fields(LLAMA3_CONTROL, (), NEWLINES, "llama-bpe"))


def gemma_like() -> tokenizers.Tokenizer:
    return from_gguf(spm_fields(GEMMA_CONTROL, GEMMA_USER, prefix=False))


def gemma4_like() -> tokenizers.Tokenizer:
    return from_gguf(spm_fields(GEMMA4_CONTROL, GEMMA_USER, prefix=False))


# family: (tokenizer, template, options, bos). Llama 2 has tests of its own.
FAMILIES = {
    "smollm2": (lambda: from_gguf(byte_fields()), CHATML, {}, None),
    "llama3": (llama3, LLAMA3, {}, "<|begin_of_text|>"),
    "llama3.2": (llama3, LLAMA3_2, {}, "<|begin_of_text|>"),
    "qwen2.5": (qwen, QWEN2_5, {}, None),
    "qwen3": (qwen, QWEN3, {}, None),
    "gemma2": (gemma_like, GEMMA2, {}, "<bos>"),
    "gemma3": (gemma_like, GEMMA_TEMPLATE, {}, "<bos>"),
    "gemma4": (gemma4_like, GEMMA4, {}, "<bos>"),
}
