"""Provenance of a result: the installed package versions, and a hash of the simulator's source code."""

from __future__ import annotations

import hashlib
import inspect
import platform
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

    A domain built from other objects, such as an environment and its wrappers, lists those in `sources`. Modules that
    these import are not hashed.
    """
    return _source_digest(tuple(getattr(domain, "sources", (type(domain),))))


@cache
def _source_digest(sources: tuple[Any, ...]) -> str | None:
    try:
        texts = [inspect.getsource(source) for source in sources]
    except (OSError, TypeError):
        return None
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
