"""The protocol over HTTP, an application of ASGI. `pip install 'jaxmarl_llm[serve]'` brings starlette and uvicorn.

  /v1/models                                     the policies by name
  /v1/chat/completions  /v1/completions          answers, whole or streamed as server-sent events
  /v1/episodes/EPISODE/SEAT/...                  the same three for a seat of an episode
  /health  /metrics                              is it up; counters in the text format of Prometheus

A client that goes away frees its slots. In process, `httpx.ASGITransport(app)` answers while `service.running` is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxmarl_llm.serving import openai, replies
from jaxmarl_llm.serving.service import Choice, Refused, Service, running

SECONDS_TO_READ = 30  # for the body of a request
DONE = "data: [DONE]\n\n"

Handler = Callable[[Request], Awaitable[ASGIApp]]


def create(service: Service, api_key: str | None = None) -> Starlette:
    """The application of a service, which runs while the application does. With `api_key` every client must send it.

    In process without a lifespan, `service.running` has to be open.
    """
    created = int(time.time())

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with running(service):
            yield

    async def list_models(request: Request) -> Response:
        names = sorted(service.models)
        if "seat" in request.path_params:
            names = [_seat_model(service, request)]
        return JSONResponse(replies.models(names, created))

    async def chat(request: Request) -> ASGIApp:
        return await _answer(service, request, openai.read_chat)

    async def complete(request: Request) -> ASGIApp:
        return await _answer(service, request, openai.read_completion)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def show_metrics(request: Request) -> Response:
        return PlainTextResponse(metrics(service), media_type="text/plain; version=0.0.4")

    routes = [Route("/health", health), Route("/metrics", _guard(show_metrics, api_key))]
    for start in ("/v1", "/v1/episodes/{episode}/{seat}"):
        routes.append(Route(f"{start}/models", _guard(list_models, api_key)))
        routes.append(Route(f"{start}/chat/completions", _guard(chat, api_key), methods=["POST"]))
        routes.append(Route(f"{start}/completions", _guard(complete, api_key), methods=["POST"]))
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refuse_route})


def metrics(service: Service) -> str:
    """Counters by engine in the text format of Prometheus. An engine is named by its first policy."""
    lines = []
    for name, kind, help_text, value in (
        ("calls_total", "counter", "Calls that got a slot.", lambda engine: engine.calls),
        ("waiting", "gauge", "Calls that wait for a slot.", lambda engine: len(engine.waiting)),
        ("tokens_read_total", "counter", "Tokens of prompts that were computed.", lambda engine: engine.tokens_read),
        ("tokens_said_total", "counter", "Tokens of answers.", lambda engine: engine.tokens_said),
        ("places_total", "counter", "Tokens that all slots could have said meanwhile.", lambda engine: engine.places),
        ("slot_utilisation", "gauge", "Share of slots that spoke, over all runs.", lambda engine: engine.utilisation),
    ):
        lines += [f"# HELP jaxmarl_llm_{name} {help_text}", f"# TYPE jaxmarl_llm_{name} {kind}"]
        for engine in service.engines:
            first = next(model for model, served in service.models.items() if served.engine is engine)
            label = first.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            lines.append(f'jaxmarl_llm_{name}{{engine="{label}"}} {value(engine):g}')
    return "\n".join(lines) + "\n"


def _guard(handler: Handler, api_key: str | None) -> Handler:
    """A handler behind the key; its errors become OpenAI's records."""

    async def handle(request: Request) -> ASGIApp:
        try:
            if api_key is not None:
                given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
                if not hmac.compare_digest(given, api_key.encode()):
                    raise Refused(
                        "The API key is missing or wrong: send Authorization: Bearer KEY.", 401, "invalid_api_key"
                    )
            return await handler(request)
        except Refused as refused:
            return _error(refused)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception:
            return _error(_log_failure())

    return handle


def _log_failure() -> Refused:
    logging.getLogger(__name__).exception("A request failed.")
    return Refused("The server failed, and the reason is in its log.", 500)


def _error(refused: Refused) -> Response:
    return JSONResponse(replies.error(refused), refused.status)


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"There is no {request.method} {request.url.path[:100]} here."
    return JSONResponse(replies.error(Refused(sentence, error.status_code)), error.status_code, error.headers)


def _seat_model(service: Service, request: Request) -> str:
    """The policy of the seat that a path names. Raises Refused if there is none."""
    episode, seat = request.path_params["episode"], request.path_params["seat"]
    return service.seat(episode, seat).model


async def _body(request: Request) -> bytes:
    """The body of a request. Raises Refused for one that is no JSON, too large or too slow."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("A request is JSON: send Content-Type: application/json.", 415)  # a page cannot send it unasked
    parts, size = [], 0
    try:
        async with asyncio.timeout(SECONDS_TO_READ):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > openai.MOST_BYTES:
                    raise Refused(f"The body has more than {openai.MOST_BYTES} bytes.", 413)
    except TimeoutError:
        raise Refused(f"The body did not come within {SECONDS_TO_READ} seconds.", 408) from None
    return b"".join(parts)


async def _answer(service: Service, request: Request, read: Callable[[dict[str, Any]], openai.Asked]) -> ASGIApp:
    """Answers a request, whole or as a stream. An error before the first token is no stream."""
    asked = read(openai.read_json(await _body(request)))
    episode, seat = (request.path_params.get(name) for name in ("episode", "seat"))
    model = asked.request.model if seat is None else _seat_model(service, request)
    parts: asyncio.Queue[tuple[int, Choice] | None] = asyncio.Queue()
    said = (lambda index, choice: parts.put_nowait((index, choice))) if asked.stream else None
    task = asyncio.create_task(service.answer(asked.request, episode, seat, said))
    task.add_done_callback(lambda _: parts.put_nowait(None))
    gone = asyncio.create_task(_listen(request))
    first = asyncio.create_task(parts.get())
    try:
        await asyncio.wait((first, gone), return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            raise ClientDisconnect
        part = first.result()
        if part is None:
            task.result()  # raises what it raised
        writer = replies.Writer(asked, model, service.models[model].engine.tokenizer)
        if asked.stream:
            return _send_stream(task, _stream(task, parts, part, writer))
        return JSONResponse(writer.whole(task.result()))
    except BaseException:
        task.cancel()  # frees its slots
        raise
    finally:
        first.cancel()
        gone.cancel()


async def _listen(request: Request) -> None:
    """Returns when the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _send_stream(task: asyncio.Task[list[Choice]], events: AsyncIterator[str]) -> ASGIApp:
    """A response of these events. The task ends with it, also if the client went before the first."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await StreamingResponse(events, media_type="text/event-stream")(scope, receive, send)
        finally:
            task.cancel()

    return respond


async def _stream(
    task: asyncio.Task[list[Choice]],
    parts: asyncio.Queue[tuple[int, Choice] | None],
    part: tuple[int, Choice] | None,
    writer: replies.Writer,
) -> AsyncIterator[str]:
    """The chunks of the answers as they are said, from `part` on."""
    try:
        while part is not None:
            if (chunk := writer.chunk(*part, ended=False)) is not None:
                yield _event(chunk)
            part = await parts.get()
        choices = task.result()
        for index, choice in enumerate(choices):
            yield _event(writer.chunk(index, choice, ended=True))
        if writer.asked.usage:
            yield _event(writer.last(choices))
        yield DONE
    except Refused as refused:
        yield _event(replies.error(refused))
    except Exception:
        yield _event(replies.error(_log_failure()))


def _event(record: dict[str, Any] | None) -> str:
    return f"data: {json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n\n"
