"""Estimated probability that an episode ends in a violation, learned from recorded episodes.

A logistic regression on the inputs of a state, their squares and products, calibrated by isotonic regression on
held-out episodes; further held-out episodes show how well it is calibrated. It estimates with NumPy alone.
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

from psyco._src.core.codec import decode, encode
from psyco._src.core.errors import RunError
from psyco._src.core.files import from_json, read_text
from psyco._src.core.wording import plural
from psyco._src.logic.runtime_monitor import Monitor, Outlook, Status

FORMAT = "psyco-risk-1"
MAX_INPUTS_WITH_PRODUCTS = 24  # with more inputs, only squares are features
RIDGE = 1e-4
CALIBRATION_EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the bins of the calibration table
MIN_EPISODES = 20  # recorded

Numbers = NDArray[np.float64]


class RiskBin(NamedTuple):
    """Held-out states whose estimated risk lies in one range."""

    lower: float
    upper: float
    states: int
    estimated: float  # mean risk
    observed: float  # fraction that a violation followed


@dataclass(frozen=True)
class Risk:
    """Estimated probability that an episode ends in a violation, or has one within some steps, given its state.

    It is conditional on the policy whose episodes were recorded.
    """

    requirement: str
    within: int | None  # maximum steps until the violation; None: at any time
    episodes: int  # recorded
    violated: int  # recorded episodes that violate the requirement
    mean: tuple[float, ...]  # of the inputs, [inputs]
    std: tuple[float, ...]
    weights: tuple[float, ...]  # of the constant, the inputs, their squares and products
    scores: tuple[float, ...]  # at which the estimate changes, increasing
    levels: tuple[float, ...]  # estimates between these scores; one more than scores
    calibration: tuple[RiskBin, ...] = ()
    limit: float = 0.1  # risk from which on a guard hands over

    def __call__(self, inputs: Numbers) -> Numbers:
        """Return the risk `[n]` of states with inputs `[n, inputs]` from `risk_inputs`."""
        if inputs.shape[1] != len(self.mean):
            raise RunError(f"this risk was learned from {len(self.mean)} inputs per state, got {inputs.shape[1]}")
        score = _features(inputs, np.array(self.mean), np.array(self.std)) @ np.array(self.weights)
        return np.array(self.levels)[np.searchsorted(self.scores, score, side="right")]

    def with_limit(self, limit: float) -> Risk:
        """Return a copy with another limit."""
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0.0 < limit <= 1.0:
            raise RunError(f"the limit of a risk is a probability above 0, got {limit!r}")
        return dataclasses.replace(self, limit=float(limit))

    def to_json(self) -> str:
        """Return the risk as JSON."""
        return json.dumps({"format": FORMAT, **encode(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, *, origin: str = "the risk") -> Risk:
        """Read the output of `to_json`."""
        content = from_json(text, origin)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise RunError(f"{origin} is not a risk of PSyCo, or it is damaged")
        risk = decode(content, cls, origin)
        features = _features(np.zeros((1, len(risk.mean))), 0.0, 1.0).shape[1]
        if (features, len(risk.scores) + 1, len(risk.mean)) != (
            len(risk.weights),
            len(risk.levels),
            len(risk.std),
        ):
            raise RunError(f"{origin} is damaged: the sizes of its lists do not match")
        return risk

    @classmethod
    def load(cls, path: str | Path) -> Risk:
        """Read a file with the output of `to_json`."""
        return cls.from_json(read_text(path, "risk"), origin=str(path))

    def __str__(self) -> str:
        when = "in the end" if self.within is None else f"within {self.within} steps"
        lines = [
            f"risk of a violation {when}, from {plural(self.episodes, 'episode')}, {self.violated:,} of them violated",
            "  estimated          states   mean estimate   observed",
        ]
        for each in self.calibration:
            span = f"{each.lower:.2f} to {each.upper:.2f}"
            lines.append(f"  {span:14}  {each.states:9,}   {each.estimated:13.4f}   {each.observed:8.4f}")
        return "\n".join(lines)


def risk_inputs(observation: Any, signals: Mapping[str, Any], status: Status) -> list[float]:
    """Return the inputs of a risk: the observation, the requirement's signals, its aggregates, and the step."""
    named = [signals[name] for name in sorted(signals) if name != "obs"]
    parts = [np.ravel(each) for each in (observation, *named)]
    return [*map(float, np.concatenate(parts)), *status.aggregates.values(), float(status.step)]


def fit_risk(
    monitor: Monitor, paths: Sequence[Mapping[str, Any]], *, within: int | None = None, limit: float = 0.1
) -> Risk:
    """Fit to half of the recorded episodes, calibrate on a quarter, and tabulate the calibration on the last quarter.

    Args:
        monitor: of the requirement; a violation that it cannot foresee counts from its step on.
        paths: all signals along episodes, arrays `[n+1, ...]` by name, as `psyco.record` gives them.
        within: maximum steps until a violation; None: at any time.
        limit: risk from which on a guard hands over.
    """
    if len(paths) < MIN_EPISODES:
        raise RunError(f"a risk is learned from at least {MIN_EPISODES} recorded episodes, got {len(paths)}")
    states = [_labelled(monitor, path, within) for path in paths]
    violated = sum(each.violated for each in states)
    if violated == 0 or (violated == len(paths) and within is None):
        raise RunError(
            f"{violated} of {len(paths)} recorded episodes violate the requirement: a risk that is equal in all of "
            f"them cannot be learned; record more episodes{', or look less far ahead (within=5)' if violated else ''}"
        )
    half, quarter = len(paths) // 2, len(paths) // 4
    x, y = _joined(states[:half])
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-9
    weights = _logistic(_features(x, mean, std), y)
    x, y = _joined(states[half : half + quarter])
    scores, levels = _isotonic(_features(x, mean, std) @ weights, y)
    found = {"mean": mean, "std": std, "weights": weights, "scores": scores, "levels": levels}
    numbers: dict[str, Any] = {name: tuple(each.tolist()) for name, each in found.items()}
    made = Risk(str(monitor.requirement), within, len(paths), violated, **numbers)
    x, y = _joined(states[half + quarter :])
    return dataclasses.replace(made, calibration=tuple(_bins(made(x), y))).with_limit(limit)


class _EpisodeStates(NamedTuple):
    """States of one episode before its violation was decided."""

    inputs: Numbers  # [m, inputs]
    labels: NDArray[np.bool_]  # [m]: a violation followed
    violated: bool


def _labelled(monitor: Monitor, path: Mapping[str, Any], within: int | None) -> _EpisodeStates:
    status, inputs, last = monitor.start(), [], len(path["obs"]) - 1
    for step in range(last + 1):
        now = {name: path[name][step] for name in monitor.signals & path.keys()}
        status = monitor.update(now, end=step == last)
        if status.outlook is Outlook.VIOLATED:
            break
        if step < last:  # no policy acts in the last state
            inputs.append(risk_inputs(np.asarray(path["obs"][step], np.float32), now, status))  # as a guard sees it
    violated = status.outlook is Outlook.VIOLATED
    ahead = status.step - np.arange(len(inputs))
    return _EpisodeStates(np.array(inputs), violated & (ahead <= (within or last)), violated)


def _joined(states: Sequence[_EpisodeStates]) -> tuple[Numbers, NDArray[np.bool_]]:
    nonempty = [each for each in states if len(each.inputs)]
    if not nonempty:
        raise RunError("the recorded episodes are violated from the start: no state is left to learn a risk from")
    return np.concatenate([each.inputs for each in nonempty]), np.concatenate([each.labels for each in nonempty])


def _features(x: Numbers, mean: Any, std: Any) -> Numbers:
    """Return 1, the standardized inputs `[n, inputs]`, their squares, and for few inputs their products."""
    z = np.clip((x - mean) / std, -10.0, 10.0)  # an outlier must not dominate
    count = z.shape[1]
    i, j = np.triu_indices(count) if count <= MAX_INPUTS_WITH_PRODUCTS else (np.arange(count),) * 2
    return np.hstack([np.ones((len(z), 1)), z, z[:, i] * z[:, j]])


def _logistic(x: Numbers, y: NDArray[np.bool_]) -> Numbers:
    """Return the weights `[F]` of a logistic regression of outcomes `[n]` on features `[n, F]`."""
    from scipy.optimize import minimize

    def loss(weights: Numbers) -> tuple[float, Numbers]:
        score = x @ weights
        residual = 1.0 / (1.0 + np.exp(-np.clip(score, -500, 500))) - y
        value = np.mean(np.logaddexp(0.0, score) - y * score) + RIDGE / 2.0 * weights @ weights
        return float(value), x.T @ residual / len(x) + RIDGE * weights

    found: Numbers = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x
    return found


def _isotonic(score: Numbers, y: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """Return the isotonic regression of outcomes on scores: its change points `[k]` and levels `[k+1]`."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(score, kind="stable")
    level = isotonic_regression(y[order].astype(np.float64)).x
    steps = np.flatnonzero(np.diff(level) > 0) + 1
    return score[order][steps], level[np.append(0, steps)]


def _bins(risk: Numbers, y: NDArray[np.bool_]) -> Iterator[RiskBin]:
    place = np.clip(np.searchsorted(CALIBRATION_EDGES, risk, side="right") - 1, 0, len(CALIBRATION_EDGES) - 2)
    for k in np.unique(place):
        here = place == k
        yield RiskBin(
            CALIBRATION_EDGES[k],
            CALIBRATION_EDGES[k + 1],
            int(here.sum()),
            float(risk[here].mean()),
            float(y[here].mean()),
        )
