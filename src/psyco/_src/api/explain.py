"""Explain a requirement: its formulas, as sentences and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psyco._src.api.coerce import AnyDomain, as_domain, verb
from psyco._src.envs.base import signal_table, written_for
from psyco._src.logic.paraphrase import PropertyText, paraphrase
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.logic.validate import check_bounds, check_signals


@verb
def explain(
    requirement: AnyRequirement,
    *,
    domain: AnyDomain | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> list[PropertyText]:
    """Explain a requirement: every property as a formula, as a sentence of structured English, and in words.

    Args:
        requirement: formulas, sentences of structured English, or a file.
        domain: the domain whose signals it may use; default: any signals.
        parameters: changes to the parameters of the domain.

    Returns:
        One entry per property, the goal first. `sentence` is None where structured English has no such sentence.
    """
    found = as_requirement(requirement)
    if domain is not None:
        where = as_domain(domain, parameters)
        found = written_for(found, where)
        check_signals(found, signal_table(where), where.name)
        check_bounds(found, where.horizon, where.name)
    return paraphrase(found)
