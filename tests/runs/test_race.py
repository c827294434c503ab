"""Selection is a race; a test that would hardly end well is ended, and does not err."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.progress import Progress

import psyco
from psyco._src.cli import display as progress
from psyco._src.logic.parser import parse
from psyco._src.rollout.episodes import Episodes
from psyco._src.runs.select import RacingCandidate, _race
from psyco._src.runs.settings import Settings
from psyco._src.runs.train import RunProgress
from psyco._src.verification.base import Counts, Verdict
from psyco._src.verification.episode_stream import EpisodeStream
from psyco._src.verification.methods import make_test
from psyco._src.verification.operating_characteristics import acceptance_probability
from psyco._src.verification.verifier import verify_parameters

REQUIREMENT = parse("P>=0.9 [ F goal ] & C>=0.95")
POLE = "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.95"


class Coin:
    """Parameters (p, r): an episode satisfies with probability p and returns about r; its key is its luck."""

    compiled = False

    def __init__(self) -> None:
        self.played = 0

    def __call__(self, theta: Any, keys: Any) -> Episodes:
        self.played += len(keys)
        luck = np.asarray(jax.vmap(jax.random.uniform)(keys))
        held = luck < np.asarray(theta[:, 0])
        cost: Any = (~held[:, None]).astype(np.float32)
        ret: Any = np.asarray(theta[:, 1] + 0.1 * luck, np.float32)
        return Episodes(ret, cost, held[:, None], np.ones(len(keys), np.int32))  # type: ignore[arg-type]


class Stub:
    horizon, name = 1, "coin"


def source(coin: Coin, p: float, r: float = 0.0, seed: int = 0) -> EpisodeStream:
    domain: Any = Stub()
    return EpisodeStream(coin, jnp.array([p, r], jnp.float32), jax.random.key(seed), domain, REQUIREMENT)  # type: ignore[arg-type]


def test_the_chance_that_is_left_is_that_of_a_simulation() -> None:
    test = make_test("anytime", REQUIREMENT.constraints[0])  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for counts in (Counts(60, 4), Counts(62, 2), Counts(55, 9)):
        p = rng.beta(counts.satisfied + 1, counts.violated + 1, 20_000)
        more = rng.binomial(136, p)
        end = Counts(counts.satisfied + more, counts.violated + 136 - more)
        simulated = np.mean(test.decide(end) == 1)
        # 5 standard deviations of a share of 20,000: fails by chance once in a million
        assert acceptance_probability(test, counts, 200) == pytest.approx(simulated, abs=0.018)


def test_giving_up_saves_episodes_and_never_changes_a_verdict_for_the_better() -> None:
    saved = 0
    for seed in range(8):
        for p in (0.84, 0.9, 0.97):
            patient = verify_parameters(source(Coin(), p, seed=seed), method="anytime", max_episodes=256)
            thrifty = verify_parameters(
                source(Coin(), p, seed=seed), method="anytime", max_episodes=256, min_accept_probability=0.01
            )
            if thrifty.verdict is Verdict.UNDECIDED:
                assert thrifty.episodes % 32 == 0 or thrifty.episodes == 256
                saved += patient.episodes - thrifty.episodes
            else:
                assert (thrifty.verdict, thrifty.episodes) == (patient.verdict, patient.episodes)
    assert saved > 100
    fixed = verify_parameters(source(Coin(), 0.5), method="fixed", max_episodes=64, min_accept_probability=0.5)
    assert fixed.episodes == 64  # counts on its cap


def race(coin: Coin, *, attempts: int = 1, most: int = 200) -> list[Any]:
    qualities = [(0.5, 9.0), (0.99, 1.0), (0.99, 3.0), (0.8, 5.0), (0.99, 2.0)]
    runners = []
    for i, (p, r) in enumerate(qualities):
        policy: Any = SimpleNamespace(digest=f"policy {i}")
        runners.append(RacingCandidate(i, policy, source(coin, p, r)))
    settings = Settings(selection_episodes=most, attempts=attempts)
    return [c.generation for c in _race(runners, settings, 1.0)]


def test_a_race_finds_the_best_with_fewer_episodes() -> None:
    coin = Coin()
    order = race(coin)
    assert order[:1] == [2]  # certain enough, and the best return of those
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert coin.played <= 0.7 * 5 * 200


def test_plain_lines_say_which_phase_it_is_and_nobody_waits_for_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "remark", said.append)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.05)
    with progress._lines() as lines:
        time.sleep(0.3)
        lines.stage(RunProgress("learning", 0, 200, "steps"))
        time.sleep(0.3)
        lines.stage(RunProgress("learning", 50, 200, "steps"))
        lines.stage(RunProgress("checking", 1, 10, "episodes"))
        time.sleep(0.3)
        lines.stage(RunProgress("selecting", 3, 30, "episodes"))
    first = "preparing: compiling and measuring the speed, for 0 s"
    assert said[0] == first and 2 <= said.count(first) <= 3  # after 0.05, 0.15 and 0.35 seconds
    assert 1 <= said.count("learning: compiling and playing the first episodes, for 0 s") <= 4
    assert "learning: 50 steps (25%)" in said
    assert any(line.startswith("checking: 1 episode (10%)") for line in said)
    assert said[-1].startswith("selecting: 3 episodes (10%)")


def test_what_follows_cloning_is_not_called_cloning(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "remark", said.append)
    lines = progress.PlainDisplay()
    for _ in range(2):
        lines.stage(RunProgress("cloning", 0, 200, "updates"))
        lines.last -= 60.0
        lines.beat()
    lines.stage(RunProgress("cloning", 100, 200, "updates"))
    lines.stage(RunProgress("cloning", 200, 200, "updates"))
    assert said[0] == "cloning: compiling, for 0 s"
    lines.last -= 60.0
    lines.beat()
    assert said[-1] == "preparing: compiling and measuring the speed, for 0 s"


@pytest.mark.parametrize(("width", "says"), [(80, "compiling and playing the first episodes"), (60, "learning")])
def test_a_terminal_says_what_is_compiled(width: int, says: str) -> None:
    bar = Progress()
    live = progress.LiveDisplay(bar, width)
    (task,) = bar.tasks
    live.stage(RunProgress("cloning", 0, 200, "updates"))
    assert task.description == ("cloning: compiling" if width == 80 else "cloning")
    live.stage(RunProgress("cloning", 200, 200, "updates"))
    assert task.description == "preparing"
    live.stage(RunProgress("learning", 7, 90, "steps"))  # of a resumed run
    assert task.description.removeprefix("learning: ") == says
    live.stage(RunProgress("learning", 20, 90, "steps"))
    assert (task.description, task.completed) == ("learning", 20)


def test_nobody_waits_longer_than_ten_seconds_for_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while nothing changes, as in a long generation."""
    said: list[str] = []
    monkeypatch.setattr(progress, "remark", said.append)
    lines = progress.PlainDisplay()
    lines.stage(RunProgress("certifying", 7, 60, "episodes"))
    for count in range(2, 9):
        lines.last -= 10.0
        lines.beat()
        assert len(said) == count


def test_the_remaining_time_counts_down_and_is_that_of_the_speed_after_compiling() -> None:
    """Compiling takes 8 s, then a step a second: 100 steps; the last of them in generations of ten."""

    def at(done: int) -> RunProgress:
        return RunProgress("learning", done, 100, "steps")

    clock = progress.PhaseClock(at(0), 0.0)
    clock.report(at(10), 18.0)
    assert clock.left(100, 19.0) is None  # how much of it was compiling is not known
    clock.report(at(20), 28.0)
    assert [clock.left(100, now) for now in (28.0, 33.0, 37.9)] == pytest.approx([80.0, 75.0, 70.1])
    clock.report(at(30), 38.0)
    assert clock.left(100, 38.0) == 70.0 and clock.left(100, 200.0) == 0.0


@pytest.mark.slow
def test_a_run_tells_its_phases_and_how_long_they_took(tmp_path: Path) -> None:
    stages: list[RunProgress] = []
    run = psyco.start(
        psyco.make("CartPole-v1", horizon=20),
        POLE,
        tmp_path / "pole",
        episodes=96,
        callbacks=[psyco.Callback(on_progress=stages.append)],
        settings=psyco.Settings(
            learner="safe-es",
            options={"population": 6, "checks": 2},
            hidden=4,
            candidates=3,
            selection_episodes=8,
            max_episodes=40,
        ),
    )
    phases = ["learning", "selecting", "certifying", "comparing with baselines"]
    assert list(dict.fromkeys(stage.phase for stage in stages)) == phases
    assert all(0 <= stage.done <= stage.total for stage in stages)
    assert run.info is not None and set(run.info.seconds) == {"learning", "certifying"}
    assert not (run.folder / "played.safetensors").exists()
