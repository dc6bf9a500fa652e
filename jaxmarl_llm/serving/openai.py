"""The requests of OpenAI's protocol: JSON of /v1/chat/completions and /v1/completions, read into `service.Request`.

A field that would change the answer is obeyed, or refused in one sentence. Fields without effect on it pass. A field
that is null counts as left out. `replies` writes the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.serving.calls import FREE
from jaxmarl_llm.serving.dialogues import Message, ToolCall
from jaxmarl_llm.serving.service import Refused, Request
from jaxmarl_llm.serving.slots import TOP
from jaxmarl_llm.text.grammar import Choice, Grammar
from jaxmarl_llm.text.refusals import quote

MOST_BYTES, MOST_DEPTH = 4_000_000, 100  # limits of a body, and of the nesting of its JSON
MOST_ANSWERS, MOST_STOPS, LONGEST_STOP = 16, 4, 1_000
MOST_MESSAGES, MOST_TOOLS = 1_000, 128
MOST_CHOICES, LONGEST_CHOICES = 100, 1_000  # choices of a grammar, and the bytes of all of them
COMPLETION_BUDGET = 16  # tokens of a completion, if the request does not say how many: OpenAI's number

# Fields that do not change the answer.
WITHOUT_EFFECT = (
    {"user", "metadata", "store", "stream_options", "service_tier", "safety_identifier", "prediction"}
    | {"prompt_cache_key", "prompt_cache_retention"}
)  # fmt: skip
# Fields that would change the answer, and the only values that may be given.
ONLY: dict[str, tuple] = {
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "suffix": ("",),
    "echo": (False,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "functions": ([],),
    "function_call": ("none",),
}
COMMON = (
    {"model", "stream", "n", "temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "seed", "logprobs"}
    | {"return_token_ids", "structured_outputs"}
)  # fmt: skip
CHAT = {*COMMON, "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"}
COMPLETION = {*COMMON, "prompt", "best_of"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True)
class Asked:
    """A request as it was read, and the form that its answers get."""

    request: Request
    chat: bool
    stream: bool = False
    usage: bool = False  # a stream ends with a chunk of the usage
    logprobs: int | None = None  # the most probable tokens to list beside each token; None: no log-probabilities
    token_ids: bool = False


def read_json(body: bytes) -> dict[str, Any]:
    """The object that a body holds. Raises Refused for a body that is too large, nested too deep, or no JSON object."""
    if len(body) > MOST_BYTES:
        raise Refused(f"The body has {len(body)} bytes: at most {MOST_BYTES} are read.", 413)
    given = _parse(body, "The body")
    if not isinstance(given, dict):
        raise Refused(f"The body is a JSON object, got {quote(given)}.")
    return {name: value for name, value in given.items() if value is not None}


def read_chat(given: dict[str, Any]) -> Asked:
    """A request of /v1/chat/completions. Raises Refused for a field that is wrong, unknown or not supported."""
    _check_names(given, CHAT)
    tools = _list(given, "tools", _tool, MOST_TOOLS)
    choice = given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise _refuse("tool_choice", choice, '"auto" or "none"')
    if tools and given.get("parallel_tool_calls", True) is not True:
        raise _refuse("parallel_tool_calls", given["parallel_tool_calls"], "true: an answer may call several tools")
    messages = _list(given, "messages", _message, MOST_MESSAGES)
    if not messages:
        raise Refused("messages is a list of at least one message.", param="messages")
    budgets = {_whole(given, name, 1) for name in ("max_tokens", "max_completion_tokens")} - {None}
    if len(budgets) > 1:
        raise Refused("max_tokens and max_completion_tokens mean the same here: give one.", param="max_tokens")
    wanted, top = _flag(given, "logprobs"), _whole(given, "top_logprobs", 0, TOP)
    if top is not None and not wanted:
        raise Refused("top_logprobs needs logprobs true.", param="top_logprobs")
    shown = () if choice == "none" else tools
    return _read_common(
        given, True, (top or 0) if wanted else None, budgets.pop() if budgets else None, messages, shown
    )


def read_completion(given: dict[str, Any]) -> Asked:
    """A request of /v1/completions. Raises Refused for a field that is wrong, unknown or not supported."""
    _check_names(given, COMPLETION)
    prompt = given.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise _refuse("prompt", prompt, "one text, which is not empty")
    if given.get("best_of", given.get("n", 1)) != given.get("n", 1):
        raise _refuse("best_of", given["best_of"], "n, as every answer is given")
    budget = _whole(given, "max_tokens", 1)
    top = _whole(given, "logprobs", 0, TOP)
    return _read_common(given, False, top, COMPLETION_BUDGET if budget is None else budget, plain=prompt)


def _read_common(
    given: dict[str, Any],
    chat: bool,
    logprobs: int | None,
    budget: int | None,
    messages: tuple[Message, ...] = (),
    tools: tuple[dict, ...] = (),
    plain: str | None = None,
) -> Asked:
    """The fields that both kinds of requests have."""
    model = given.get("model")
    if not isinstance(model, str):
        raise _refuse("model", model, "the name of a model")
    options = given.get("stream_options", {})
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise _refuse("stream_options", options, '{"include_usage": true or false}')
    grammar = _grammar(given)
    request = Request(
        messages=messages,
        model=model,
        tools=tools,
        plain=plain,
        n=_whole(given, "n", 1, MOST_ANSWERS) or 1,
        budget=budget,
        sampling=_sampling(given),
        stop=_stops(given),
        seed=_whole(given, "seed", -(2**63), 2**63 - 1),
        grammar=grammar,
        top=bool(logprobs),
    )
    usage = _flag(options, "include_usage")
    return Asked(request, chat, _flag(given, "stream"), usage, logprobs, _flag(given, "return_token_ids"))


def _parse(text: bytes, name: str) -> Any:
    """The value of a JSON text. Raises Refused, in a sentence about `name`."""
    bare = re.sub(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', b"", text, flags=re.DOTALL)  # without strings
    signs = np.frombuffer(bare, np.uint8)
    opened, closed = ((signs == a) | (signs == b) for a, b in ((ord("["), ord("{")), (ord("]"), ord("}"))))
    if len(signs) and np.cumsum(opened.astype(np.int32) - closed).max() > MOST_DEPTH:
        raise Refused(f"{name} is nested more than {MOST_DEPTH} deep.")
    try:
        given = json.loads(text.decode(), parse_constant=_refuse_constant)
        if rb"\u" in text:
            json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused(f"{name} holds half of a surrogate pair, which is no letter.") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} is no JSON: {str(error)[:100]}.") from None
    return given


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _refuse(name: str, value: Any, possible: str) -> Refused:
    given = "it is missing" if value is None else f"got {quote(value)}"
    return Refused(f"{name}: possible is {possible}; {given}.", param=name[:100])


def _check_names(given: dict[str, Any], known: set[str]) -> None:
    """Raises Refused for a field that is unknown, or that would change the answer and is not supported."""
    for name, value in given.items():
        if name in ONLY:
            if value not in ONLY[name]:
                allowed = json.dumps(ONLY[name][0])
                raise Refused(f"{name} is not supported: leave it out, or give {allowed}.", param=name)
        elif name not in known and name not in WITHOUT_EFFECT:
            raise Refused(f"The field {quote(name)} is not supported here: leave it out.", param=name[:100])


def _flag(given: dict[str, Any], name: str) -> bool:
    value = given.get(name)
    if not isinstance(value, bool | None):
        raise _refuse(name, value, "true or false")
    return bool(value)


def _whole(given: dict[str, Any], name: str, low: int, high: int | None = None) -> int | None:
    """A whole number from `low` to `high`, or None."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        raise _refuse(name, value, f"a whole number from {low} {'on' if high is None else f'to {high}'}")
    return value


def _list(given: dict[str, Any], name: str, read: Callable[[Any, str], Any], longest: int) -> tuple:
    """The items of a list, each read by read(item, its place)."""
    value = given.get(name, [])
    if not isinstance(value, list) or len(value) > longest:
        raise _refuse(name, value, f"a list of at most {longest}")
    return tuple(read(item, f"{name}[{index}]") for index, item in enumerate(value))


def _sampling(given: dict[str, Any]) -> Sampling | None:
    """The settings of the request; None if it has none."""
    named = {name: given[name] for name in ("temperature", "top_k", "top_p", "min_p") if name in given}
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise _refuse(name, value, "a number")
    if named.get("top_k") == -1:  # vLLM's way to switch it off
        named["top_k"] = 0
    try:
        return Sampling(**named) if named else None
    except ValueError as error:
        raise Refused(str(error), param=str(error).split()[0]) from None


def _stops(given: dict[str, Any]) -> tuple[str, ...]:
    value = given.get("stop", [])
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise _refuse("stop", value, f"a text or a list of at most {MOST_STOPS}")
    if not all(isinstance(stop, str) and 1 <= len(stop) <= LONGEST_STOP for stop in stops):
        raise _refuse("stop", value, f"texts of 1 to {LONGEST_STOP} letters")
    return tuple(stops)


def _grammar(given: dict[str, Any]) -> Grammar:
    """The grammar of structured_outputs: one of several texts, and nothing else."""
    value = given.get("structured_outputs")
    if value is None:
        return FREE
    texts = value.get("choice") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise _refuse("structured_outputs", value, '{"choice": [texts]}')
    size = sum(len(text.encode()) for text in texts)
    if not 1 <= len(texts) <= MOST_CHOICES or size > LONGEST_CHOICES:
        sentence = f"structured_outputs has 1 to {MOST_CHOICES} choices of {LONGEST_CHOICES} bytes together"
        raise Refused(f"{sentence}, got {len(texts)} of {size} bytes.", param="structured_outputs")
    return (Choice(tuple(enumerate(dict.fromkeys(texts)))),)


def _tool(given: Any, place: str) -> dict:
    """A description of a function, as the chat template gets it."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or given.get("type") != "function" or given.keys() - {"type", "function"}:
        raise _refuse(place, given, '{"type": "function", "function": {...}}')
    _check_name(function.get("name"), f"{place}.function.name")
    if unknown := sorted(function.keys() - {"name", "description", "parameters", "strict"}):
        raise Refused(f"{place}.function has an unknown field {quote(unknown[0])}.", param="tools")
    if function.get("strict"):
        raise _refuse(f"{place}.function.strict", function["strict"], "false: arguments are not checked")
    if not isinstance(function.get("description", ""), str | None):
        raise _refuse(f"{place}.function.description", function["description"], "a text")
    if not isinstance(function.get("parameters", {}), dict | None):
        raise _refuse(f"{place}.function.parameters", function["parameters"], "a JSON schema")
    kept = {name: value for name, value in function.items() if value is not None and name != "strict"}
    return {"type": "function", "function": kept}


def _check_name(name: Any, place: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name):
        raise _refuse(place, name, "1 to 64 letters, digits and signs of _.-")
    return name


def _message(given: Any, place: str) -> Message:
    if not isinstance(given, dict):
        raise _refuse(place, given, "a message")
    given = {name: value for name, value in given.items() if value is not None and value != []}
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _refuse(f"{place}.role", role, f"one of {', '.join(ROLES)}")
    # A tool's result stands behind its call, and the templates name neither.
    known = {"role", "content", *{"assistant": ["tool_calls"], "tool": ["tool_call_id", "name"]}.get(role, [])}
    if unknown := sorted(given.keys() - known):
        sentence = f"{place} has a field {quote(unknown[0])}, which a message of role {role} cannot have here."
        raise Refused(sentence, param="messages")
    calls = _list({"tool_calls": given.get("tool_calls", [])}, "tool_calls", _call, MOST_TOOLS)
    content = given.get("content", "" if calls else None)
    return Message(ROLES[role], content if isinstance(content, str) else _text(content, f"{place}.content"), calls)


def _text(content: Any, place: str) -> str:
    """The text of a content in parts, a line each."""
    if not isinstance(content, list):
        raise _refuse(place, content, "a text or a list of parts of text")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _refuse(place, part, 'a part {"type": "text", "text": ...}: this server reads text alone')
    return "\n".join(part["text"] for part in content)


def _call(given: Any, place: str) -> ToolCall:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or given.get("type", "function") != "function":
        raise _refuse(place, given, '{"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}')
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        raise _refuse(f"{place}.function.arguments", arguments, "a text of JSON")
    _parse(arguments.encode(), f"{place}.function.arguments")
    return ToolCall(_check_name(function.get("name"), f"{place}.function.name"), arguments)
