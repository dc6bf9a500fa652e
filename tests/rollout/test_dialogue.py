"""Rows equal the rendering of the model's chat template, also where it strips the spaces around a text.

transformers renders the templates. Texts are told in pieces over several turns, with spaces at both ends.

The long cases play games with each template; the short ones render the same dialogues of texts.
"""

import json
import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.rollout.dialogue import RULES_ONLY, heard_pieces, join, prompt_pieces, transcript
from jaxmarl_llm.rollout.layout import compile_fields
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.text.gguf_tokenizer import from_gguf
from jaxmarl_llm.text.tokenizers import HFTokenizer
from jaxmarl_llm.training.supervised import rows_of
from tests.support.rollout_cases import replay
from tests.support.tokenizer_files import CHATML, FAMILIES, LLAMA2, llama2, spm_fields, tiny, written

STRIP = ("llama2", "llama3", "llama3.2", "gemma2", "gemma3", "phi3")
PHI3 = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def tokenizer_of(directory, family: str) -> HFTokenizer:
    if family == "llama2":
        return HFTokenizer(written(directory, llama2("first"), LLAMA2, bos_token="<s>", eos_token="</s>"))
    if family == "phi3":  # its control tokens take the spaces behind them, and a text begins with one of its own
        fields = spm_fields(("<s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"))
        file = json.loads(from_gguf(fields).to_str())
        for token in file["added_tokens"]:
            token["rstrip"] = token["content"] != "<s>"
        return HFTokenizer(written(directory, tokenizers.Tokenizer.from_str(json.dumps(file)), PHI3))
    build, template, options, bos = FAMILIES[family]
    return HFTokenizer(written(directory, build(), template, bos_token=bos), options=options)


def shown(tokenizer: HFTokenizer, rules: str, messages: list[str]) -> list[int]:
    """The tokens of the rendered template; rows of Llama 2 have no space behind an answer."""
    return tokenizer.encode_marked(tokenizer.render(rules, messages).replace(" </s>", "</s>"))


def answers_of(tokenizer: HFTokenizer, messages: list[str]) -> list[list[int]]:
    start = tokenizer.trims.said or tokenizer.trims.lead
    return [[*tokenizer.encode(start + text.strip()), tokenizer.end] for text in messages[1::2]]


@pytest.mark.parametrize("family", [*STRIP, "smollm2"])
def test_a_dialogue_with_spaces_around_its_texts_is_the_templates(tmp_path, family):
    tokenizer = tokenizer_of(tmp_path / "one", family)
    draw = random.Random(3)
    around = lambda text: draw.choice(["", " ", "\n", " \n"]) + text + draw.choice(["", " ", "\n\n"])
    for _ in range(12):
        rules = around("Rules: be brief.").rstrip()
        rules = rules.lstrip() if family == "gemma3" else rules  # it keeps a newline, and joins it with its own
        messages = [around(text) for text in ("go on", "C", draw.choice(["a the", ""]), "D", "bye")]
        messages[0] = draw.choice([messages[0], "", "\n"])
        messages[1::2] = [text.rstrip() if family == "phi3" else text for text in messages[1::2]]
        if family == "smollm2":
            messages[1::2] = [text.strip() for text in messages[1::2]]  # as it is said
        turns = [([text], True) for text in messages[::2]]
        answers = answers_of(tokenizer, messages)
        # Llama 2's space before a message is a token of its own in a row
        row = tokenizer.decode if family == "llama2" else list
        assert row(transcript(tokenizer, tokenizer.encode, [rules], turns, answers)) == row(
            shown(tokenizer, rules, messages)
        )
        chat = [{"role": "system", "content": rules}]
        chat += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages[:4])]
        first, cells = rows_of(tokenizer, chat)
        whole = shown(tokenizer, rules, messages[:4])
        learned = [*first, *(token for token, _, _ in cells)]
        assert row(learned) == row(whole[: len(whole) - whole[::-1].index(tokenizer.end)])


def test_parity_with_transformers_where_control_tokens_take_the_spaces_behind_them(tmp_path):
    tokenizer = tokenizer_of(tmp_path / "one", "phi3")
    theirs = PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "one"))
    for told in ("the C", " \nthe C", ""):
        chat = [{"role": "system", "content": " Rules."}, {"role": "user", "content": told}]
        expected = theirs.apply_chat_template(chat, tokenize=True, return_dict=False, add_generation_prompt=True)
        assert transcript(tokenizer, tokenizer.encode, [" Rules."], [([told], True)], []) == expected
    assert tokenizer.decode(expected[-4:]) == "<|end|><|user|><|end|><|assistant|>"


def test_texts_that_a_template_changes_otherwise_are_refused_before_they_are_told(tmp_path):
    odd = HFTokenizer(tiny(tmp_path, CHATML.replace("m['content']", "m['content'].strip(' ')")))
    for rules, told in ((["Rules. "], "a"), (["Rules."], "\na")):
        with pytest.raises(ValueError, match="strips spaces around a text, and a text of the game would"):
            transcript(odd, odd.encode, rules, [([told], True)], [])


RULES = (("Rules.", "\n Be brief."), (" the end.", "\nEnd."))
HEARD = (("\ngo", " a", "b"), ("", " the", "\n\nc "), (" d", "\ne"))  # "c " needs what follows


@pytest.mark.long
@pytest.mark.parametrize("family", STRIP)
def test_rows_leave_out_the_spaces_that_a_template_strips(tmp_path, family):
    """Phrases told at random in turns in which a seat may act or not, by the compiled form and the one on the host."""
    tokenizer = tokenizer_of(tmp_path / "one", family)
    rows, turns, draw = 24, 5, np.random.default_rng(0)
    rules = draw.integers(-1, 2, (rows, 2))
    rules[:, 1] = np.maximum(rules[:, 1], 0)
    told = draw.integers(-1, (3, 3, 2), (turns, rows, 3))
    told[..., 2] = np.where((told[..., 1] == 2) & (told[..., 2] < 0), 0, told[..., 2])
    told[0, :4] = -1
    acting = (draw.random((turns, rows)) < 0.6) | (np.arange(turns) == turns - 1)[:, None]
    tables = SimpleNamespace(start=np.zeros(1, int), forced=np.zeros((1, 0), np.int32), forced_length=np.zeros(1, int))
    layout = SimpleNamespace(
        policy_set=SimpleNamespace(tokenizer=tokenizer),
        tables=tables,
        rules=compile_fields(tokenizer, RULES, tokenizer.trims.rules),
        observation=compile_fields(tokenizer, HEARD, tokenizer.trims.first or tokenizer.trims.later),
    )

    @jax.jit
    def hear(text, acts, stage):
        view = SimpleNamespace(phrases=text[:, None], acting=acts[:, None], grammar=jnp.zeros((rows, 1), int))
        pieces, stage = heard_pieces(layout, view, jnp.arange(rows), 0, stage, {})
        return (*join(pieces), stage)

    (answer,) = answers_of(tokenizer, ["", "C"])
    tokens, n = join(prompt_pieces(layout, jnp.asarray(rules)))
    found = [ids[:count].tolist() for ids, count in zip(np.asarray(tokens), np.asarray(n), strict=True)]
    stage = jnp.full(rows, RULES_ONLY)
    for t in range(turns):
        tokens, n, stage = hear(jnp.asarray(told[t]), jnp.asarray(acting[t]), stage)
        for row, ids, count, acts in zip(found, np.asarray(tokens), np.asarray(n), acting[t], strict=True):
            row += [*ids[:count].tolist(), *(answer if acts and t + 1 < turns else [])]
    said = lambda fields, ids: [field[i] if i >= 0 else "" for field, i in zip(fields, ids, strict=True)]
    for r, row in enumerate(found):
        pieces = [said(HEARD, told[t, r]) for t in range(turns)]
        messages = [""]
        for now, acts in zip(pieces, acting[:, r], strict=True):
            messages[-1] += "".join(now)
            messages += ["C", ""] if acts else []
        whole = shown(tokenizer, "".join(said(RULES, rules[r])), messages[:-2])
        assert tokenizer.decode(row) == tokenizer.decode(whole)
        answers = [answer] * (len(messages) // 2 - 1)
        assert row == transcript(
            tokenizer, tokenizer.encode, said(RULES, rules[r]), zip(pieces, acting[:, r], strict=True), answers
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "scripts"), [("mini_hanabi", ("cautious", "random")), ("refereed", ("correct", "random"))]
)
def test_a_game_is_told_as_the_templates_tell_it(tmp_path, name, scripts):
    """To models of two families: Hanabi, whose messages have lines, and one whose messages begin with a space."""
    game = REGISTRY[name]()
    sets = {
        family: PolicySet(tokenizer_of(tmp_path / family, family), (script,))
        for family, script in zip(("llama3", "gemma3"), scripts, strict=True)
    }
    seats = tuple(tuple(scripts[(seat + first) % 2] for seat in range(game.agents)) for first in range(2))
    rollout = Rollout(game, sets, Lineup(seats, 1), 60)
    trajectory = jax.device_get(jax.jit(rollout)({family: {} for family in sets}, jax.random.key(1)))
    world = replay(SimpleNamespace(environment=game), trajectory, jax.random.key(1))
    said = lambda fields, ids: "".join(f[i] if i >= 0 else "" for f, i in zip(fields, ids, strict=True))
    begins = set()
    for family, rows in trajectory.rows.items():
        tokenizer = sets[family].tokenizer
        for r in range(len(rows.length)):
            episode, seat, prompt = int(rows.episode[r]), int(rows.seat[r]), int(rows.prompt[r])
            messages = [""]
            for t, view in enumerate(world.views[:-1]):
                if world.over[t, episode]:
                    continue
                messages[-1] += said(game.observation, view.phrases[episode, seat])
                if view.acting[episode, seat]:
                    action = int(trajectory.episodes.action[episode, t, seat])
                    (choice,) = game.grammars[int(view.grammar[episode, seat])]
                    messages += [dict(choice.options)[action], ""]
            asked = len(messages) // 2 * 2 - 1
            if asked < 0:
                continue  # it never acted
            opened = rows.prompts.tokens[prompt, : rows.prompts.length[prompt]].tolist()
            row = tokenizer.decode([*opened, *rows.tokens[r, : rows.length[r]].tolist()])
            rules = said(game.rules, world.prompt[episode, seat])
            assert row.startswith(tokenizer.render(rules, messages[:asked]) + messages[asked])
            begins |= {text[:1] for text in messages[:asked:2]}
    assert (" " in begins) == (name == "refereed")
