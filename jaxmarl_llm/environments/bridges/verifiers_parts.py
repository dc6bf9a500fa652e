"""Parts of `verifiers` with our policies in them: a client that asks a seat, and a harness without a process."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

CHAT = "jaxmarl_llm_chat"


class SeatClient:
    """A client of verifiers (its `Client`) that asks a seat through `client`, an `openai.AsyncOpenAI`.

    `spoke` holds the trace of each answer. Answers are given one at a time, so that their order is that of the
    episode's turns. `refused` is the sentence of the first refusal.
    """

    def __init__(self, client: Any):
        self._client, self._turn = client, asyncio.Lock()
        self.spoke, self.refused = list[str](), ""

    async def get_response(
        self,
        dialect: Any,
        body: dict[str, Any],
        sampling: Any,
        session_id: str | None = None,
        turn: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer to a request of /v1/chat/completions. Raises verifiers' ProviderError for a refused request."""
        if not dialect.upstream_path.endswith("/chat/completions"):
            raise self._refusal("A seat answers /v1/chat/completions alone: use a harness that asks there.", 400)
        import openai

        # verifiers makes null of an empty answer, and frames a stream itself
        messages = [{**message, "content": message.get("content") or ""} for message in body["messages"]]
        whole = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        async with self._turn:
            self.spoke.append(session_id or "")
            try:
                raw: Any = await self._client.post(
                    "/chat/completions", cast_to=object, body={**whole, "messages": messages}
                )
            except openai.APIStatusError as error:
                self.spoke.pop()
                raise self._refusal(sentence_of(error), error.status_code) from error
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response

    async def relay_aux(self, dialect: Any, route: str, body: dict[str, Any], headers: Any = None) -> dict:
        raise self._refusal(f"A seat does not answer {route}.", 400)

    def _refusal(self, sentence: str, status: int) -> Exception:
        from verifiers.v1.errors import model_error

        self.refused = self.refused or sentence
        return model_error(sentence, status_code=status)


def sentence_of(error: Any) -> str:
    """The sentence of a refusal (`openai.APIStatusError`), without OpenAI's frame."""
    return error.body["message"] if isinstance(error.body, dict) and "message" in error.body else error.message


@cache
def install_chat() -> str:
    """The id of a harness for verifiers, which imports a harness by a name without dots.

    The harness asks the task's prompt and ends with the answer; an interaction asks again with the whole conversation.
    It runs in this process, and knows no tools.
    """
    import httpx
    import openai
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire

    class Chat(vf.Harness[vf.HarnessConfig]):
        APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
        EXECUTES_CODE = NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
        ) -> vf.ProgramResult:
            system, prompt = self.resolve_prompt(data)
            messages: list[Any] = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(message) for message in prompt or ()]
            http = httpx.AsyncClient(verify=_tls(), timeout=None)
            async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, http_client=http) as client:
                try:
                    await client.chat.completions.create(model=ctx.model, messages=messages)
                except openai.APIStatusError as error:  # a stop of the rollout, or a failure that its trace holds
                    return vf.ProgramResult(1, "", sentence_of(error))
            return vf.ProgramResult(0, "", "")

    module: Any = ModuleType(CHAT)
    module.Chat, module.__all__ = Chat, ["Chat"]
    sys.modules[CHAT] = module
    return CHAT


@cache
def _tls() -> ssl.SSLContext:
    """The settings of a client, made once: this takes longer (57 ms) than all else of an answer."""
    return ssl.create_default_context()
