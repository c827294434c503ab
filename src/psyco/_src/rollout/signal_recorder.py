"""Recording of signals along Gymnasium episodes: appended while they run, arrays when they have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError, format_exception
from psyco._src.envs.gym_env import INFO_PREFIX, NUMERIC_KINDS, GymDomain, info_value, signal_values

BLOCK = 256  # states that are buffered before they are copied into arrays
DTYPES = {"obs": np.float32, "terminated": bool, "truncated": bool}
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
    """Records the wanted signals (None: all); the last state of an episode repeats to the horizon."""

    def __init__(self, domain: GymDomain, seeds: list[int], wanted: frozenset[str] | None) -> None:
        self.domain, self.seeds, self.everything = domain, seeds, wanted is None
        count = len(seeds)
        names = {name for name in domain.table if name != INFO_PREFIX} if wanted is None else wanted
        self.steps = "step" in names
        self.arrays: dict[str, NDArray[Any]] = {}  # [n+1, B, ...]
        for name in names & BUILT_IN:
            size = domain.table[name].size
            shape = (domain.horizon + 1, count) if size is None else (domain.horizon + 1, count, size)
            self.arrays[name] = np.zeros(shape, DTYPES.get(name, np.float64))
        # `info` and signal functions give Python values, whose types are known at the end only.
        self.others = tuple(sorted(names - BUILT_IN - {"step"}))
        self.values: dict[str, list[list[Any]]] = {name: [[] for _ in range(count)] for name in self.others}
        # States since the last block, one entry per state and running episode.
        self._block: dict[str, list[Any]] = {name: [] for name in (*self.arrays, *self.others)}
        self._rows: NDArray[np.intp] = np.arange(count)
        self._begun = 0  # time of the block's first state
        self._keep = [(self._block[name].append, _column(domain, name)) for name in self._block]

    def add(self, t: int, rows: NDArray[np.intp], *state: Any) -> None:
        """Add the states at time t of the running episodes `rows`.

        `state`, from which `_column` picks, is: flat observations, raw observations, infos, actions, rewards, returns,
        terminated, truncated; each of them `[B]` or longer.
        """
        if rows is not self._rows or t - self._begun == BLOCK:
            self._store(t, rows)
        for keep, column in self._keep:
            keep(column(state))

    def _store(self, t: int, rows: NDArray[np.intp]) -> None:
        """Copy the block into the arrays; the next one begins at time t with these rows."""
        if t > self._begun:
            for name, array in self.arrays.items():
                if len(self._rows) == len(self.seeds):
                    array[self._begun : t] = self._block[name]
                else:
                    array[self._begun : t, self._rows] = self._block[name]
            for name in self.others:
                kept = self.values[name]
                for row, column in zip(self._rows.tolist(), zip(*self._block[name], strict=True), strict=True):
                    kept[row].extend(column)
            for block in self._block.values():
                block.clear()
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
        for name, rows in self.values.items():
            stacked = self._stacked(rows)
            if stacked is not None:
                done[name] = stacked
            elif not self.everything:  # where all signals are wanted, those that make no array are left out
                row, step, value = self._misfit(rows)
                problem = (
                    f"the signal {name} is {brief(value)}; a formula needs numbers or Booleans, or vectors of the same "
                    "length"
                )
                raise EpisodeError(self.domain.name, self.seeds[row], step, problem)
        return done

    def missing_info(self) -> NDArray[np.float32] | None:
        """Return the fraction of states without each wanted key of `info`, `[B, I]`; None if there are no such keys."""
        keys = [name for name in self.others if name.startswith(INFO_PREFIX)]
        parts = [[np.mean([value is None for value in row]) for row in self.values[key]] for key in keys]
        return np.array(parts, np.float32).T if keys else None

    def _misfit(self, rows: list[list[Any]]) -> tuple[int, int, Any]:
        """Return row, step and value of the first value that is not numeric, or whose shape differs from the first."""
        known = [(i, t, v) for i, row in enumerate(rows) for t, v in enumerate(row) if v is not None]
        arrays = [np.asarray(value) for *_, value in known]
        odd = (a.dtype.kind not in NUMERIC_KINDS or a.shape != arrays[0].shape for a in arrays)
        return known[next((i for i, is_odd in enumerate(odd) if is_odd), 0)]

    def _stacked(self, rows: list[list[Any]]) -> NDArray[Any] | None:
        """Return values over time as one array `[B, n+1, ...]`; None if they do not form one."""
        known = np.asarray(next((value for row in rows for value in row if value is not None), 0.0))
        # A missing key of `info` counts as 0 or false.
        missing = np.zeros_like(known)
        try:
            filled = [np.array([missing if value is None else value for value in row]) for row in rows]
            longest = self.domain.horizon + 1
            stacked = np.stack([np.pad(r, [(0, longest - len(r))] + [(0, 0)] * (r.ndim - 1), "edge") for r in filled])
        except (TypeError, ValueError):
            return None
        return stacked if stacked.dtype.kind in NUMERIC_KINDS and stacked.ndim <= 3 else None


def _column(domain: GymDomain, name: str) -> Callable[[tuple[Any, ...]], Any]:
    """Return a function from `state` of `SignalRecorder.add` to the values `[B]` or `[B, size]` of a signal."""
    places = {"obs": 0, "reward": 4, "return": 5, "terminated": 6, "truncated": 7}
    if name in places:
        place = places[name]
        return lambda state: state[place]
    if name == "action":
        return lambda state: domain.action_signal(state[3])
    if name.startswith(INFO_PREFIX):
        key = name.removeprefix(INFO_PREFIX)

        def of_info(state: tuple[Any, ...]) -> list[Any]:
            try:
                values = [info[key] if key in info else info_value(info, name) for info in state[2]]
            except Exception as error:  # because `info` is not a mapping
                at = next((at for at, info in enumerate(state[2]) if not hasattr(info, "get")), 0)
                raise EpisodeFault(at, f"the signals {name}: {format_exception(error)}") from error
            # Simulators return views of arrays that they change in the next step.
            return [value.copy() if isinstance(value, np.ndarray) else value for value in values]

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
