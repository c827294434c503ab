"""An ONNX file with all that it refers to: large weights may lie in files beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import read_bytes


class OnnxFile(NamedTuple):
    """What acts, and its name."""

    network: bytes  # ONNX with all data inside: whoever runs it reads no other file
    digest: str  # SHA-256 of the file; where it has data in others, of the names and contents of all


def read_onnx(path: Path) -> OnnxFile:
    """An ONNX file and its external data, which must lie in the same folder or below; nothing in it is run."""
    try:
        import onnx
    except ImportError:
        raise RunError(f'{path} needs ONNX installed: pip install "psyco[onnx]"') from None
    data = read_bytes(path, "policy")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf has a class for each of its troubles
        raise RunError(f"{path} is not an ONNX file, or it is damaged ({error})") from None
    outside = [each for each in _tensors(model) if each.data_location == onnx.TensorProto.EXTERNAL]
    if not outside:
        return OnnxFile(data, hashlib.sha256(data).hexdigest())
    files: dict[str, bytes] = {}
    for tensor in outside:
        about = {entry.key: entry.value for entry in tensor.external_data}
        name = about.get("location", "")
        if name not in files:
            files[name] = read_bytes(_beside(path, name), "policy")
        tensor.raw_data = _part(path, files[name], about)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    digest = hashlib.sha256()
    for name, content in [("", data), *sorted(files.items())]:
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return OnnxFile(model.SerializeToString(), digest.hexdigest())


def _tensors(message: Any) -> Iterator[Any]:
    """All tensors anywhere in a model: weights, constants, in subgraphs and functions."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(each)


def _beside(path: Path, name: str) -> Path:
    """The file of that name below the model's folder; a stranger's model must not reach anywhere else."""
    try:
        folder = path.parent.resolve()
        found = (folder / name).resolve()  # links are followed first
        inside = bool(name) and not Path(name).is_absolute() and found.is_relative_to(folder)
    except (OSError, ValueError, RuntimeError):  # characters that no name has, links that go round
        inside = False
    if not inside:
        raise RunError(
            f"{path} refers to {name!r}: external data has to lie in the model's folder, or below it"
        )
    if not found.is_file():
        raise RunError(f"{path} refers to {name!r}, which is not in its folder; copy it there, too")
    return found


def _part(path: Path, content: bytes, about: dict[str, str]) -> bytes:
    """The bytes of one tensor."""
    try:
        start = int(about.get("offset") or 0)
        stop = start + int(about["length"]) if about.get("length") else len(content)
    except ValueError:
        start = stop = -1
    if not 0 <= start <= stop <= len(content):
        raise RunError(f"{path} is damaged: {about['location']!r} does not hold all that it refers to there")
    return content[start:stop]
