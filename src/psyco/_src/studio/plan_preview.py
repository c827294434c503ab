"""A preview of `psyco plan` for one probability, fast enough to follow a slider.

The thresholds of the test are computed after some numbers of episodes and interpolated between them; `psyco plan`
computes all of them. Differences in the probabilities are below 0.02.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.logic.requirement import outcome_requirement
from psyco._src.verification.base import ACCEPT, REJECT, Counts
from psyco._src.verification.ledger import look_share
from psyco._src.verification.methods import DEFAULT_METHOD, make_tests

DENSE, NODES = 60, 60  # thresholds are computed after each of the first episodes, and after some later numbers
POINTS = 17  # true probabilities
MAX_PREVIEW = 10_000  # episodes


def plan_preview(p_req: float, confidence: float, max_episodes: int) -> dict[str, Any]:
    """Return verdicts and expected episodes of the certificate of `P>=p_req & C>=confidence`, over true probabilities.

    The defaults are those of `psyco plan`: the first look at a candidate, with half of the permitted error.
    """
    text = f"P>={p_req!r} & C>={confidence!r}"
    requirement = outcome_requirement(text)
    (test,) = make_tests(DEFAULT_METHOD, requirement, value_ranges=[], max_episodes=max_episodes, share=look_share(1))
    p = np.unique(np.round(np.concatenate([np.linspace(max(0.0, 2 * p_req - 1.0), 1.0, POINTS), [p_req]]), 6))
    accepted, rejected, episodes = characteristics(test, p, max_episodes)
    return {
        "p": p.tolist(),
        "satisfied": np.round(accepted, 5).tolist(),
        "violated": np.round(rejected, 5).tolist(),
        "episodes": np.round(episodes, 1).tolist(),
        "p_req": p_req,
        "confidence": confidence,
        "max_episodes": max_episodes,
        "shortest": _shortest(test, max_episodes),
        "command": f"psyco plan '{text}' --max-episodes {max_episodes} --method {DEFAULT_METHOD}",
    }


def characteristics(
    test: Any, p: NDArray[np.float64], max_episodes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the probabilities of both verdicts and the expected episodes, each `[P]`."""
    accept_from, continue_from = thresholds(test, max_episodes)
    accepted, rejected, episodes = np.zeros(p.size), np.zeros(p.size), np.zeros(p.size)
    p, q, alive, first = p[:, None], 1.0 - p[:, None], np.ones((p.size, 1)), 0
    for low, high in zip(continue_from.tolist(), accept_from.tolist(), strict=True):
        episodes += alive.sum(axis=1)
        grown = np.zeros((alive.shape[0], alive.shape[1] + 1))
        grown[:, :-1] = alive * q
        grown[:, 1:] += alive * p
        b = max(high - first, 0)
        a = min(max(low - first, 0), b)
        accepted += grown[:, b:].sum(axis=1)
        rejected += grown[:, :a].sum(axis=1)
        alive, first = grown[:, a:b], first + a
        if not alive.shape[1]:
            break
    return accepted, rejected, episodes


def thresholds(test: Any, max_episodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, after 1 to `max_episodes` episodes, the least number of satisfying ones to accept, and not to reject."""
    counts = np.arange(1, max_episodes + 1)
    later = np.geomspace(min(DENSE, max_episodes), max_episodes, NODES).astype(int)
    nodes = np.union1d(counts[:DENSE], later)
    accept = _first_count(lambda s: test.decide(Counts(s, nodes - s)) == ACCEPT, nodes)
    go_on = _first_count(lambda s: test.decide(Counts(s, nodes - s)) != REJECT, nodes)
    # A threshold is a smooth function of n, rounded up: by half of an episode on average.
    rounded_up = (np.ceil(np.interp(counts, nodes, values - 0.5)).astype(np.int64) for values in (accept, go_on))
    return next(rounded_up), next(rounded_up)


def _first_count(holds: Callable[[NDArray[Any]], NDArray[Any]], counts: NDArray[Any]) -> NDArray[Any]:
    """Return for each number n of episodes the least s of 0 to n from which on `holds(s)`, or n + 1; by bisection."""
    low, high = np.zeros_like(counts), counts + 1
    for _ in range(int(counts[-1]).bit_length() + 1):
        middle = (low + high) // 2
        found = holds(np.minimum(middle, counts)) | (middle > counts)
        low, high = np.where(found, low, np.minimum(middle + 1, high)), np.where(found, middle, high)
    return high


def _shortest(test: Any, max_episodes: int) -> int | None:
    """Return the least number of episodes that can be a certificate: all of them satisfy."""
    counts = np.arange(1, max_episodes + 1)
    accepts = np.flatnonzero(test.decide(Counts(counts, np.zeros_like(counts))) == ACCEPT)
    return int(counts[accepts[0]]) if len(accepts) else None
