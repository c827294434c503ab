"""Alias tables (Walker 1977): a branch of a choice in constant time, whatever the number of branches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WORD = 2.0**32
MIN_THRESHOLD_BITS = 24


class AliasTables(NamedTuple):
    """One table per choice, with a power of two of entries, one after the other: N in all.

    Random bits select an entry, equally likely; further bits below its threshold select the first branch, others the
    second. So a probability is exact to at least 2**-24.
    """

    base: NDArray[np.int32]  # [M] first entry of a choice
    shift: NDArray[np.uint32]  # [M] 32 minus the binary logarithm of its number of entries
    threshold: NDArray[np.uint32]  # [N]
    first: NDArray[np.int32]  # [N] branch
    second: NDArray[np.int32]  # [N] branch

    @property
    def words(self) -> int:
        """Random words of 32 bits per step: the bits that select no entry suffice, unless there are many entries."""
        return 1 if self.shift.min() >= MIN_THRESHOLD_BITS else 2


def alias_tables(branches: NDArray[np.int64], probability: NDArray[np.float64]) -> AliasTables:
    """Return the tables of choices with branches `[M+1]` and their probabilities `[E]`."""
    counts = np.diff(branches)
    bits = np.ceil(np.log2(counts)).astype(np.int64)
    base = np.concatenate([[0], np.cumsum(1 << bits)])
    threshold = np.zeros(base[-1])
    first, second = np.zeros(base[-1], np.int32), np.zeros(base[-1], np.int32)
    # Choices with equally many branches are filled at once.
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        for part in np.array_split(rows, -(-len(rows) * int(count) // 2**22)):
            entries = base[part][:, None] + np.arange(1 << int(bits[part[0]]))
            _fill(entries, branches[part], probability, int(count), threshold, first, second)
    exact = np.minimum(np.round(threshold * WORD), WORD - 1).astype(np.uint32)
    return AliasTables(base[:-1].astype(np.int32), (32 - bits).astype(np.uint32), exact, first, second)


def _fill(
    entries: NDArray[np.int64],
    starts: NDArray[np.int64],
    probability: NDArray[np.float64],
    count: int,
    threshold: NDArray[np.float64],
    first: NDArray[np.int32],
    second: NDArray[np.int32],
) -> None:
    """Fill the entries `[rows, size]` of choices with `count` branches each, from `starts` `[rows]`."""
    rows, size = entries.shape
    every = np.arange(rows)
    left = np.zeros((rows, size))
    left[:, :count] = probability[starts[:, None] + np.arange(count)] * size  # in units of an entry
    if np.allclose(left, 1.0, rtol=0, atol=1e-12):  # equally likely branches, as many as entries
        threshold[entries], first[entries] = 1.0, starts[:, None] + np.arange(size)
        second[entries] = first[entries]
        return
    open_entry = np.ones((rows, size), bool)
    for _ in range(size):
        # The entry with least is filled up by the branch with most, and is done.
        small = np.argmin(np.where(open_entry, left, np.inf), axis=1)
        large = np.argmax(np.where(open_entry, left, -np.inf), axis=1)
        kept = np.clip(left[every, small], 0.0, 1.0)
        spot = entries[every, small]
        threshold[spot] = kept
        first[spot] = starts + np.where(small < count, small, large)
        second[spot] = starts + large
        left[every, large] -= 1.0 - kept
        open_entry[every, small] = False
