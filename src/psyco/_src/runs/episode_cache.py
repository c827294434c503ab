"""Episodes that were played lately, in a file: what an interruption came between goes on where it was.

    psyco-played-2 <HMAC-SHA256 of everything below, with a key of this user on this machine>
    {"run": ..., "code": ..., "versions": ..., "episodes": [[<name of an episode>, ...], ...]}
    <safetensors: for each of these lists, of episodes with the same columns, a tensor per column>

These episodes may become part of a certificate. So a file that somebody else has written, that is not as it should be,
or that belongs to another configuration, to other code of the environment or to other versions is not used: its
episodes are played again. That is no error. And since nobody knows all that a simulator depends on, some of them are
played again in any case (`HostSampler`), and all if these come out differently.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import LIMITS, from_json, read_bytes
from psyco._src.rollout.episodes import Episodes, Trace, joined
from psyco._src.rollout.obs_stats import ObsStats
from psyco._src.runs.local_key import secret
from psyco._src.core.versions import versions

FORMAT, KIND = b"psyco-played-2", "played episodes"
EVERY = 2.0  # seconds between two writings
SHARE = 0.01  # of the time, at most
NAME = 100  # bytes that the name of an episode takes, and more
NESTED = {"trace": Trace, "seen": ObsStats}  # columns that have columns


logger = logging.getLogger(__name__)


class FileEpisodeCache:
    """A `Memory` of episodes that is written now and then; left by an error, as a context, it saves.

    Args:
        path: of the file, which is there until `forget`.
        run: what is run, the identity of its configuration.
        code: digest of the code of its environment; None: that is not known, and nothing is taken over.
        most: how many are kept, of which the oldest goes first; None: as many as a file may hold.
    """

    def __init__(self, path: Path, run: str, code: str | None = None, *, most: int | None = None) -> None:
        self.path, self.most, self.seconds = path, most, math.inf
        self.about = {"run": run, "code": code, "versions": versions()}
        self.episodes: dict[str, Episodes] = {}
        self.size, self.due = 0, 0.0  # bytes of all of them, and when they are written next
        with suppress(RunError):
            for name, episode in self._load():
                self._keep(name, episode)
        self.proven = not self.episodes
        if self.episodes:
            logger.info("%d episodes from before the interruption are known", len(self.episodes))
        self.rest()

    def __enter__(self) -> FileEpisodeCache:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # interrupted: the error that brought us here is what must be heard of
            with suppress(RunError):
                self.save()

    def get(self, identity: str) -> Episodes | None:
        """The one episode that is called so; None: it is not there."""
        return self.episodes.get(identity)

    def put(self, identity: str, episode: Episodes) -> None:
        """Keep one episode; written now and then, and when this is left."""
        self._keep(identity, episode)
        if time.monotonic() >= self.due:
            self.save()

    def clear(self) -> None:
        """All of them were played by another simulator."""
        logger.warning(
            "the environment does not do what it did before the interruption: episodes are played again"
        )
        self.episodes, self.size = {}, 0

    def rest(self) -> None:
        """Nothing needs to be written soon: what was played is part of something else that is kept."""
        self.due = max(self.due, time.monotonic() + EVERY)

    def save(self) -> None:
        """Write the file, if there is anything to write."""
        from safetensors.numpy import save

        began = time.monotonic()
        if self.episodes:
            alike: dict[Any, list[str]] = {}
            for name, episode in self.episodes.items():
                alike.setdefault(jax.tree.structure(episode), []).append(name)
            lists = list(alike.values())
            tensors = {
                f"{number} {column}": np.asarray(values, order="C")
                for number, names in enumerate(lists)
                for column, values in _columns(joined([self.episodes[name] for name in names]))
            }
            head = json.dumps(self.about | {"episodes": lists}, sort_keys=True).encode()
            body = head + b"\n" + save(tensors)
            atomic_io.write(self.path, _sealed(body) + b"\n" + body)
        now = time.monotonic()
        self.due = now + max(EVERY, (now - began) / SHARE)

    def forget(self) -> None:
        """What they were played for is kept elsewhere: nobody needs them any more."""
        with suppress(OSError):  # it is in nobody's way
            self.path.unlink(missing_ok=True)

    def _keep(self, name: str, episode: Episodes) -> None:
        self.size += _bytes(episode) - (_bytes(self.episodes[name]) if name in self.episodes else 0)
        self.episodes[name] = episode
        while self.size > 0.9 * LIMITS[KIND] or (self.most is not None and len(self.episodes) > self.most):
            oldest = next(iter(self.episodes))
            self.size -= _bytes(self.episodes.pop(oldest))

    def _load(self) -> list[tuple[str, Episodes]]:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            first, _, body = read_bytes(self.path, KIND, inside=self.path.parent).partition(b"\n")
            text, _, data = body.partition(b"\n")
            if self.about["code"] is None or not hmac.compare_digest(first, _sealed(body)):
                return []
            head = from_json(text, "its head")
            lists = head.pop("episodes")
            if head != self.about:
                return []
            found: list[dict[str, NDArray[Any]]] = [{} for _ in lists]
            for key, values in load(data).items():
                number, _, column = key.partition(" ")
                found[int(number)][column] = values
            return [
                each
                for names, columns in zip(lists, found, strict=True)
                for each in zip(names, _one_by_one(columns, len(names)), strict=True)
            ]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, SafetensorError) as error:
            raise RunError(f"it can't be read: {error}") from None


def _sealed(body: bytes) -> bytes:
    return FORMAT + b" " + hmac.new(secret(), body, "sha256").hexdigest().encode()


def _bytes(episode: Episodes) -> int:
    return NAME + sum(column.nbytes for column in jax.tree.leaves(episode))


def _columns(episodes: Episodes) -> Iterator[tuple[str, Any]]:
    """Every column with its name; those in a column with a dot."""
    for name, values in episodes._asdict().items():
        if name in NESTED and values is not None:
            yield from ((f"{name}.{inner}", x) for inner, x in values._asdict().items() if x is not None)
        elif values is not None:
            yield name, values


def _one_by_one(columns: Mapping[str, NDArray[Any]], count: int) -> list[Episodes]:
    """The other way round, of so many episodes."""
    if any(len(values) != count for values in columns.values()):
        raise ValueError("its columns are of different lengths")
    plain = {name: values for name, values in columns.items() if "." not in name}
    nested: dict[str, Any] = {}
    for outer, kind in NESTED.items():
        own = {name.partition(".")[2]: x for name, x in columns.items() if name.startswith(f"{outer}.")}
        if own:
            nested[outer] = kind(**own)
    whole = Episodes(**plain, **nested)  # type: ignore[arg-type]
    return [jax.tree.map(lambda column, i=i: column[i : i + 1].copy(), whole) for i in range(count)]
