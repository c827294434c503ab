"""One input, one judgement: nothing, or what is wrong about what it brought about."""

import traceback
from functools import cache
from pathlib import Path
from random import Random

from psyco._src.core.errors import PsycoError
from tests.fuzz.kinds import KINDS, Place
from tests.fuzz.watch import watched

CORPUS = Path(__file__).parents[1] / "corpus"


def judge(kind: str, data: bytes, place: Place) -> str | None:
    """None if an answer or an error of ours came of it, and nothing else happened; else a finding, in words."""
    with watched(place.folder) as seen:
        try:
            KINDS[kind].attempt(data, place)
        except PsycoError as error:
            if not str(error).strip():
                seen.append("an error without a word")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            seen.append(f"{type(error).__name__} in {Path(where.filename).name}, line {where.lineno}: {error!s:.300}")
    return "; ".join(dict.fromkeys(seen)) or None


@cache
def warm_up(kind: str, place: Place) -> None:
    """What is imported and compiled late is no fault of an input."""
    judge(kind, KINDS[kind].make(Random(0), place), place)


def corpus() -> list[tuple[str, Path]]:
    """Every input that was a finding once."""
    return [(kind, path) for kind in KINDS for path in sorted((CORPUS / kind).glob("*"))]
