"""Console streams that stop no command: unencodable characters are replaced, output to a closed pipe is dropped."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Lasting:
    """A text stream that raises no OSError: after the first error, e.g. of a closed pipe, it writes to os.devnull."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())  # buffered text goes there too


def help_of(text: str) -> str:
    """A docstring as the description of a command: each example, a line `python -m ...`, is a paragraph of its own."""
    return text.replace("\npython -m", "\n\npython -m")


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """A context in which errors of stdin, stdout and stderr do not stop the command; closed streams stay closed.

    Characters that the console's encoding lacks are written as backslash escapes and read as U+FFFD. A command
    continues after its reader has closed the pipe, as `| head` does.
    """
    streams = sys.stdin, sys.stdout, sys.stderr
    for stream, errors in zip(streams, ("replace", "backslashreplace", "backslashreplace"), strict=True):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    for name, stream in zip(("stdout", "stderr"), streams[1:], strict=True):
        if stream is not None:
            setattr(sys, name, cast(TextIO, _Lasting(stream)))
    try:
        yield
    finally:
        for lasted in (sys.stdout, sys.stderr):
            if lasted is not None:
                lasted.flush()
        _, sys.stdout, sys.stderr = streams
