"""Show values of default constants and comments of fields in the reference.

A signature such as `method: str = DEFAULT_METHOD` is shown with the value `'anytime'`. The comments behind the fields
of a class become a table of attributes.
"""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from typing import Any

import griffe

CONSTANT = re.compile(r"[A-Z][A-Z_]+(\.\w+)*")
SAID = re.compile(r"^ {4}\w+: [^#]*  # (.*)$")


class Defaults(griffe.Extension):
    """Replace constants by their values in the function's module, and add comments from the file of the class."""

    def on_function(self, *, func: griffe.Function, **arguments: Any) -> None:
        """Replace constants among the defaults of a function, if they are numbers or strings."""
        for parameter in func.parameters:
            named = str(parameter.default)
            if CONSTANT.fullmatch(named):
                value = reduce(getattr, named.split("."), import_module(func.module.path))
                if isinstance(value, int | float | str):
                    parameter.default = repr(value)

    def on_class_members(self, *, cls: griffe.Class, **arguments: Any) -> None:
        """Add the comments of fields to the docstring, and for a named tuple all fields to the signature."""
        fields = [
            member
            for name, member in cls.members.items()
            if isinstance(member, griffe.Attribute) and "instance-attribute" in member.labels and name[0] != "_"
        ]
        if cls.docstring and not re.search(r"^\s*(Args|Attributes):$", cls.docstring.value, re.MULTILINE):
            said = {field.name: SAID.match(cls.lines_collection[cls.filepath][field.lineno - 1]) for field in fields}
            rows = [f"    {name}: {found[1]}" for name, found in said.items() if found]
            if rows:
                cls.docstring.value += "\n\nAttributes:\n" + "\n".join(rows)
        if "NamedTuple" in map(str, cls.bases):
            parameters = [
                griffe.Parameter(
                    field.name,
                    annotation=field.annotation,
                    kind=griffe.ParameterKind.positional_or_keyword,
                    default=field.value,
                )
                for field in fields
            ]
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))
