"""A cache of recent episodes in a file, so that an interrupted generation or certificate does not start over.

    psyco-episode-cache-1 <HMAC-SHA256 of everything below, with a key of this user on this machine>
    {"run": ..., "code": ..., "versions": ..., "episodes": [[<identity of an episode>, ...], ...]}
    <safetensors: for each of these lists, of episodes with the same columns, a tensor per column>

Cached episodes may become part of a certificate. So a file that another user has written, that is damaged, or that
belongs to another configuration, to other code of the environment or to other package versions is ignored, and its
episodes are played again; that is no error. And since a simulator may depend on more than that, some of the episodes
are played again in any case (`GymSampler`), and all of them if these come out differently. That is an error if some of
them were counted in a look: other episodes would be a second look for the price of one.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.core.files import SIZE_LIMITS, from_json, read_bytes
from psyco._src.core.provenance import package_versions
from psyco._src.rollout.episodes import Episodes, ObsStats, Trace, concatenate_episodes

FORMAT, KIND = b"psyco-episode-cache-1", "played episodes"
SAVE_EVERY = 2.0  # seconds
MAX_SAVE_SHARE = 0.01  # maximum part of the time that saving may take
IDENTITY_BYTES = 100  # an upper bound on the size of an episode's identity
KEY_BYTES = 32
NESTED = {"trace": Trace, "obs_stats": ObsStats}  # columns that are records of columns

logger = logging.getLogger(__name__)


class FileEpisodeCache:
    """An `EpisodeCache` in a file, saved at intervals; as a context manager it saves when an error ends the block.

    Args:
        path: the file; it exists until `delete`.
        run: identity of the run's configuration.
        code: hash of the environment's code; None: unknown, and the file is not read.
        max_episodes: maximum number of episodes, the oldest are dropped first; None: as many as a file may hold.
    """

    def __init__(self, path: Path, run: str, code: str | None = None, *, max_episodes: int | None = None) -> None:
        self.path, self.max_episodes, self.seconds_per_episode = path, max_episodes, math.inf
        self.header = {"run": run, "code": code, "versions": package_versions()}
        self.episodes: dict[str, Episodes] = {}
        self.size, self.due = 0, 0.0  # bytes of all episodes, time of the next save
        with suppress(RunError):
            for identity, episode in self._load():
                self._keep(identity, episode)
        self.verified = not self.episodes
        if self.episodes:
            logger.info("%d episodes from before the interruption are known", len(self.episodes))
        self.postpone_save()

    def __enter__(self) -> FileEpisodeCache:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            with suppress(RunError):  # the original error matters more
                self.save()

    def get(self, identity: str) -> Episodes | None:
        """Return one episode; None: it is not in the cache."""
        return self.episodes.get(identity)

    def put(self, identity: str, episode: Episodes) -> None:
        """Add one episode, and save the file if it is due."""
        self._keep(identity, episode)
        if time.monotonic() >= self.due:
            self.save()

    def clear(self) -> None:
        """Drop all episodes, since the simulator has changed; raise RunError if some were counted in a look."""
        if any(episode.digests is not None for episode in self.episodes.values()):
            raise RunError(
                "the environment does not do what it did before the interruption, when episodes of the certificate "
                "were already counted; this look cannot be repeated with other episodes. Start the run again in "
                "another folder; if the environment cannot repeat an episode, make it with seeded=False (--set "
                "seeded=false)"
            )
        logger.warning("the environment does not do what it did before the interruption: episodes are played again")
        self.episodes, self.size = {}, 0

    def postpone_save(self) -> None:
        """Postpone the next save: a checkpoint contains the results of the episodes."""
        self.due = max(self.due, time.monotonic() + SAVE_EVERY)

    def save(self) -> None:
        """Write the file, if there are episodes."""
        from safetensors.numpy import save

        began = time.monotonic()
        if self.episodes:
            by_structure: dict[Any, list[str]] = {}
            for identity, episode in self.episodes.items():
                by_structure.setdefault(jax.tree.structure(episode), []).append(identity)
            lists = list(by_structure.values())
            tensors = {
                f"{number} {column}": np.asarray(values, order="C")
                for number, identities in enumerate(lists)
                for column, values in _columns(concatenate_episodes([self.episodes[i] for i in identities]))
            }
            header = json.dumps(self.header | {"episodes": lists}, sort_keys=True).encode()
            body = header + b"\n" + save(tensors)
            files.write(self.path, _seal(body) + b"\n" + body)
        now = time.monotonic()
        self.due = now + max(SAVE_EVERY, (now - began) / MAX_SAVE_SHARE)

    def delete(self) -> None:
        """Delete the file, since the results of its episodes are stored elsewhere."""
        with suppress(OSError):  # a leftover file does no harm
            self.path.unlink(missing_ok=True)

    def _keep(self, identity: str, episode: Episodes) -> None:
        self.size += _bytes(episode) - (_bytes(self.episodes[identity]) if identity in self.episodes else 0)
        self.episodes[identity] = episode
        most = math.inf if self.max_episodes is None else self.max_episodes
        while self.size > 0.9 * SIZE_LIMITS[KIND] or len(self.episodes) > most:
            oldest = next(iter(self.episodes))
            self.size -= _bytes(self.episodes.pop(oldest))

    def _load(self) -> list[tuple[str, Episodes]]:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            first, _, body = read_bytes(self.path, KIND, inside=self.path.parent).partition(b"\n")
            text, _, data = body.partition(b"\n")
            if self.header["code"] is None or not hmac.compare_digest(first, _seal(body)):
                return []
            header = from_json(text, "its header")
            lists = header.pop("episodes")
            if header != self.header:
                return []
            columns: list[dict[str, NDArray[Any]]] = [{} for _ in lists]
            for key, values in load(data).items():
                number, _, column = key.partition(" ")
                columns[int(number)][column] = values
            return [
                pair
                for identities, own in zip(lists, columns, strict=True)
                for pair in zip(identities, _split(own, len(identities)), strict=True)
            ]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, SafetensorError) as error:
            raise RunError(f"it can't be read: {error}") from None


def _seal(body: bytes) -> bytes:
    return FORMAT + b" " + hmac.new(local_key(), body, "sha256").hexdigest().encode()


@cache
def local_key() -> bytes:
    """Return the key of this user on this machine, made on first use; if it can't be stored, one for this process."""
    with suppress(RunError, OSError, RuntimeError):  # there may be no home
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        path = Path(base) / "psyco" / "key"
        with suppress(RunError):
            if len(found := read_bytes(path, "key")) == KEY_BYTES:
                return found
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = secrets.token_bytes(KEY_BYTES)
        files.write(path, made)
        path.chmod(0o600)
        return made
    return secrets.token_bytes(KEY_BYTES)


def _bytes(episode: Episodes) -> int:
    return IDENTITY_BYTES + sum(column.nbytes for column in jax.tree.leaves(episode))


def _columns(episodes: Episodes) -> Iterator[tuple[str, Any]]:
    """Yield every column with its name; the columns of a record as `record.column`."""
    for name, values in episodes._asdict().items():
        if name in NESTED and values is not None:
            yield from ((f"{name}.{inner}", x) for inner, x in values._asdict().items() if x is not None)
        elif values is not None:
            yield name, values


def _split(columns: Mapping[str, NDArray[Any]], count: int) -> list[Episodes]:
    """Return the episodes with these columns, one by one; the inverse of `_columns`."""
    if any(len(values) != count for values in columns.values()):
        raise ValueError("its columns are of different lengths")
    plain = {name: values for name, values in columns.items() if "." not in name}
    nested: dict[str, Any] = {}
    for outer, record in NESTED.items():
        inner = {name.partition(".")[2]: x for name, x in columns.items() if name.startswith(f"{outer}.")}
        if inner:
            nested[outer] = record(**inner)
    whole = Episodes(**plain, **nested)  # type: ignore[arg-type]
    return [jax.tree.map(lambda column, i=i: column[i : i + 1].copy(), whole) for i in range(count)]
