"""How likely is it that an episode which looks like this one ends in a violation? Learned from recorded episodes.

A logistic regression on what is seen of a state, its squares and products, put right by an isotonic regression on
episodes that it was not fitted to; further ones show how well it is calibrated. It estimates with NumPy alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import check_kinds, from_json, read_text
from psyco._src.logic.runtime_monitor import Monitor, Outlook, Status

FORMAT = "psyco-risk-1"
PRODUCTS = 24  # of so many inputs, or fewer, the products are looked at, too
RIDGE = 1e-4
EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the table that shows the calibration
FEWEST = 20  # recorded episodes

Numbers = NDArray[np.float64]


class RiskBin(NamedTuple):
    """States of episodes that were not learned from, and whose risk lies in one range."""

    lower: float
    upper: float
    states: int
    estimated: float  # their mean risk
    observed: float  # the part of them after which there was a violation


@dataclass(frozen=True)
class Risk:
    """The probability that an episode which looks like this one ends in a violation, or has one soon.

    It is about the policy whose episodes were recorded, going on as it did.
    """

    requirement: str
    within: int | None  # a violation within so many steps; None: at all
    episodes: int  # that were recorded
    violated: int  # of these
    mean: tuple[float, ...]  # of the inputs, [inputs]
    spread: tuple[float, ...]
    weights: tuple[float, ...]  # of the constant and the inputs, their squares and products
    scores: tuple[float, ...]  # where the estimate changes, rising
    levels: tuple[float, ...]  # what it is from there on; one more at the front
    calibration: tuple[RiskBin, ...] = ()
    limit: float = 0.1  # a guard hands over from here on

    def __call__(self, inputs: Numbers) -> Numbers:
        """The risk `[n]` in states with these inputs `[n, inputs]`; `risk_inputs` makes them."""
        if inputs.shape[1] != len(self.mean):
            raise RunError(
                f"this risk was learned from {len(self.mean)} numbers in every state, here there are {inputs.shape[1]}"
            )
        score = _expanded(inputs, np.array(self.mean), np.array(self.spread)) @ np.array(self.weights)
        return np.array(self.levels)[np.searchsorted(self.scores, score, side="right")]

    def above(self, limit: float) -> Risk:
        """The same with another limit."""
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0.0 < limit <= 1.0:
            raise RunError(f"the limit of a risk is a probability above 0, got {limit!r}")
        return dataclasses.replace(self, limit=float(limit))

    def to_json(self) -> str:
        """All of it, as JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, *, origin: str = "the risk") -> Risk:
        """What `to_json` has written."""
        try:
            content = from_json(text, origin)
            if content.pop("format") != FORMAT:
                raise ValueError("another format")
            bins = tuple(RiskBin(*each) for each in content.pop("calibration"))
            lists = {
                name: tuple(map(float, value)) for name, value in content.items() if isinstance(value, list)
            }
            risk = cls(**{**content, **lists, "calibration": bins})
            sizes = len(_expanded(np.zeros((1, len(risk.mean))), 0.0, 1.0)[0]), len(risk.scores) + 1
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{origin} is no risk of PSyCo, or it is damaged ({error!r:.200})") from None
        check_kinds(risk, origin)
        if sizes != (len(risk.weights), len(risk.levels)) or len(risk.mean) != len(risk.spread):
            raise RunError(f"{origin} is damaged: its numbers do not fit each other")
        return risk

    @classmethod
    def load(cls, path: str | Path) -> Risk:
        """From a file that holds what `to_json` gave."""
        return cls.from_json(read_text(path, "risk"), origin=str(path))

    def __str__(self) -> str:
        when = "in the end" if self.within is None else f"within {self.within} steps"
        lines = [
            f"risk of a violation {when}, from {self.episodes:,} episodes, {self.violated:,} of them violated",
            "  estimated          states   mean estimate   observed",
        ]
        for each in self.calibration:
            span = f"{each.lower:.2f} to {each.upper:.2f}"
            lines.append(f"  {span:14}  {each.states:9,}   {each.estimated:13.4f}   {each.observed:8.4f}")
        return "\n".join(lines)


def risk_inputs(observation: Any, signals: Mapping[str, Any], status: Status) -> list[float]:
    """What a risk is estimated from: the observation, the requirement's signals, its aggregates, and the step."""
    named = [signals[name] for name in sorted(signals) if name != "obs"]
    parts = [np.ravel(each) for each in (observation, *named)]
    return [*map(float, np.concatenate(parts)), *status.aggregates.values(), float(status.step)]


def fit_risk(
    monitor: Monitor, paths: Sequence[Mapping[str, Any]], *, within: int | None = None, limit: float = 0.1
) -> Risk:
    """Learn from recorded episodes: half of them to fit, a quarter to calibrate, a quarter to show the calibration.

    Args:
        monitor: of the requirement; what it cannot foresee counts as not violated until it happens.
        paths: all signals along episodes, arrays `[n+1, ...]` by name, as `psyco.record` gives them.
        within: look for a violation within so many steps; None: at all.
        limit: from which on a guard hands over.
    """
    if len(paths) < FEWEST:
        raise RunError(f"a risk is learned from at least {FEWEST} recorded episodes, got {len(paths)}")
    states = [_labelled(monitor, path, within) for path in paths]
    violated = sum(each.violated for each in states)
    if violated == 0 or (violated == len(paths) and within is None):
        raise RunError(
            f"{violated} of {len(paths)} recorded episodes violate the requirement: a risk that is the same in all of "
            f"them can't be learned; record more episodes{', or look less far ahead (within=5)' if violated else ''}"
        )
    half, quarter = len(paths) // 2, len(paths) // 4
    x, y = _joined(states[:half])
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    weights = _logistic(_expanded(x, mean, spread), y)
    x, y = _joined(states[half : half + quarter])
    scores, levels = _isotonic(_expanded(x, mean, spread) @ weights, y)
    found = {"mean": mean, "spread": spread, "weights": weights, "scores": scores, "levels": levels}
    numbers: dict[str, Any] = {name: tuple(each.tolist()) for name, each in found.items()}
    made = Risk(str(monitor.requirement), within, len(paths), violated, **numbers)
    x, y = _joined(states[half + quarter :])
    return dataclasses.replace(made, calibration=tuple(_bins(made(x), y))).above(limit)


class _EpisodeStates(NamedTuple):
    """Of one episode, those before a violation was decided."""

    inputs: Numbers  # [m, inputs]
    bad: NDArray[np.bool_]  # [m]: a violation followed
    violated: bool


def _labelled(monitor: Monitor, path: Mapping[str, Any], within: int | None) -> _EpisodeStates:
    status, inputs, last = monitor.start(), [], len(path["obs"]) - 1
    for step in range(last + 1):
        now = {name: path[name][step] for name in monitor.signals & path.keys()}
        status = monitor.update(now, end=step == last)
        if status.outlook is Outlook.VIOLATED:
            break
        if step < last:  # nobody acts in the last state
            inputs.append(risk_inputs(path["obs"][step], now, status))
    violated = status.outlook is Outlook.VIOLATED
    ahead = status.step - np.arange(len(inputs))
    return _EpisodeStates(np.array(inputs), violated & (ahead <= (within or last)), violated)


def _joined(states: Sequence[_EpisodeStates]) -> tuple[Numbers, NDArray[np.bool_]]:
    some = [each for each in states if len(each.inputs)]
    if not some:
        raise RunError(
            "the recorded episodes are violated from the start: there is no state to tell a risk by"
        )
    return np.concatenate([each.inputs for each in some]), np.concatenate([each.bad for each in some])


def _expanded(x: Numbers, mean: Any, spread: Any) -> Numbers:
    """1, the inputs `[n, inputs]` as parts of their spread, their squares, and of not too many the products."""
    z = np.clip((x - mean) / spread, -10.0, 10.0)  # what was never seen before should not decide everything
    count = z.shape[1]
    i, j = np.triu_indices(count) if count <= PRODUCTS else (np.arange(count),) * 2
    return np.hstack([np.ones((len(z), 1)), z, z[:, i] * z[:, j]])


def _logistic(x: Numbers, y: NDArray[np.bool_]) -> Numbers:
    """Weights `[F]` of a logistic regression of outcomes `[n]` on features `[n, F]`."""
    from scipy.optimize import minimize

    def loss(weights: Numbers) -> tuple[float, Numbers]:
        score = x @ weights
        off = 1.0 / (1.0 + np.exp(-np.clip(score, -500, 500))) - y
        value = np.mean(np.logaddexp(0.0, score) - y * score) + RIDGE / 2.0 * weights @ weights
        return float(value), x.T @ off / len(x) + RIDGE * weights

    found: Numbers = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x
    return found


def _isotonic(score: Numbers, y: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """The rising step function of scores nearest to the outcomes: where it changes `[k]`, its levels `[k+1]`."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(score, kind="stable")
    level = isotonic_regression(y[order].astype(np.float64)).x
    steps = np.flatnonzero(np.diff(level) > 0) + 1
    return score[order][steps], level[np.append(0, steps)]


def _bins(risk: Numbers, y: NDArray[np.bool_]) -> Iterator[RiskBin]:
    place = np.clip(np.searchsorted(EDGES, risk, side="right") - 1, 0, len(EDGES) - 2)
    for k in np.unique(place):
        here = place == k
        yield RiskBin(
            EDGES[k], EDGES[k + 1], int(here.sum()), float(risk[here].mean()), float(y[here].mean())
        )
