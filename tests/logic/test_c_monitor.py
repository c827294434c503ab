"""Texts of a policy file inside of generated C stay inside of their comments."""

import re
from itertools import product

import pytest

from psyco._src.logic.c_monitor import c_comment

DANGEROUS = "*/\\?\n\r \x0b\x85\u2028a"  # every text of these characters up to length 4 is tried
TRIGRAPHS = {"=": "#", "/": "\\", "'": "^", "(": "[", ")": "]", "!": "|", "<": "{", ">": "}", "-": "~"}


def short_texts() -> list[str]:
    return ["".join(letters) for length in range(5) for letters in product(DANGEROUS, repeat=length)]


def comment_end(source: str) -> int | None:
    """Where the comment that begins `source` ends, after trigraphs and spliced lines as in C99 5.1.1.2."""
    source = re.sub(r"\?\?([=/'()!<>-])", lambda found: TRIGRAPHS[found[1]], source)
    source = re.sub(r"\\[ \t]*(\r\n|\n|\r)", "", source)
    assert source.startswith("/*")
    end = source.find("*/", 2)
    return None if end < 0 else len(source) - end - 2  # characters after it


def test_no_short_text_ends_a_comment_or_begins_another() -> None:
    wrong = []
    for text in short_texts():
        inside = c_comment(text)
        ended = comment_end(f"/*{inside} */ int x;") != len(" int x;")
        spread = "\n" in inside or "\r" in inside or "/*" in inside or not inside.isascii()
        if ended or spread:
            wrong.append(text)
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("G (2*x <= 3.5 | y/2 > -1)", "G (2 * x <= 3.5 | y/2 > -1)"),
        ("my_env:Courier-v1", "my_env:Courier-v1"),
        ("a\n\tb", "a b"),
        ("é?\\", "___"),
    ],
)
def test_ordinary_texts_stay_readable(text: str, shown: str) -> None:
    assert c_comment(text) == shown
