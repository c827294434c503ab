"""Decode JSON records into typed Python objects, and encode such objects as plain data.

A record is a dataclass or a NamedTuple. It is written as a JSON object, and its enums are written by name. `msgspec`
validates the scalars in a record; records themselves are decoded here, since msgspec has no enums by name, no unions of
two dataclasses, and ignores unknown fields of a dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from types import EllipsisType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from psyco._src.core.errors import RunError, suggest
from psyco._src.core.files import check_limits, from_json

T = TypeVar("T")


class _InvalidError(Exception):
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path.lstrip('.') or 'its content'}: {problem}")


def decode(content: str | bytes | Mapping[str, Any] | Sequence[Any], kind: type[T], origin: str) -> T:
    """Return the object of type `kind` that a JSON text, or the plain data parsed from one, describes.

    Fields without a default are required, and unknown fields are refused. Nothing is coerced; an int may stand for a
    float, and stays an int.

    Args:
        content: JSON text, or its parsed content.
        kind: a dataclass, NamedTuple, enum, list, tuple, dict or scalar type, or a union of those. A scalar may be
            constrained, e.g. `Annotated[int, msgspec.Meta(ge=0)]`.
        origin: name of the file, for error messages.

    Raises:
        RunError: names the file, the path of the field, and the expected type.
    """
    if isinstance(content, str | bytes):
        plain = from_json(content, origin)
    else:
        plain = check_limits(content, origin)
    try:
        return _decode(plain, kind, "")
    except _InvalidError as error:
        raise RunError(f"{origin} is damaged: {error}") from None


def encode(value: Any) -> Any:
    """Return plain data for JSON: records as dicts, tuples as lists, enums by name."""
    if isinstance(value, Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {name: encode(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, list | tuple) else value


def _decode(value: Any, kind: Any, path: str) -> Any:
    base = get_origin(kind) or kind
    if base in (UnionType, Union):
        return _decode_union(value, get_args(kind), path)
    if _is_record(base):
        return _decode_record(value, base, path)
    if base in (tuple, list):
        return _decode_sequence(value, base, get_args(kind), path)
    if base is dict:
        if not isinstance(value, Mapping):
            raise _InvalidError(path, f"expected an object, got {value!r:.100}")
        _, item_kind = get_args(kind) or (str, Any)
        return {key: _decode(item, item_kind, f"{path}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        if not isinstance(value, str) or value not in kind.__members__:
            raise _InvalidError(path, f"expected one of {', '.join(kind.__members__)}, got {value!r:.100}")
        return kind[value]
    return _decode_scalar(value, kind, path)


def _decode_union(value: Any, kinds: tuple[Any, ...], path: str) -> Any:
    """Decode as None, as the record that shares most fields with `value`, or as the first other type that fits."""
    if value is None and NoneType in kinds:
        return None
    records = [kind for kind in kinds if _is_record(kind)]
    if isinstance(value, Mapping) and records:
        shared = [len(value.keys() & _hints(kind).keys()) for kind in records]
        first, *alike = [kind for kind, count in zip(records, shared, strict=True) if count == max(shared)]
        try:
            return _decode_record(value, first, path)
        except _InvalidError:
            for kind in alike:
                with suppress(_InvalidError):
                    return _decode_record(value, kind, path)
            raise
    others = [kind for kind in kinds if kind is not NoneType]
    for kind in others[:-1]:
        try:
            return _decode(value, kind, path)
        except _InvalidError:
            continue
    return _decode(value, others[-1], path)


def _decode_record(value: Any, kind: Any, path: str) -> Any:
    hints, required = _hints(kind), _required(kind)
    if not isinstance(value, Mapping):
        raise _InvalidError(path, f"expected an object with the fields {', '.join(hints)}, got {value!r:.100}")
    for name in value:
        if name not in hints:
            raise _InvalidError(f"{path}.{name}", f"unknown field{suggest(str(name), hints)}")
    for name in hints:
        if name in required and name not in value:
            raise _InvalidError(f"{path}.{name}", "missing field")
    return kind(**{name: _decode(item, hints[name], f"{path}.{name}") for name, item in value.items()})


def _decode_sequence(value: Any, base: Any, kinds: tuple[Any, ...], path: str) -> Any:
    if not isinstance(value, list | tuple):
        raise _InvalidError(path, f"expected a list, got {value!r:.100}")
    if base is list or not kinds or isinstance(kinds[-1], EllipsisType):
        kinds = (kinds[0] if kinds else Any,) * len(value)
    if len(kinds) != len(value):
        raise _InvalidError(path, f"expected {len(kinds)} entries, got {len(value)}")
    return base(_decode(item, kind, f"{path}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def _decode_scalar(value: Any, kind: Any, path: str) -> Any:
    import msgspec  # here, because a deployed policy does not load it

    try:
        msgspec.convert(value, kind)
    except UnicodeEncodeError:  # half of a surrogate pair
        raise _InvalidError(path, f"expected valid Unicode, got {value!r:.100}") from None
    except msgspec.ValidationError as error:
        expected = str(error).split(", got ")[0].replace("Expected", "expected")
        raise _InvalidError(path, f"{expected}, got {value!r:.100}") from None
    return value


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _required(kind: Any) -> frozenset[str]:
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        fields = dataclasses.fields(kind)
        return frozenset(f.name for f in fields if f.default is missing and f.default_factory is missing)
    return frozenset(set(kind._fields) - set(kind._field_defaults))
