"""The platform that programs are built for: this process's, or in a plan one that need not be here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax

_platform: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """JAX's name of the platform, such as "cpu"; in a plan "cpu" or "accelerator"."""
    return _platform.get() or jax.default_backend()


@contextlib.contextmanager
def as_on(platform: str) -> Iterator[None]:
    """A context in which programs are built as on that platform."""
    token = _platform.set(platform)
    try:
        yield
    finally:
        _platform.reset(token)
