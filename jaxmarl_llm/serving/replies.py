"""The answers of OpenAI's protocol: records of choices, log-probabilities, usage and errors, whole or in chunks.

Beside OpenAI's fields stand vLLM's: with return_token_ids a record has `prompt_token_ids`, and its choices `token_ids`.
Log-probabilities list every token of an answer, the end token included. They are those of the policy's distribution,
under the temperature, filters and grammar of the request.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from jaxmarl_llm.rollout.policy import NEVER
from jaxmarl_llm.serving.calls import Answer
from jaxmarl_llm.serving.openai import Asked
from jaxmarl_llm.serving.service import Choice, Refused
from jaxmarl_llm.text.tokenizers import Tokenizer

CALL = "<tool_call>"  # the start of a call in a text
KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}


def error(refused: Refused) -> dict[str, Any]:
    """OpenAI's record of an error."""
    kind = KINDS.get(refused.status, "invalid_request_error")
    return {"error": {"message": refused.sentence, "type": kind, "param": refused.param, "code": refused.code}}


def models(names: Sequence[str], created: int) -> dict[str, Any]:
    """The record of /v1/models."""
    listed = [{"id": name, "object": "model", "created": created, "owned_by": "jaxmarl_llm"} for name in names]
    return {"object": "list", "data": listed}


def usage(choices: Sequence[Choice]) -> dict[str, int]:
    """The tokens that a request read, once, and those that its answers have."""
    read, said = len(choices[0].prompt), sum(len(choice.answer.tokens) for choice in choices)
    return {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}


def finish(choice: Choice) -> str:
    """OpenAI's reason for the end of an answer."""
    if choice.answer.finish == "length":
        return "length"
    return "tool_calls" if choice.message.calls else "stop"


class Writer:
    """Writes the answers to one request: `whole`, or `chunk` by `chunk`."""

    def __init__(self, asked: Asked, model: str, tokenizer: Tokenizer):
        self.asked, self.tokenizer = asked, tokenizer
        kind, start = ("chat.completion", "chatcmpl-") if asked.chat else ("text_completion", "cmpl-")
        self._head = {
            "id": start + secrets.token_hex(12),
            "object": kind + ".chunk" * (asked.chat and asked.stream),
            "created": int(time.time()),
            "model": model,
        }
        self._sent: dict[int, tuple[str, int]] = {}  # {answer: (its text, its number of tokens) that were sent}

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The record of all answers."""
        record = {**self._head, "choices": [self._choice(index, choice) for index, choice in enumerate(choices)]}
        record["usage"] = usage(choices)
        if self.asked.token_ids:
            record["prompt_token_ids"] = choices[0].prompt
        return record

    def chunk(self, index: int, choice: Choice, ended: bool) -> dict[str, Any] | None:
        """The part of an answer that was not sent yet; None if nothing can be sent before more is said."""
        begins = index not in self._sent
        sent, count = self._sent.get(index, ("", 0))
        text = choice.message.text if ended else ready(choice.message.text, self.asked)
        if not (ended or begins or len(text) > len(sent)):
            return None
        new, answer = text[len(sent) :], choice.answer
        self._sent[index] = (text, len(answer.tokens))
        part: dict[str, Any] = {"index": index, "finish_reason": finish(choice) if ended else None}
        part["logprobs"] = self._logprobs(answer, count, len(sent))
        if self.asked.chat:
            part["delta"] = {"role": "assistant"} if begins else {}
            if new or (begins and not ended):
                part["delta"]["content"] = new
            if ended and choice.message.calls:
                calls = _calls(choice)
                part["delta"]["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
        else:
            part["text"] = new
        if self.asked.token_ids:
            part["token_ids"] = answer.tokens[count:]
        record = {**self._head, "choices": [part], **({"usage": None} if self.asked.usage else {})}
        if self.asked.token_ids and len(self._sent) == 1 and begins:
            record["prompt_token_ids"] = choice.prompt
        return record

    def last(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The chunk of the usage, without an answer."""
        return {**self._head, "choices": [], "usage": usage(choices)}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        record: dict[str, Any] = {"index": index, "finish_reason": finish(choice)}
        record["logprobs"] = self._logprobs(choice.answer)
        if self.asked.chat:
            calls = _calls(choice)
            text = choice.message.text
            record["message"] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
            if calls:
                record["message"]["tool_calls"] = calls
        else:
            record["text"] = choice.message.text
        if self.asked.token_ids:
            record["token_ids"] = choice.answer.tokens
        return record

    def _logprobs(self, answer: Answer, start: int = 0, offset: int = 0) -> dict[str, Any] | None:
        """The record of the log-probabilities of the tokens from `start` on."""
        if self.asked.logprobs is None:
            return None
        tokens, logp = answer.tokens[start:], answer.logp[start:]
        tops = [self._top(answer, place) for place in range(start, len(answer.tokens))]
        if self.asked.chat:
            content = [
                self._token(token, value) | {"top_logprobs": [self._token(*pair) for pair in top]}
                for token, value, top in zip(tokens, logp, tops, strict=True)
            ]
            return {"content": content, "refusal": None}
        lengths = [len(self.tokenizer.decode([token])) for token in tokens]
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": logp,
            "top_logprobs": [{self._name(token): value for token, value in top} for top in tops],
            "text_offset": [offset + sum(lengths[:place]) for place in range(len(tokens))],
        }

    def _name(self, token: int) -> str:
        """A name of its own for each token, as OpenAI's completions give it: bytes that are no text are spelled out."""
        text = self.tokenizer.decode([token])
        spelled = self.tokenizer.token_bytes[token]
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled or b"") if "\ufffd" in text else text

    def _top(self, answer: Answer, place: int) -> list[tuple[int, float]]:
        """The most probable tokens in a place, as many as were asked for and can be said."""
        if not self.asked.logprobs:
            return []
        pairs = list(zip(*answer.top[place], strict=True))[: self.asked.logprobs]
        return [(token, value) for token, value in pairs if value > NEVER / 2]

    def _token(self, token: int, logp: float) -> dict[str, Any]:
        spelled = self.tokenizer.token_bytes[token]
        return {
            "token": self.tokenizer.decode([token]),
            "logprob": logp,
            "bytes": None if spelled is None else list(spelled),
        }


def _calls(choice: Choice) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in choice.message.calls
    ]


def ready(text: str, asked: Asked) -> str:
    """The start of a text that no further token can change: a stop or a call of a tool may begin at its end."""
    held = [*asked.request.stop, *[CALL] * bool(asked.request.tools)]
    if asked.request.tools:
        if text[:1].isspace():  # a message with calls loses its spaces, and one without keeps them
            return ""
        text = text.partition(CALL)[0]
    size_held = max(
        (size for stop in held for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )
    text = text[: len(text) - size_held]
    return text.rstrip() if asked.request.tools else text
