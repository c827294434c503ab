"""A mapping from names to objects of this package that imports each object on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from psyco._src.core.errors import check_known


class Registry(Mapping[str, Any]):
    """Objects of one kind by name; listing the names imports nothing.

    Args:
        kind: the noun for error messages, e.g. "learner".
        paths: name -> `room.module:Name` below `psyco._src`.
    """

    def __init__(self, kind: str, paths: Mapping[str, str]) -> None:
        self.kind, self.paths = kind, dict(paths)

    def __getitem__(self, name: str) -> Any:
        check_known(self.kind, name, self.paths)
        module, _, attribute = self.paths[name].partition(":")
        return getattr(import_module(f"psyco._src.{module}"), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __contains__(self, name: object) -> bool:
        return name in self.paths
