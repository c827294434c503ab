"""With which versions something was computed."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from psyco.version import __version__

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "gymnasium")


def versions() -> dict[str, str]:
    """Of everything installed that may change a result."""
    return dict(_installed())


@cache
def _installed() -> dict[str, str]:
    found = {"psyco": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
