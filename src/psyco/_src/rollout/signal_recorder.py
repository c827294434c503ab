"""Recording of signals along Gymnasium episodes: appended while they run, arrays when they have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError, format_exception
from psyco._src.envs.gym_env import (
    INFO_PREFIX,
    NUMERIC_KINDS,
    SINGLE_VALUES,
    GymDomain,
    info_value,
    is_info,
    signal_values,
    snapshot,
)
from psyco._src.logic.batch_monitor import BatchMonitor

BLOCK = 256  # states that are buffered before they are copied into arrays
DTYPES = {"terminated": bool, "truncated": bool}
BUILT_IN = frozenset({"obs", "action", "reward", "return", "terminated", "truncated"})


class EpisodeFault(ValueError):
    """A fault of the episode at position `at` of the running ones."""

    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at = at


def brief(value: Any) -> str:
    """Return the `repr` of any value in at most 80 characters."""
    try:
        text = repr(value)
    except Exception:  # of third-party code
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


class SignalRecorder:
    """Records the wanted signals; the last state of an episode repeats to the horizon.

    None: all signals of the domain, and those that the monitor reads, as keys of `info` that appear late.
    """

    def __init__(
        self, domain: GymDomain, seeds: list[int], wanted: frozenset[str] | None, monitor: BatchMonitor
    ) -> None:
        """Prepare for episodes with these seeds, whose signals the monitor will read."""
        self.domain, self.seeds = domain, seeds
        count = len(seeds)
        if wanted is None:
            names = {name for name in domain.table if not name.endswith(INFO_PREFIX)} | monitor.signals
        else:
            names = set(wanted)
        self.steps = "step" in names
        self.arrays: dict[str, NDArray[Any]] = {}  # [n+1, B, ...]
        for name in names & BUILT_IN:
            size = domain.table[name].size
            shape = (domain.horizon + 1, count) if size is None else (domain.horizon + 1, count, size)
            self.arrays[name] = np.zeros(shape, domain.exact_type if name == "obs" else DTYPES.get(name, np.float64))
        # `info` and signal functions give Python values, whose types are known at the end only.
        others = sorted(names - BUILT_IN - {"step"})
        self.others = {name: _Values(domain, name, monitor, optional=wanted is None) for name in others}
        self.values: dict[str, list[list[Any]]] = {name: [[] for _ in range(count)] for name in others}
        # States since the last block, one entry per state and running episode.
        self._block: dict[str, list[Any]] = {name: [] for name in (*self.arrays, *others)}
        self._rows: NDArray[np.intp] = np.arange(count)
        self._begun = 0  # time of the block's first state
        columns = {name: self.others[name] if name in self.others else _column(domain, name) for name in self._block}
        self._keep = [(self._block[name].append, columns[name]) for name in self._block]

    def add(self, t: int, rows: NDArray[np.intp], *state: Any) -> None:
        """Add the states at time t of the running episodes `rows`.

        `state`, from which columns pick, is: flat observations, raw observations, infos, actions, rewards, returns,
        terminated, truncated; each of them `[B]` or longer. The actions of first states follow with
        `add_first_actions`.
        """
        if rows is not self._rows or t - self._begun == BLOCK:
            self._store(t, rows)
        for keep, column in self._keep:
            keep(column(state))

    def add_first_actions(self, actions: Sequence[Any]) -> None:
        """Set `action` of the first states to the first actions; in other states it is the action that led there."""
        if "action" in self._block:
            self._block["action"][0] = self.domain.action_signal(actions)

    def _store(self, t: int, rows: NDArray[np.intp]) -> None:
        """Copy the block into the arrays; the next one begins at time t with these rows."""
        if t > self._begun:
            for name, array in self.arrays.items():
                block = np.asarray(self._block[name])
                if name == "obs" and array.dtype != block.dtype:  # its space states a smaller type
                    array = self.arrays[name] = array.astype(np.promote_types(array.dtype, block.dtype), copy=False)
                if len(self._rows) == len(self.seeds):
                    array[self._begun : t] = block
                else:
                    array[self._begun : t, self._rows] = block
            for name in self.others:
                kept = self.values[name]
                for row, column in zip(self._rows.tolist(), zip(*self._block[name], strict=True), strict=True):
                    kept[row].extend(column)
            for values in self._block.values():
                values.clear()
        self._rows, self._begun = rows, t

    def finish(self, last: int, length: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """Return the signals `[B, n+1, ...]` of episodes with lengths `[B]`, the longest of `last` steps."""
        self._store(last + 1, self._rows)
        done = {name: np.moveaxis(array, 0, 1) for name, array in self.arrays.items()}
        for array in done.values():
            for row, end in enumerate(length.tolist()):
                array[row, end + 1 :] = array[row, end]
        if self.steps:
            done["step"] = np.minimum(np.arange(self.domain.horizon + 1.0), length[:, None])
        for name, values in self.others.items():
            stacked = self._stacked(self.values[name], values.missing)
            if values.usable and stacked.dtype.kind in NUMERIC_KINDS:
                done[name] = stacked
            elif not values.optional:  # a Python integer of more than 64 bits
                row, step, value = next(
                    (row, step, value)
                    for row, path in enumerate(self.values[name])
                    for step, value in enumerate(path)
                    if value is not None and np.asarray(value).dtype.kind not in NUMERIC_KINDS
                )
                raise EpisodeError(self.domain.name, self.seeds[row], step, values.misfit(value))
        return done

    def missing_info(self) -> NDArray[np.float32] | None:
        """Return the fraction of states without each wanted key of `info`, `[B, I]`; None if there are no such keys."""
        keys = [name for name in self.others if is_info(name)]
        parts = [[np.mean([value is None for value in row]) for row in self.values[key]] for key in keys]
        return np.array(parts, np.float32).T if keys else None

    def _stacked(self, rows: list[list[Any]], missing: Any) -> NDArray[Any]:
        """Return values over time as one array `[B, n+1, ...]`; `missing` stands for None."""
        longest = self.domain.horizon + 1
        filled = [np.array([missing if value is None else value for value in row]) for row in rows]
        return np.stack([np.pad(r, [(0, longest - len(r))] + [(0, 0)] * (r.ndim - 1), "edge") for r in filled])


class _Values:
    """The values of one signal from `info` or a function: checked and copied, state by state."""

    def __init__(self, domain: GymDomain, name: str, monitor: BatchMonitor, *, optional: bool) -> None:
        self.name, self.read, self.monitor = name, _column(domain, name), monitor
        self.optional = optional  # a signal that is no number is left out
        self.usable = True
        self.missing: NDArray[Any] = np.zeros(monitor.used_shape(name))  # a missing key of `info` counts as 0 or false
        self.shape: tuple[int, ...] | None = None  # of the first value

    def __call__(self, state: tuple[Any, ...]) -> Sequence[Any]:
        """Return the values `[B]` in these states; None where one is missing."""
        values: Sequence[Any] = self.read(state)
        # The two frequent cases at once, for speed.
        if self.shape == () and SINGLE_VALUES.issuperset(map(type, values)):
            return values
        if self.shape and {np.ndarray}.issuperset(map(type, values)):
            with suppress(ValueError):  # lengths differ
                copied = np.array(values)
                if copied.shape[1:] == self.shape and copied.dtype == self.missing.dtype:
                    return list(copied)
        try:
            return [None if value is None else self._checked(at, value) for at, value in enumerate(values)]
        except EpisodeFault:
            if not self.optional:
                raise
            self.usable, self.read, self.shape = False, lambda state: [None] * len(state[1]), ()
            return self.read(state)

    def _checked(self, at: int, value: Any) -> Any:
        try:
            array = np.asarray(snapshot(value))
        except Exception as error:  # conversions of third-party types
            problem = f"the signal {self.name} is {brief(value)}: {format_exception(error)}"
            raise EpisodeFault(at, problem) from error
        if self.shape is None and array.dtype.kind in NUMERIC_KINDS:
            self.monitor.check_shape(self.name, array.shape)
            if array.ndim <= 1:
                self.shape, self.missing = array.shape, np.zeros_like(array)
        if array.dtype.kind not in NUMERIC_KINDS or array.shape != self.shape:
            raise EpisodeFault(at, self.misfit(value))
        return array[()]

    def misfit(self, value: Any) -> str:
        """Return the problem of a value of another type or shape."""
        needed = "a formula needs numbers or Booleans, or vectors of the same length"
        return f"the signal {self.name} is {brief(value)}; {needed}"


def _column(domain: GymDomain, name: str) -> Callable[[tuple[Any, ...]], Any]:
    """Return a function from `state` of `SignalRecorder.add` to the values `[B]` or `[B, size]` of a signal."""
    places = {"obs": 0, "reward": 4, "return": 5, "terminated": 6, "truncated": 7}
    if name in places:
        place = places[name]
        return lambda state: state[place]
    if name == "action":
        return lambda state: None if state[3] is None else domain.action_signal(state[3])
    if is_info(name):
        key = name.removeprefix(INFO_PREFIX)

        def of_info(state: tuple[Any, ...]) -> list[Any]:
            try:
                return [info[key] if key in info else info_value(info, name) for info in state[2]]
            except Exception as error:  # because `info` is not a mapping
                at = next((at for at, info in enumerate(state[2]) if not hasattr(info, "get")), 0)
                raise EpisodeFault(at, f"the signals {name}: {format_exception(error)}") from error

        return of_info

    def of_function(state: tuple[Any, ...]) -> list[Any]:
        values: list[Any] = []
        for at, (observation, info) in enumerate(zip(state[1], state[2], strict=True)):
            try:
                values += signal_values(domain, (name,), observation, info)
            except Exception as error:  # of a signal function
                raise EpisodeFault(at, f"the signals {name}: {format_exception(error)}") from error
            if values[-1] is None:
                raise EpisodeFault(at, f"the signal {name} is None; give a value in every state")
        return values

    return of_function
