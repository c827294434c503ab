"""Inputs that are almost right: bytes, JSON and requirement texts with something done to them."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

TOKENS = [
    b"",
    b"\0",
    b"\xff",
    b"\xc3",
    b"\n",
    b"\r\n",
    b"\x1b[2J",
    b" ",
    b'"',
    b"'",
    b"\\",
    b",",
    b"-1",
    b"0",
    b"1e999",
    b"nan",
    b"NaN",
    b"inf",
    b"9" * 30,
    b"9" * 5000,
    b"../",
    b"/dev/zero",
    b"[/red]",
    b":dog:",
    b"<script>",
    b"[" * 50,
    b"{" * 50,
    b"(" * 50,
    b"[" * 2000,
    b'{"a":' * 500,
    b"x" * 3000,
    b"true",
    b"null",
    b"__proto__",
    b"os:system",
    "\u202eλ".encode(),
]
VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    2**31,
    2**63 - 1,
    2**64,
    10**30,
    0.5,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 2000,
    "\0",
    "\x1b[2J",
    "../../secret",
    "<script>",
    "SATISFIED",
    "os:system",
    "\ud800",
    [],
    {},
    [[]],
    [1, "a"],
    {"a": {}},
    "inf",
]


def mutate_bytes(rng: Random, data: bytes, tokens: Sequence[bytes] = ()) -> bytes:
    """One to four small accidents."""
    for _ in range(rng.randint(1, 4)):
        at, width = rng.randint(0, len(data)), min(rng.choice((1, 1, 2, 8, 64)), len(data))
        start, rest = data[:at], data[at:]
        token = rng.choice(tokens if tokens and rng.random() < 0.7 else TOKENS)
        data = rng.choice(
            [
                lambda s=start, r=rest, t=token: s + t + r,  # something is inserted,
                lambda s=start, r=rest, t=token: s + t + r[len(t) :],  # written over,
                lambda s=start, r=rest, w=width: s + r[w:],  # lost,
                lambda s=start, r=rest, w=width: s + r[:w] * 3 + r[w:],  # repeated,
                lambda s=start: s,  # cut off,
                lambda s=start, r=rest: s + bytes([(r[0] if r else 0) ^ 1 << rng.randrange(8)]) + r[1:],  # flipped,
                lambda s=start, r=rest: r + s,  # or turned around
            ]
        )()
    return data


def mutate_json(rng: Random, value: Any) -> Any:
    """The same tree with something else in one place."""
    if rng.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return rng.choice(VALUES)
    key: Any = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    changed = value.copy()
    match rng.randrange(8):
        case 0 if isinstance(changed, dict):
            del changed[key]
        case 0:
            changed += changed[:1]
        case 1 if isinstance(changed, dict):
            changed[rng.choice(["", "more", "../x", "kind"])] = rng.choice(VALUES)
        case _:
            changed[key] = mutate_json(rng, value[key])
    return changed


def nudge_json(rng: Random, value: Any) -> Any:
    """The same tree with another number in one place, mostly one that is possible."""
    if isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        inside = [key for key in keys if isinstance(value[key], dict | list | int | float)]
        if inside:
            key, changed = rng.choice(inside), value.copy()
            changed[key] = nudge_json(rng, value[key])
            return changed
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([0, 1, 2, value + 1, value - 1, 2 * value, 10**6])
    if isinstance(value, float):
        return rng.choice([0.0, 1.0, 0.5, value + 1.0, -value, value / 2, 1e300, 1e-300])
    return value


def as_json(value: Any) -> str:
    """NaN, infinity and half characters included, as Python writes them."""
    return json.dumps(value, indent=2)


# ---- requirement texts ---------------------------------------------------------------------------------------------

WORDS = [
    b"P>=0.9 [ ",
    b" ] & C>=0.9;",
    b"G ",
    b"F<=3 ",
    b" U[1,4] ",
    b" W ",
    b" R ",
    b"X ",
    b"!",
    b" & ",
    b" | ",
    b" => ",
    b" <=> ",
    b"(",
    b")",
    b"[",
    b"]",
    b"obs[1]",
    b'"end"',
    b" >= ",
    b" = ",
    b" + ",
    b" / ",
    b"abs(",
    b"min(",
    b"P in [0.1,0.2]",
    b"Rmax=? [ C ];",
    b"// x\n",
    "□ ".encode(),
    "≥".encode(),
    "∧".encode(),
]


def requirement(rng: Random) -> str:
    """A requirement that parses, unless it is too large."""
    properties = ["Rmax=? [ C ]"] * rng.randint(0, 1)
    for i in range(rng.choice((1, 1, 1, 1, 2))):
        name = rng.choice(["", f'"c{i}": '])
        bound = rng.choice(["P>=0.9", "P<=0.1", "P in [0.2,0.8]", "P>0.5", "P≥0.85"])
        confidence = rng.choice(["", " & C>=0.98"])
        properties.append(f"{name}{bound} [ {_formula(rng, rng.choice((0, 0, 0, 1, 1, 2, 3, 5)))} ]{confidence}")
    return ";\n".join(properties)


def _formula(rng: Random, depth: int) -> str:
    def inner() -> str:
        return _formula(rng, depth - rng.randint(1, 3))

    if depth <= 0:
        return rng.choice(
            [
                "true",
                '"end"',
                "crashed",
                f"{_term(rng, 2)} {rng.choice(['>=', '<', '=', '!='])} {_term(rng, 2)}",
            ]
        )
    bound = rng.choice(["", "", "<=3", "[1,4]", "<=99999"])
    match rng.randrange(7):
        case 0:
            return f"!({inner()})"
        case 1:
            return f"{rng.choice('FG')}{bound} ({inner()})"
        case 2:
            return f"X ({inner()})"
        case 3:
            return f"({inner()}) {rng.choice('UWR')}{bound} ({inner()})"
        case 4:
            return rng.choice([" & ", " | "]).join(f"({inner()})" for _ in range(rng.randint(2, 4)))
        case _:
            return f"({inner()}) {rng.choice(['=>', '<=>'])} ({inner()})"


def _term(rng: Random, depth: int) -> str:
    if depth <= 0 or rng.random() < 0.5:
        return rng.choice(["0", "1.5", ".5e3", "distance", "obs[0]", "obs[3]", "info.cost", "return"])
    a, b = _term(rng, depth - 1), _term(rng, depth - 1)
    return rng.choice([f"({a} {rng.choice('+-*/')} {b})", f"-({a})", f"abs({a})", f"max({a}, {b})"])
