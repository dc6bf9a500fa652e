"""What a terminal would obey or hide is shown by number; every other text stays as it is."""

import unicodedata

from jaxmarl_llm.text.visible import visible


def test_controls_and_hidden_characters_are_numbers():
    assert visible("\x1b[31mred\x00") == "[U+001B][31mred[U+0000]"
    assert visible("a\u202eb\u2066c\u200bd\u2028e\ufefff") == "a[U+202E]b[U+2066]c[U+200B]d[U+2028]e[U+FEFF]f"
    shown = "tab\t, line\n, é, 日本, 🙂, <b>, [bold]"
    assert visible(shown) == shown


def test_no_control_and_no_turn_of_direction_is_left():
    for number in range(0x110000):
        sign = chr(number)
        if unicodedata.category(sign) == "Cc" and sign not in "\t\n":
            assert visible(sign) != sign, hex(number)
        if unicodedata.bidirectional(sign) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"):
            assert visible(sign) != sign, hex(number)
