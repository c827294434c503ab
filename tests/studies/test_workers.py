"""Processes that complete one cell after the other stay within what the system gives them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from psyco._src.studies import workers

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="memory maps cannot be counted here")
@pytest.mark.more
def test_programs_are_forgotten_before_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        return MAPS.read_bytes().count(b"\n")

    compiled = [jax.jit(lambda x, n=n: jnp.sin(x) * n + n) for n in range(40)]
    for each in compiled:
        each(jnp.arange(3.0))
    before = count()
    assert not workers.clear_compiled_programs(), "there is room"
    assert compiled[0]._cache_size() == 1
    monkeypatch.setattr(workers, "MAX_MEMORY_MAPS", before - 1)
    assert workers.clear_compiled_programs()
    assert compiled[0]._cache_size() == 0
    assert count() <= before - len(compiled)
    assert compiled[3](jnp.float32(0.0)) == 3.0
