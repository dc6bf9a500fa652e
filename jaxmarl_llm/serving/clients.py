"""OpenAI's own client in front of a service, in the same process: requests pass the application without a socket."""

from __future__ import annotations

from urllib.parse import quote

import httpx
from openai import AsyncOpenAI

from jaxmarl_llm.serving.app import create
from jaxmarl_llm.serving.service import Service


class Clients:
    """Clients of a service's seats; `client(episode, seat)` is an `openai.AsyncOpenAI`."""

    def __init__(self, service: Service):
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(create(service)), timeout=None)

    def client(self, episode: str, seat: str) -> AsyncOpenAI:
        address = f"http://episodes/v1/episodes/{quote(episode)}/{quote(seat)}"
        return AsyncOpenAI(base_url=address, api_key="-", http_client=self._http, max_retries=0)
