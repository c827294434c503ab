"""Add pages for linked files outside of docs/, so that links to files of the repository also work on the site.

`[corridor](../examples/corridor.py)` becomes a link to a page that shows this file. The files in `PROJECT`, such as
CONTRIBUTING.md, have their own place in the navigation.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PROJECT = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changes.md",
    "SECURITY.md": "project/security.md",
}
LANGUAGES = {".py": "python", ".json": "json", ".props": "prism", ".toml": "toml", ".lark": "text"}
LINK = re.compile(r"(?<=\]\()(?!\w+:|/|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
ORIGINS = {page: origin for origin, page in PROJECT.items()}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of `PROJECT`, and one for every other linked file."""
    for origin, page in PROJECT.items():
        text = (ROOT / origin).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for file in list(files.documentation_pages()):
        for target, _ in LINK.findall(file.content_string):
            where = _repository_path(file.src_uri, target)
            page = _page_of(where)
            if page.startswith("files/") and (ROOT / where).is_file() and page not in files.src_uris:
                files.append(File.generated(config, page, content=_shown(where)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Redirect links to these pages."""
    here = page.file.src_uri

    def replaced(match: re.Match[str]) -> str:
        where = _repository_path(here, match[1])
        if here not in ORIGINS and where.startswith("docs/"):
            return match[0]
        return posixpath.relpath(_page_of(where), posixpath.dirname(here)) + (match[2] or "")

    return LINK.sub(replaced, markdown)


def _repository_path(page: str, target: str) -> str:
    """Return the target of a link, relative to the root of the repository."""
    folder = posixpath.dirname(ORIGINS.get(page, f"docs/{page}"))
    return posixpath.normpath(posixpath.join(folder, target))


def _page_of(where: str) -> str:
    """Return the page that shows a file of the repository."""
    if where.startswith("docs/"):
        return where.removeprefix("docs/")
    return PROJECT.get(where, f"files/{where}.md")


def _shown(where: str) -> str:
    """Make a page with the text of a file."""
    language = LANGUAGES.get(posixpath.splitext(where)[1], "text")
    text = (ROOT / where).read_text(encoding="utf-8")
    head = "---\nsearch:\n  exclude: true\n---\n\n"
    return f"{head}# {posixpath.basename(where)}\n\n`{where}`\n\n~~~~ {language}\n{text}~~~~\n"
