"""Checkpoints: the state of training, in files that detect their own damage.

    psyco-checkpoint-1 <SHA-256 of everything below>
    {"generation": ..., "config": ..., ...}
    <safetensors: one tensor per leaf of the state, named by its path>

Nothing in such a file is ever executed: its tensors are put into the structure of a template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import msgspec
import numpy as np
from numpy.typing import NDArray

from psyco._src.core import files
from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import RunError
from psyco._src.core.files import read_bytes

FORMAT = b"psyco-checkpoint-1"
FOLDER, SUFFIX = "checkpoints", ".ckpt"
KEPT_CHECKPOINTS = 3  # the newest may be damaged, and the one before it too

Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class CheckpointInfo:
    """The header of a checkpoint."""

    generation: Count  # generations done
    identity: str  # hash of the configuration, `Config.identity`
    config: str  # the configuration itself, as text, in case config.toml is lost
    created: Count  # start of the run, in seconds since 1970
    metrics_size: Count  # bytes of metrics.csv that belong to this state
    metrics_digest: str  # SHA-256 of these bytes
    code: tuple[str, ...] = ()  # hashes of the environment's code with which the state was learned, the newest last


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint."""

    info: CheckpointInfo
    tensors: dict[str, NDArray[Any]]

    def restore(self, template: Any) -> Any:
        """Return the tree of arrays in the structure of `template`; the values of the template do not matter.

        The first axis of an array may have another length, as that of a growing list.
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


def save_checkpoint(run: Path, info: CheckpointInfo, tree: Any) -> None:
    """Write a checkpoint durably, then delete the oldest ones."""
    from safetensors.numpy import save

    leaves, _ = jax.tree.flatten_with_path(tree)
    tensors = {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in leaves}
    body = json.dumps(encode(info), sort_keys=True).encode() + b"\n" + save(tensors)
    header = FORMAT + b" " + files.digest(body).encode() + b"\n"
    files.write(run / FOLDER / f"{info.generation:09d}{SUFFIX}", header + body)
    for old in list(checkpoint_files(run))[KEPT_CHECKPOINTS:]:
        old.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raise RunError if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        first, _, body = read_bytes(path, "checkpoint", inside=path.parents[1]).partition(b"\n")
        kind, _, checksum = first.partition(b" ")
        if kind != FORMAT:
            raise RunError("it does not begin as a checkpoint does")
        if checksum.decode() != files.digest(body):
            raise RunError("its checksum is wrong")
        header, _, data = body.partition(b"\n")
        return Checkpoint(decode(header, CheckpointInfo, "its header"), load(data))
    except (ValueError, TypeError, KeyError, SafetensorError) as error:
        raise RunError(f"it can't be read: {error}") from None


def checkpoint_files(run: Path) -> Iterator[Path]:
    """Return the checkpoints of a run, newest first."""
    return iter(sorted((run / FOLDER).glob(f"*{SUFFIX}"), reverse=True))
