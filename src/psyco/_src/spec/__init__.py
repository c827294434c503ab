"""What must hold: the requirement language, and what a path makes of it."""

from psyco._src.spec.check import check_bounds, check_signals
from psyco._src.spec.formula import (
    DEFAULT_CONFIDENCE,
    Constraint,
    Demand,
    Formula,
    Goal,
    Requirement,
    SignalInfo,
)
from psyco._src.spec.monitor import Monitor, compile_monitor
from psyco._src.spec.parse import parse, parse_formula
from psyco._src.spec.path import PathCheck, check_path

__all__ = [
    "DEFAULT_CONFIDENCE",
    "Constraint",
    "Demand",
    "Formula",
    "Goal",
    "Monitor",
    "PathCheck",
    "Requirement",
    "SignalInfo",
    "check_bounds",
    "check_path",
    "check_signals",
    "compile_monitor",
    "parse",
    "parse_formula",
]
