"""The README as a package index shows it, made when a wheel or sdist is built.

An index knows no files beside the README. So links to them become plain words, and what stands between
`<!-- repository -->` and `<!-- /repository -->`, pictures above all, is left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ONLY_IN_THE_REPOSITORY = re.compile(r"<!-- repository -->\n.*?<!-- /repository -->\n+", re.DOTALL)
RELATIVE_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!\w+:)[^)]+\)")


def on_an_index(readme: str) -> str:
    """Return the text without links, pictures and parts that are useless on a package index."""
    return RELATIVE_LINK.sub(r"\1", ONLY_IN_THE_REPOSITORY.sub("", readme))


class CustomMetadataHook(MetadataHookInterface):
    """Hatchling looks for this name."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put in the README."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": on_an_index(text)}
