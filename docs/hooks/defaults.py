"""Defaults by their values: a signature says `method: str = DEFAULT_METHOD`, a reader wants to see `'anytime'`."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from typing import Any

import griffe

CONSTANT = re.compile(r"[A-Z][A-Z_]+(\.\w+)*")


class Defaults(griffe.Extension):
    """Looks up constants in the module that a function is from."""

    def on_function(self, *, func: griffe.Function, **arguments: Any) -> None:
        """Replace the constants among its defaults, if they are numbers or words."""
        for parameter in func.parameters:
            named = str(parameter.default)
            if CONSTANT.fullmatch(named):
                value = reduce(getattr, named.split("."), import_module(func.module.path))
                if isinstance(value, int | float | str):
                    parameter.default = repr(value)
