"""Rotary embeddings: their settings, with the names of config.json, and frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np


def positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of full or of sliding layers, with the names of config.json's rope_parameters.

    Linear scaling: https://arxiv.org/abs/2306.15595, YaRN: https://arxiv.org/abs/2309.00071, llama3: its release.
    "proportional" has the frequencies of a whole head and sets all but the first to 0 (Gemma 4).
    """

    rope_theta: float = 10000.0
    rope_type: Literal["default", "linear", "llama3", "yarn", "longrope", "proportional"] = "default"
    factor: float = 1.0  # context length over that of pretraining; every type but default and proportional
    original_max_position_embeddings: int = 8192  # llama3, yarn, longrope: the context of pretraining
    low_freq_factor: float = 1.0  # llama3: wavelengths above original / low are stretched fully,
    high_freq_factor: float = 4.0  # wavelengths below original / high are not
    beta_fast: float = 32.0  # yarn: turns within the original context above which a frequency is kept,
    beta_slow: float = 1.0  # and below which it is stretched fully
    attention_factor: float | None = None  # yarn, longrope: scale of cosine and sine; None: yarn's 0.1 ln(factor) + 1,
    # longrope's sqrt(1 + ln(factor) / ln(original))
    partial_rotary_factor: float = (
        1.0  # the share of a head that is rotated: of each half if proportional, else its start
    )
    short_factor: tuple[float, ...] = ()  # longrope: a divisor of each frequency up to the original context,
    long_factor: tuple[float, ...] = ()  # and past it

    def __post_init__(self):
        numbers = [(name, value) for name, value in vars(self).items() if name != "rope_type" and value is not None]
        pairs = [(name, x) for name, value in numbers for x in (value if isinstance(value, tuple) else (value,))]
        wrong = [f"{name} {value!r}" for name, value in pairs if not positive(value)]
        if wrong:
            raise ValueError(f"Rotary embeddings need positive numbers, got {', '.join(wrong[:4])}.")
        if self.partial_rotary_factor > 1:
            raise ValueError(f"partial_rotary_factor is at most 1, got {self.partial_rotary_factor!r}.")
        if self.rope_type == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"rope_theta must be above 1 for rope_type yarn, got {self.rope_theta!r}.")
        if self.rope_type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor must be above low_freq_factor, got {self.high_freq_factor!r} and "
                f"{self.low_freq_factor!r}."
            )
        if self.rope_type == "longrope" and self.original_max_position_embeddings == 1:
            raise ValueError("original_max_position_embeddings must be above 1 for rope_type longrope, got 1.")

    def rotated_dims(self, head_dim: int) -> int:
        """The number of dimensions of a head that have angles, which are 0 for a part of them if proportional."""
        return head_dim if self.rope_type == "proportional" else int(head_dim * self.partial_rotary_factor)

    def frequencies(self, head_dim: int) -> tuple[np.ndarray, float]:
        """(radians per position float32 [rotated / 2], scale of cosine and sine, 1 except for yarn and longrope).

        For longrope the radians are those within the original context.
        """
        head_dim = self.rotated_dims(head_dim)
        half = head_dim // 2
        plain = 1.0 / self.rope_theta ** (np.arange(half) / half)
        if self.rope_type == "default":
            return plain.astype(np.float32), 1.0
        if self.rope_type == "proportional":
            turned = np.arange(half) < int(self.partial_rotary_factor * head_dim // 2)
            return np.where(turned, plain, 0).astype(np.float32), 1.0
        if self.rope_type == "linear":
            return (plain / self.factor).astype(np.float32), 1.0
        original = self.original_max_position_embeddings
        if self.rope_type == "longrope":
            scale = self.attention_factor
            if scale is None:
                scale = math.sqrt(1 + math.log(self.factor) / math.log(original)) if self.factor > 1 else 1.0
            return (plain / np.asarray(self.short_factor)).astype(np.float32), scale
        if self.rope_type == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            keep = np.clip((original * plain / (2 * np.pi) - low) / (high - low), 0, 1)  # turns in the original context
            return ((1 - keep) * plain / self.factor + keep * plain).astype(np.float32), 1.0

        def dimension(turns: float) -> float:
            return half * math.log(original / (turns * 2 * math.pi)) / math.log(self.rope_theta)

        first = max(math.floor(dimension(self.beta_fast)), 0)
        last = min(math.ceil(dimension(self.beta_slow)), head_dim - 1)
        stretched = np.clip((np.arange(half) - first) / max(last - first, 0.001), 0, 1)
        frequencies = stretched * plain / self.factor + (1 - stretched) * plain
        scale = self.attention_factor
        if scale is None:
            scale = 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0
        return frequencies.astype(np.float32), scale
