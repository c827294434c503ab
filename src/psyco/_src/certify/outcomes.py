"""The same tests for outcomes that were recorded elsewhere."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from psyco._src.certify.certificate import Certificate, Subject, certify
from psyco._src.certify.recordings import Outcomes
from psyco._src.certify.verify import NO_OPTIONS, check_decidable
from psyco._src.errors import RunError
from psyco._src.smc.base import overall, run_tests
from psyco._src.smc.methods import DEFAULT_METHOD, make_tests
from psyco._src.spec.formula import Requirement
from psyco._src.spec.parse import parse

# A probability bound with nothing to speak of: recorded outcomes have been judged already.
_BARE = re.compile(r"\bP\s*(?:(?:>=|<=|>|<|≥|≤)\s*[\d.eE+-]+|in\s*\[[^\[\]]*\])(?=\s*(?:&|∧|and\b|;|$))")


def verify_outcomes(
    outcomes: ArrayLike,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int | None = None,
    issued: str | None = None,
) -> Certificate:
    """Test recorded outcomes, in their order and only as far as needed.

    Args:
        outcomes: did the formula hold? `[B]`, or `[B, K]` for K constraints; Booleans or 0 and 1.
        requirement: what must hold; see `outcome_requirement` for one without a formula.
        method: how the constraints are tested, a name in `METHODS`.
        options: parameters of the method.
        max_episodes: look at no more than so many, a number chosen without looking; default: all there are.
        issued: the time that the certificate shows; now, if it is not given.
    """
    check_decidable(requirement)
    judged = _as_outcomes(outcomes, len(requirement.constraints))
    if max_episodes is not None and max_episodes < 1:
        raise RunError(f"the maximum number of episodes must be at least 1, got {max_episodes}")
    cap = len(judged) if max_episodes is None else max_episodes
    if cap > len(judged):
        raise RunError(f"there are {len(judged):,} outcomes; a maximum of {cap:,} episodes needs as many")
    judged = judged[:cap]
    tests = make_tests(method, requirement, max_episodes=cap, **options)
    progress = run_tests(tests, _growing_batches(judged), max_episodes=cap)
    digest = hashlib.sha256(np.ascontiguousarray(judged, np.uint8).tobytes()).hexdigest()
    return certify(
        requirement, Subject(outcomes=digest), tests, progress, overall(progress),
        method=method, options=options, max_episodes=cap, issued=issued,
    )  # fmt: skip


def outcome_requirement(text: str) -> Requirement:
    """A requirement in which `P>=0.85` may stand without a formula, for outcomes that somebody else has judged."""
    return parse(_BARE.sub(lambda bound: f'{bound[0]} [ "satisfied" ]', text))


def _as_outcomes(outcomes: ArrayLike, wanted: int) -> Outcomes:
    array = np.asarray(outcomes)
    if array.ndim == 1:
        array = array[:, None]
    if array.size == 0:
        raise RunError("there are no outcomes")
    if array.ndim != 2 or array.shape[1] != wanted:
        raise RunError(
            f"outcomes of shape {np.shape(outcomes)} do not fit {wanted} constraints; give [B, {wanted}]"
        )
    if array.dtype != bool:
        wrong = ~np.isin(array, (0, 1))
        if array.dtype.kind not in "iuf" or wrong.any():
            at = int(np.argwhere(wrong)[0][0]) if wrong.any() else 0
            raise RunError(f"an outcome is 0 or 1; the one at index {at} is {array[at].tolist()}")
    return array.astype(bool, copy=False)


def _growing_batches(outcomes: Outcomes) -> Iterator[Outcomes]:
    """Batches that double: an early decision is found early, a late one with few calls."""
    start, size = 0, 1024
    while start < len(outcomes):
        yield outcomes[start : start + size]
        start, size = start + size, 2 * size
