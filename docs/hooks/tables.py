r"""Unescape code in tables: Markdown requires `a \| b` there, and readers should see and copy `a | b`."""

from __future__ import annotations

import re
from typing import Any

CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
CODE = re.compile(r"<code>[^<]*</code>")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Remove the backslash before `|` in the code of table cells."""

    def plain(cell: re.Match[str]) -> str:
        return CODE.sub(lambda code: code[0].replace("\\|", "|"), cell[0])

    return CELL.sub(plain, html)
