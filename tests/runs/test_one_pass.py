"""A run parses, checks and compiles everything once: calls are counted while `psyco.start` runs."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from jax._src.compiler import compile_or_get_cached

import psyco
from psyco._src.api import synthesize  # noqa: F401 - constants of modules are computed before calls are counted
from psyco._src.core.provenance import code_digest
from psyco._src.envs.registry import describe
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse
from psyco._src.logic.validate import check_signals
from psyco._src.policies.serialization import Policy
from psyco._src.runs.settings import Settings
from psyco._src.verification.verifier import check_decidable, decidable_ranges

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.9"
POLE = "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.9"
WATCHED: dict[str, Callable[..., Any]] = {
    "parse": parse,
    "check settings": Settings.__post_init__,
    "compile monitor": compile_monitor,
    "compile program": compile_or_get_cached,
    "check signals": check_signals,
    "check decidability": check_decidable,
    "check decidability and ranges": decidable_ranges,
    "describe domain": describe,
    "hash code": code_digest,
    "serialize policy": Policy.to_bytes,
}


def count_calls(run: Callable[[], Any]) -> Counter[str]:
    """Return how often each watched function is called, however it was imported."""

    names = {function.__code__: name for name, function in WATCHED.items()}
    calls = Counter[str]()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]] += 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def check_counts(calls: Counter[str]) -> None:
    decidability = calls["check decidability"] + calls["check decidability and ranges"]
    assert (calls["parse"], decidability, calls["check signals"]) == (1, 1, 1), calls
    assert calls["check settings"] <= 2, calls
    assert calls["compile monitor"] <= 2, calls  # that of the episodes, and that of the page
    assert calls["serialize policy"] <= 1 + 3, calls  # the result, and the digest of each certified candidate


def test_a_run_on_a_compiled_domain_goes_through_everything_once(tmp_path: Path) -> None:
    settings = Settings(hidden=4, verify_every=100, max_episodes=200, selection_episodes=20)
    calls = count_calls(
        lambda: psyco.start(
            "particle-dance",
            DANCE,
            tmp_path / "run",
            parameters={"horizon": 5},
            episodes=300,
            settings=settings,
        )
    )
    check_counts(calls)
    # The loop, batches of two sizes, recorded episodes; keys of a stream and of episodes, initial parameters and their
    # transfer. Fewer where an earlier test compiled some of them.
    assert calls["compile program"] <= 8, calls


@pytest.mark.parametrize("learner", ["safe-es", pytest.param("auto", marks=pytest.mark.more)])
def test_a_run_on_a_gymnasium_environment_goes_through_everything_once_and_steps_every_environment(
    learner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The normalization is sampled for safe-es, and follows learning for auto, which is sac here."""
    made, stepped = list[Any](), set[int]()
    init, step = CartPoleEnv.__init__, CartPoleEnv.step

    def counting_init(self: Any, *arguments: Any, **options: Any) -> None:
        made.append(self)
        init(self, *arguments, **options)

    def counting_step(self: Any, action: Any) -> Any:
        stepped.add(id(self))
        return step(self, action)

    monkeypatch.setattr(CartPoleEnv, "__init__", counting_init)
    monkeypatch.setattr(CartPoleEnv, "step", counting_step)
    settings = Settings(learner=learner, hidden=4, candidates=2, selection_episodes=8, verify_every=40, max_episodes=16)
    calls = count_calls(
        lambda: psyco.start(
            "CartPole-v1", POLE, tmp_path / "run", parameters={"horizon": 10}, episodes=80, settings=settings
        )
    )
    check_counts(calls)
    assert made and all(id(env) in stepped for env in made), f"{len(made) - len(stepped)} were never stepped"
