"""Names -> our own parts, imported when they are asked for: listing what there is costs no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from psyco._src.core.errors import check_known


class Registry(Mapping[str, Any]):
    """What there is of one kind, by name; the places are `room.module:Name` below `psyco._src`."""

    def __init__(self, kind: str, places: Mapping[str, str]) -> None:
        self.kind, self.places = kind, dict(places)

    def __getitem__(self, name: str) -> Any:
        check_known(self.kind, name, self.places)
        module, _, attribute = self.places[name].partition(":")
        return getattr(import_module(f"psyco._src.{module}"), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places
