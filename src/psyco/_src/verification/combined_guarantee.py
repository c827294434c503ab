"""What the verdict about all constraints together is worth, with all looks counted: numbers, conditions and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psyco._src.verification.base import Guarantee, Verdict, confidence_percent, percent

if TYPE_CHECKING:
    from psyco._src.verification.certificate import Look
    from psyco._src.verification.findings import Finding, MeanFinding


def guarantee_of_all(
    findings: Sequence[Finding | MeanFinding], looks: Sequence[Look], share: float
) -> Guarantee:
    """What the verdict about the whole requirement is worth, with all looks counted; `share` is this look's."""
    if looks[-1].verdict is Verdict.ANSWERED:
        nothing = "There is no constraint, so no verdict can be wrong; each answer says what it is worth."
        return Guarantee("exact", nothing, 0.0, 0.0)
    if not findings:
        return Guarantee("exact", "There is no constraint, so there is nothing to be wrong about.", 0.0, 0.0)
    own = findings[0].guarantee
    if own.wrongly_satisfied is None:
        accept = reject = None
        statement = own.statement if len(findings) == 1 else _beliefs(findings)
        jointly = "so each of them holds the belief to a stricter level than a single one would have."
    else:
        accept = max(f.guarantee.wrongly_satisfied or 0.0 for f in findings)
        reject = sum(f.guarantee.wrongly_violated or 0.0 for f in findings)
        statement = own.statement if len(findings) == 1 else _error_rates(findings, accept, reject)
        # This look has its share of the error; all of them together have the whole.
        accept, reject = accept / share, reject / share
        jointly = (
            f"so the chance that any of them wrongly ends in SATISFIED is at most {percent(accept)} in total, "
            f"and that any wrongly ends in VIOLATED at most {percent(reject)}."
        )
    if len(looks) > 1:
        statement += (
            f" There were {len(looks)} looks, each at fresh episodes of its own. They share the permitted error, "
            f"{jointly}"
        )
    elif share < 1.0:
        statement += (
            f" This look used {percent(share)} of the permitted error; the rest was kept for further looks."
        )
    return Guarantee(own.kind, statement, accept, reject, _condition(findings))


def _error_rates(findings: Sequence[Finding | MeanFinding], accept: float, reject: float) -> str:
    """Of several constraints together, with all conditions."""
    condition = _condition(findings)
    return (
        f"If at least one of the {len(findings)} constraints fails, the chance that all are called satisfied "
        f"is at most {percent(accept)}; if all hold, the chance that one is called violated is at most "
        f"{percent(reject)}. "
        + (f"This is so {condition}. " if condition else "")
        + "What is said of each constraint by itself is listed with it."
    )


def _beliefs(findings: Sequence[Finding | MeanFinding]) -> str:
    levels = ", ".join(
        f"{confidence_percent(f.level)} for {f.called}" for f in findings if f.level is not None
    )
    return (
        f"Each of the {len(findings)} constraints is judged by itself: SATISFIED or VIOLATED is said as soon as the "
        f"belief in it reaches its own level ({levels}). Wrong verdicts can be more frequent than these numbers "
        "suggest, and of all constraints together no belief is stated."
    )


def _condition(findings: Sequence[Finding | MeanFinding]) -> str | None:
    """Under which the error rates hold for all constraints together: the conditions of all of them."""
    conditions = {f.called: f.guarantee.condition for f in findings}
    if len(set(conditions.values())) == 1:
        return findings[0].guarantee.condition
    return "; ".join(f"for {name}, {condition}" for name, condition in conditions.items() if condition)
