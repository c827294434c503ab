"""Provenance of a result: the installed package versions, and a hash of the simulator's source code."""

from __future__ import annotations

import ast
import hashlib
import inspect
import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from psyco.version import __version__

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "gymnasium")


def package_versions() -> dict[str, str]:
    """Return the versions of PSyCo, Python and every installed package that can change a result."""
    return dict(_installed_versions())


@cache
def _installed_versions() -> dict[str, str]:
    versions = {"psyco": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def code_digest(domain: object) -> str | None:
    """Return the SHA-256 of the source code of a domain's class; None if there is no source, as in a compiled module.

    A domain built from other objects, such as an environment and its wrappers, lists those in `sources`. The code of a
    class includes its base classes of the same package, and everything at the top level of their modules that it names:
    constants, functions, classes. Other modules are not hashed.
    """
    return _source_digest(tuple(getattr(domain, "sources", (type(domain),))))


@cache
def _source_digest(sources: tuple[Any, ...]) -> str | None:
    try:
        texts = [text for source in sources for part in _with_bases(source) for text in _source_texts(part)]
    except (OSError, TypeError, SyntaxError):
        return None
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _with_bases(source: Any) -> list[Any]:
    """Return a class with its base classes of the same package; a function alone."""
    if not isinstance(source, type):
        return [source]
    package = source.__module__.partition(".")[0]
    return [base for base in source.__mro__ if base.__module__.partition(".")[0] == package]


def _source_texts(source: Any) -> list[str]:
    """Return the source of a class or function, and the statements of its module whose names appear in it."""
    own = inspect.getsource(source)
    module = inspect.getmodule(source)
    try:
        text = inspect.getsource(module) if module else ""
    except (OSError, TypeError):  # a notebook
        return [own]
    lines = text.splitlines(keepends=True)
    statements = {}
    for statement in ast.parse(text).body:
        decorators = [each.lineno for each in getattr(statement, "decorator_list", ())]
        first = min([statement.lineno, *decorators]) - 1
        statements[statement] = "".join(lines[first : statement.end_lineno])
    used: set[ast.stmt] = set()
    words = _words(own)
    while found := {each for each in statements if each not in used and words & _bound_names(each)}:
        used |= found
        words |= {word for each in found for word in _words(statements[each])}
    return [own, *(text for statement, text in statements.items() if statement in used and text != own)]


def _bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top level of a module binds."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d]\w*", text))
