"""Checkpoints: where learning stood, in one file that knows whether it is intact.

    psyco-checkpoint-1 <SHA-256 of everything below>
    {"generation": ..., "config": ..., ...}
    <safetensors: one tensor per leaf of the snapshot, named by its path>

Nothing in such a file is ever executed: what the tensors are put into is the structure of `template`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import check_kinds, from_json, read_bytes

FORMAT = b"psyco-checkpoint-1"
FOLDER, SUFFIX = "checkpoints", ".ckpt"
KEPT = 3  # the newest may be damaged, and the one before it too


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says of itself."""

    generation: int  # generations done
    identity: str  # hash of the configuration, `Config.identity`
    config: str  # the configuration itself, as text, should config.toml get lost
    created: int  # when the run began, in seconds since 1970
    metrics_size: int  # bytes of metrics.csv that belong to it
    metrics_digest: str  # and their SHA-256


@dataclass(frozen=True)
class Checkpoint:
    """A file that was read and found intact."""

    about: CheckpointInfo
    tensors: dict[str, NDArray[Any]]

    def restore(self, template: Any) -> Any:
        """The tree of arrays, in the structure of `template`, whose own values don't matter.

        The first axis of an array may have another length, as that of a growing list has.
        """
        leaves, structure = jax.tree.flatten_with_path(template)
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
        if set(names) != set(self.tensors):
            raise RunError("it holds the state of another learner")
        for name, (_, leaf) in zip(names, leaves, strict=True):
            want, have = np.asarray(leaf), self.tensors[name]
            if (want.dtype, want.ndim, want.shape[1:]) != (have.dtype, have.ndim, have.shape[1:]):
                raise RunError(
                    f"{name} is {have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}: "
                    "the state of another learner"
                )
        return jax.tree.unflatten(structure, [self.tensors[name] for name in names])


def save_checkpoint(run: Path, about: CheckpointInfo, tree: Any) -> None:
    """Write a checkpoint durably, then forget the oldest ones."""
    from safetensors.numpy import save

    leaves, _ = jax.tree.flatten_with_path(tree)
    tensors = {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in leaves}
    body = json.dumps(asdict(about), sort_keys=True).encode() + b"\n" + save(tensors)
    folder = run / FOLDER
    atomic_io.write(
        folder / f"{about.generation:09d}{SUFFIX}",
        FORMAT + b" " + atomic_io.digest(body).encode() + b"\n" + body,
    )
    for old in list(checkpoint_files(run))[KEPT:]:
        old.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; RunError says what is wrong with it."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        first, _, body = read_bytes(path, "checkpoint", inside=path.parents[1]).partition(b"\n")
        head, _, checksum = first.partition(b" ")
        if head != FORMAT:
            raise RunError("it does not begin as a checkpoint does")
        if checksum.decode() != atomic_io.digest(body):
            raise RunError("its checksum is wrong")
        text, _, data = body.partition(b"\n")
        about = CheckpointInfo(**from_json(text, "its head"))
        check_kinds(about, "its head")
        return Checkpoint(about, load(data))
    except (ValueError, TypeError, KeyError, SafetensorError) as error:
        raise RunError(f"it can't be read: {error}") from None


def checkpoint_files(run: Path) -> Iterator[Path]:
    """The checkpoints of a run, newest first."""
    return iter(sorted((run / FOLDER).glob(f"*{SUFFIX}"), reverse=True))
