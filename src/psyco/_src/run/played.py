"""Episodes of a selection or a certificate that is under way, in one file: an interrupted one goes on where it was.

    psyco-played-1 <SHA-256 of everything below>
    {"run": ..., "code": ...}
    <safetensors: a tensor per column of episodes, named by what they are episodes of and by the column>

A file that is not as it should be, or that belongs to another configuration or to other code of the environment, is
not an error: its episodes are played again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src import durable
from psyco._src.errors import RunError
from psyco._src.reading import from_json, read_bytes
from psyco._src.rollout.episodes import Episodes
from psyco._src.run.folder import PLAYED

FORMAT = b"psyco-played-1"
EVERY = 2.0  # seconds between two writings


class Played:
    """Episodes by where they come from (`Source.identity`); left by an error, as a context, it saves.

    Args:
        folder: of the run; the file is there until the run has finished.
        run: what is run, the identity of its configuration.
        code: digest of the code of its environment; None: that is not known.
    """

    def __init__(self, folder: Path, run: str, code: str | None = None) -> None:
        self.path, self.due = folder / PLAYED, time.monotonic() + EVERY
        self.about = {"run": run, "code": code}
        self.episodes: dict[str, Episodes] = {}
        with suppress(RunError):
            self.episodes = self._load()

    def __enter__(self) -> Played:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # interrupted: the error that brought us here is what must be heard of
            with suppress(RunError):
                self.save()

    def get(self, identity: str) -> Episodes | None:
        """The first episodes of a source; None: there are none."""
        return self.episodes.get(identity)

    def put(self, identity: str, episodes: Episodes) -> None:
        """Keep them; written now and then, and when this is left."""
        self.episodes[identity] = episodes
        if time.monotonic() >= self.due:
            self.save()

    def save(self) -> None:
        """Write the file, if there is anything to write."""
        from safetensors.numpy import save

        if self.episodes:
            tensors = {
                f"{identity} {name}": np.asarray(column, order="C")
                for identity, episodes in self.episodes.items()
                for name, column in episodes._asdict().items()
                if column is not None
            }
            body = json.dumps(self.about, sort_keys=True).encode() + b"\n" + save(tensors)
            durable.write(self.path, FORMAT + b" " + durable.digest(body).encode() + b"\n" + body)
        self.due = time.monotonic() + EVERY

    def forget(self) -> None:
        """The run has finished: nobody needs them any more."""
        self.path.unlink(missing_ok=True)

    def _load(self) -> dict[str, Episodes]:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            first, _, body = read_bytes(self.path, "played episodes", inside=self.path.parent).partition(
                b"\n"
            )
            text, _, data = body.partition(b"\n")
            if (
                first != FORMAT + b" " + durable.digest(body).encode()
                or from_json(text, "its head") != self.about
            ):
                return {}
            columns: dict[str, dict[str, Any]] = {}
            for name, tensor in load(data).items():
                identity, _, column = name.partition(" ")
                columns.setdefault(identity, {})[column] = tensor
            return {identity: _episodes(each) for identity, each in columns.items()}
        except (ValueError, TypeError, KeyError, SafetensorError) as error:
            raise RunError(f"it can't be read: {error}") from None


def _episodes(columns: Mapping[str, NDArray[Any]]) -> Episodes:
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("its columns are of different lengths")
    return Episodes(**columns)  # type: ignore[arg-type]
