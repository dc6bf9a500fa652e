"""Parts of `verifiers` with our policies in them: a client that asks a seat, and a harness without a process."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import httpx
import openai
import verifiers.v1 as vf
from verifiers.v1.clients import ModelContext
from verifiers.v1.dialects.chat import ChatDialect, message_to_wire
from verifiers.v1.errors import model_error
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Chat"]  # verifiers finds a harness as the one that its module exports
CHAT = "jaxmarl_llm_chat"
sys.modules.setdefault(CHAT, sys.modules[__name__])  # verifiers imports a harness by a name without dots


class SeatClient(vf.Client):
    """A client of verifiers that asks a seat through `client`.

    `spoke` holds the trace of each answer. Answers are given one at a time, so that their order is that of the
    episode's turns. `refused` is the sentence of the first refusal.
    """

    def __init__(self, client: openai.AsyncOpenAI):
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
    ) -> vf.Response:
        """The answer to a request of /v1/chat/completions. Raises ProviderError for one that the seat refuses."""
        if not isinstance(dialect, ChatDialect):
            raise model_error("A seat answers /v1/chat/completions alone: use a harness that asks there.", status_code=400)
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
                self.refused = self.refused or _sentence(error)
                raise model_error(_sentence(error), status_code=error.status_code) from error
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response


def _sentence(error: openai.APIStatusError) -> str:
    """The sentence of a refusal, without OpenAI's frame."""
    return error.body["message"] if isinstance(error.body, dict) and "message" in error.body else error.message


@cache
def _tls() -> ssl.SSLContext:
    """The settings of a client, made once: this takes longer (57 ms) than all else of an answer."""
    return ssl.create_default_context()


class ChatConfig(vf.HarnessConfig):
    id: str = CHAT


class Chat(vf.Harness[ChatConfig]):
    """Asks the task's prompt and ends with the answer; an interaction asks again with the whole conversation.

    It runs in this process, and knows no tools.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
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
            except openai.APIStatusError as error:  # a stop of the rollout, or the failure that it has recorded
                return ProgramResult(1, "", error.message)
        return ProgramResult(0, "", "")
