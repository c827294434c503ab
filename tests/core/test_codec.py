"""Decoding accepts exactly the records that encoding writes; every refusal names the file and the field."""

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest

from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import RunError


class Outcome(Enum):
    GOOD = "a sentence"
    BAD = "another sentence"


class Bin(NamedTuple):
    lower: float
    states: int = 0


@dataclass(frozen=True)
class Share:
    satisfied: int
    level: float | None = None


@dataclass(frozen=True)
class Mean:
    mean: float
    level: float | None = None


@dataclass(frozen=True)
class Record:
    outcome: Outcome
    found: tuple[Share | Mean, ...]
    range: tuple[float, float]
    bins: list[Bin] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    value: int | str = 0


FULL = Record(
    Outcome.BAD,
    (Share(3), Mean(0.5, 0.98)),
    (0, 1.5),
    [Bin(0.1, 2)],
    {"any": [1, {"x": None}]},
    {"a": 1},
    seed=5,
    value="x",
)


def test_a_record_survives_the_way_through_json():
    for record in (FULL, Record(Outcome.GOOD, (), (0.0, 1.0))):
        text = json.dumps(encode(record))
        assert decode(text, Record, "f") == decode(encode(record), Record, "f") == record
        assert json.dumps(encode(decode(text, Record, "f"))) == text  # an int for a float stays an int


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outcome": "a sentence"}, "outcome: expected one of GOOD, BAD, got 'a sentence'"),
        ({"outcome": ["GOOD"]}, "outcome: expected one of GOOD, BAD"),
        ({"found": [{"satisfied": 1}, {"mean": "1"}]}, r"found\[1\].mean: expected `float`, got '1'"),
        ({"found": [{"satisfied": True}]}, r"found\[0\].satisfied: expected `int`, got True"),
        ({"found": [{"satisfied": 1.0}]}, r"found\[0\].satisfied: expected `int`, got 1.0"),
        (
            {"found": [{"satisfied": 1, "levle": 1}]},
            r"found\[0\].levle: unknown field \(did you mean 'level'\?\)",
        ),
        ({"found": [{}]}, r"found\[0\].satisfied: missing field"),
        ({"found": {}}, "found: expected a list"),
        ({"range": [0.0]}, "range: expected 2 entries, got 1"),
        ({"bins": [3]}, r"bins\[0\]: expected an object with the fields lower, states, got 3"),
        ({"options": []}, r"options: expected an object, got \[\]"),
        ({"counts": {"a": None}}, "counts.a: expected `int`, got None"),
        ({"seed": -1}, "seed: expected `int` >= 0, got -1"),
        ({"value": 1.5}, "value: expected"),
        ({"options": {"x": float("nan")}}, "nan is not a finite number"),
        ({"options": {"x": 10**30}}, "too large"),
    ],
)
def test_a_value_of_another_type_is_refused_with_file_and_field(change: dict[str, Any], words: str):
    with pytest.raises(RunError, match=f"^run.json is damaged.*{words}"):
        decode(encode(FULL) | change, Record, "run.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"lower": 1, "lower": 2}', "the key 'lower' appears twice"),
        ('{"lower": NaN}', "nan is not a finite number"),
        ("[1]", "its content: expected an object with the fields lower, states"),
        ('{"lower": ' + "[" * 400 + "]" * 400 + "}", "nested too deeply"),
    ],
)
def test_a_json_text_is_held_to_the_limits_of_all_files(text: str, words: str):
    with pytest.raises(RunError, match=f"risk.json is damaged.*{words}"):
        decode(text, Bin, "risk.json")
