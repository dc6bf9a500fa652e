"""Messages between policies with different tokenizers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from jaxmarl_llm.text.tokenizers import Tokenizer, speller


class Relay:
    """Translates messages from the tokens of one tokenizer to those of another, by their bytes.

    Bytes that are not UTF-8 become U+FFFD. A character that the listener has no tokens for becomes "?". The name of a
    control token arrives as plain text. Raises ValueError if the listener cannot write any text, as a symbol tokenizer.
    """

    def __init__(self, speaker: Tokenizer, listener: Tokenizer, width: int):
        if width < 1:
            raise ValueError(f"A relay needs a width of 1 or more, got {width}.")
        self.width, self._bytes, spell = width, speaker.token_bytes, speller(listener)
        # seats of a batch often say the same
        self._translate = lru_cache(maxsize=4096)(lambda message: spell(message.decode(errors="replace")))

    def __call__(self, tokens: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first n[r] of the speaker's tokens [R, L] as the listener's: tokens [R, width], n [R], cut [R], int32.

        `cut` counts the listener's tokens beyond `width`, which are dropped. Rows are right-padded with zeros.
        """
        rows = np.zeros((len(tokens), self.width), np.int32)
        lengths = np.zeros(len(tokens), np.int32)
        for row, (ids, length) in enumerate(zip(np.asarray(tokens).tolist(), np.asarray(n).tolist(), strict=True)):
            heard = self._translate(b"".join(self._bytes[index] or b"" for index in ids[:length]))
            rows[row, : len(heard)] = heard[: self.width]
            lengths[row] = len(heard)
        kept = np.minimum(lengths, self.width)
        return rows, kept, lengths - kept
