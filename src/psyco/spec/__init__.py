"""What must hold: the requirement language, and what a path makes of it."""

from psyco.spec.check import check_bounds, check_signals
from psyco.spec.formula import (
    DEFAULT_CONFIDENCE,
    Constraint,
    Demand,
    Formula,
    Goal,
    Requirement,
    SignalInfo,
)
from psyco.spec.monitor import Monitor, PathCheck, check_path, compile_monitor
from psyco.spec.parse import parse, parse_formula

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
