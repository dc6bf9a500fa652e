"""Reader of a GGUF file's metadata and tensors, safe for malformed files.

The layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) is a magic, a version, counts, keys with values,
the name, shape, type and offset of every tensor, and the tensors. Every length is checked against the rest of the file
before anything is read or allocated. Work and memory are therefore bounded by the file's length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxmarl_llm.text.refusals import quote

MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), "general.alignment"
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""{type of a value: its NumPy type}."""
STRING, ARRAY = 8, 9
MOST_AXES = 4


class GgufTensor(NamedTuple):
    shape: tuple[int, ...]  # in NumPy's order, the reverse of the stored one
    kind: int  # ggml's number of the data type
    data: np.ndarray  # uint8 [rows, bytes]; a row is the last axis; mapped into memory, not read


class Header(NamedTuple):
    fields: dict[str, Any]  # numbers, strings, and lists of them
    tensors: dict[str, GgufTensor]


def read_header(file: Path, blocks: Mapping[int, tuple[int, int]]) -> Header:
    """The metadata and tensors of a GGUF file, by name. `blocks` gives (weights, bytes) of a block of each data type.

    As in llama.cpp, a tensor must begin at the padded end of the tensor before it, and the last one must end the file.
    Raises ValueError, without the file's name, for a malformed file.
    """
    cursor = _Cursor(np.memmap(file, np.uint8, "r"))
    if (magic := cursor.take(4).tobytes()) != MAGIC:
        raise ValueError(f"it begins with {magic!r}, not {MAGIC!r}")
    version, tensors, keys = cursor.number("<u4"), cursor.number("<u8"), cursor.number("<u8")
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}, not 2 or 3 in little-endian order")
    fields: dict[str, Any] = {}
    for _ in range(keys):
        name = cursor.text()
        if name in fields:
            raise ValueError(f"the key {quote(name)} is there twice")
        fields[name] = cursor.value(cursor.number("<u4"))
    infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(tensors):
        name = cursor.text()
        if name in infos:
            raise ValueError(f"the tensor {quote(name)} is there twice")
        axes = cursor.number("<u4")
        if not 1 <= axes <= MOST_AXES:
            raise ValueError(f"the tensor {quote(name)} has {axes} axes")
        shape = tuple(cursor.number("<u8") for _ in range(axes))[::-1]
        infos[name] = shape, cursor.number("<u4"), cursor.number("<u8")
    align = fields.get(ALIGNMENT, 32)
    if not isinstance(align, int) or isinstance(align, bool) or not 0 < align <= 1 << 20 or align & (align - 1):
        raise ValueError(f"{ALIGNMENT} is {quote(align)}, not a power of two")
    begin, wanted = _round_up(cursor.at, align), 0
    loaded = {}
    for name, (shape, kind, offset) in infos.items():
        if kind not in blocks:
            raise ValueError(f"the tensor {quote(name)} is of the type {kind}, which is not known")
        weights, size = blocks[kind]
        if shape[-1] % weights:
            raise ValueError(f"the tensor {quote(name)} has rows of {shape[-1]}, not a multiple of {weights}")
        rows, row = math.prod(shape[:-1]), shape[-1] // weights * size
        if offset != wanted:
            raise ValueError(f"the tensor {quote(name)} begins at {offset}, where the ones before it end at {wanted}")
        if not rows * row or begin + offset + rows * row > len(cursor.data):
            raise ValueError(f"the tensor {quote(name)} of shape {shape} does not lie within the file")
        data = cursor.data[begin + offset :][: rows * row].reshape(rows, row)
        loaded[name] = GgufTensor(shape, kind, data)
        wanted = _round_up(wanted + rows * row, align)
    if len(cursor.data) > begin + wanted:
        raise ValueError(f"{len(cursor.data) - begin - wanted} bytes after the last tensor belong to none")
    return Header(fields, loaded)


class _Cursor:
    """A read position in data uint8 [n]. Raises ValueError for a read beyond the end."""

    def __init__(self, data: np.ndarray):
        self.data, self.at = data, 0

    def take(self, n: int) -> np.ndarray:
        if n > len(self.data) - self.at:
            raise ValueError(f"it ends at {len(self.data)}, before the {n} bytes that belong at {self.at}")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, dtype: str) -> Any:
        return self.numbers(dtype, 1)[0]

    def numbers(self, dtype: str, n: int) -> list:
        return self.take(n * np.dtype(dtype).itemsize).view(dtype).tolist()

    def text(self) -> str:
        begin = self.at
        try:
            return self.take(self.number("<u8")).tobytes().decode()
        except UnicodeDecodeError:
            raise ValueError(f"the text at {begin} is no UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(self._dtype(kind))
        inner, n = self.number("<u4"), self.number("<u8")
        if inner != STRING:
            return self.numbers(self._dtype(inner), n)
        if 8 * n > len(self.data) - self.at:
            raise ValueError(f"it ends before the {n} texts that belong at {self.at}")
        return [self.text() for _ in range(n)]

    def _dtype(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise ValueError(f"the value before {self.at} is of the type {kind}, which is not known")
        return NUMBERS[kind]


def _round_up(size: int, align: int) -> int:
    return -(-size // align) * align
