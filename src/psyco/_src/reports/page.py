"""The frame of all pages: one self-contained HTML file with its style, its script and its data.

Verdicts, tables and certificates are plain HTML, readable without scripts. `page.js` draws the charts and episodes of
a run from the JSON in the page. Jinja escapes every text of the templates; the script creates text nodes only.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, TypeAlias

from jinja2 import Environment
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from psyco._src.core.templates import template_environment
from psyco._src.reports.charts import element, series_class
from psyco._src.verification.theme import CSS

Sections: TypeAlias = dict[str, Markup]  # id of an element of the page -> its content
NO_CHART_DATA: dict[str, Any] = {"runs": [], "limits": {}}  # of a page whose script has nothing to draw


@cache
def _templates() -> Environment:
    found = template_environment("psyco._src.reports")
    found.globals["ui"] = _macros()
    return found


@cache
def _macros() -> Any:
    return template_environment("psyco._src.reports").get_template("macros.html").module


def render_sections(template: str, **values: Any) -> Sections:
    """Return the blocks of a template, one per section of the page."""
    found = _templates().get_template(template)
    context = found.new_context(values)
    return {name: Markup("".join(block(context))) for name, block in found.blocks.items()}


def render_page(title: str, sections: Sections, data: Mapping[str, Any] = NO_CHART_DATA, *, live: bool = False) -> str:
    """Return a whole page.

    Args:
        title: of the browser's window.
        sections: content of `top`, `certificate` and `details`; any of them may be missing.
        data: for the charts that the script draws.
        live: the page asks its server for updates.
    """
    values = {
        "title": title,
        "style": Markup(f":root {{{CSS}}}\n" + _file("page.css")),
        "script": Markup(_file("page.js")),
        "policy": content_policy(),
        "data": embed({**data, "live": live}),
        **dict.fromkeys(("top", "certificate", "details"), ""),
        **sections,
    }
    text = _templates().get_template("page.html").render(values)
    return text.encode(errors="replace").decode()  # the name of a folder may not be valid Unicode


def embed(data: Any) -> Markup:
    """Return JSON that is safe inside a script element: no text in it can end the element or start a comment."""
    return htmlsafe_json_dumps(data, allow_nan=False, separators=(",", ":"))


@cache
def content_policy() -> str:
    """Return the content security policy: run the script of the page only, connect to its own server only."""
    digest = b64encode(sha256(_file("page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


@cache
def _file(name: str) -> str:
    return (files("psyco._src.reports") / name).read_text(encoding="utf-8")


# ---- pieces of pages -------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table that scrolls where it is wider than the window; cells are escaped unless they are `Markup`."""
    found: Markup = _macros().table(heads, rows)
    return found


def badge(word: str, kind: str | None = None) -> Markup:
    """Return a verdict or state as a small badge; `kind` is its CSS class, by default the word in lower case."""
    return element("span", word, class_=f"badge small {word.lower() if kind is None else kind}")


def keyed(name: str, colour: int) -> Markup:
    """Return a name behind a sample of its colour in the charts."""
    return element("span", class_=f"key {series_class(colour)}") + name
