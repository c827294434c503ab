"""`psyco domains`: the built-in and installed domains."""

from __future__ import annotations

import json

from rich.table import Table

from psyco._src.cli.common import Json, console, plain


def domains(as_json: Json = False) -> None:
    """List the domains with their parameters and signals.

    Example: `psyco domains`
    """
    from psyco._src.envs.base import parameters, signal_table
    from psyco._src.envs.registry import domain_names, make

    made = {name: make(name) for name in domain_names()}
    if as_json:
        content = {
            name: {
                "parameters": parameters(domain),
                "signals": {key: {"size": s.size, "boolean": s.boolean} for key, s in signal_table(domain).items()},
                "requirement": getattr(domain, "requirement", None),
            }
            for name, domain in made.items()
        }
        print(json.dumps(content, indent=2))
        return
    table = Table("domain", "parameters", "signals", show_lines=True)
    for name, domain in made.items():
        shown = "\n".join(f"{key}={value}" for key, value in parameters(domain).items())
        signals = ", ".join(
            key if s.size is None else f"{key}[0..{s.size - 1}]" for key, s in signal_table(domain).items()
        )
        table.add_row(*map(plain, (name, shown, signals)))
    console.print(table)
