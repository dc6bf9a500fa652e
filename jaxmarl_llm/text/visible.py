"""Texts of games and models without characters that a terminal or a page would hide or obey."""

import re

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """The text with [U+NNNN] in place of control characters, invisible ones and those that change the direction."""
    return HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)
