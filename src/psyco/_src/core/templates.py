"""HTML templates of a package: Jinja2 with automatic escaping."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def template_environment(package: str) -> Environment:
    """Return the templates in the folder `templates` of a package.

    Every value in a template is escaped unless it is `Markup`; an undefined name is an error.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader(package),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
