"""Texts of games and models as a terminal or a page can show them."""

import re

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """The text with control characters, and those that are invisible or turn the direction of text, by number."""
    return HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
