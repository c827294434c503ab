r"""Code in tables: `a \| b` is how a table of Markdown has to write `a | b`, and not what a reader should copy."""

from __future__ import annotations

import re
from typing import Any

CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
CODE = re.compile(r"<code>[^<]*</code>")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Take the backslash away, in the code of cells alone."""

    def plain(cell: re.Match[str]) -> str:
        return CODE.sub(lambda code: code[0].replace("\\|", "|"), cell[0])

    return CELL.sub(plain, html)
