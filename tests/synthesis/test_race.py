"""Selection is a race that survives an interruption; a test that would hardly end well is ended, and does not err."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src import durable
from psyco._src.certify.source import Source
from psyco._src.certify.verify import verify_parameters
from psyco._src.cli import progress
from psyco._src.rollout.episodes import Episodes
from psyco._src.run.played import Played
from psyco._src.smc.base import Counts, Verdict
from psyco._src.smc.methods import make_test
from psyco._src.smc.plan import chance_left
from psyco._src.spec.parse import parse
from psyco._src.synthesis.loop import Stage
from psyco._src.synthesis.selection import Runner, _raced
from psyco._src.synthesis.settings import Settings

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


class Stop(Exception):
    """Something came in between."""


class Failing(Coin):
    """Does not get far."""

    def __call__(self, theta: Any, keys: Any) -> Episodes:
        if self.played > 150:
            raise Stop
        return super().__call__(theta, keys)


class Stub:
    horizon, name = 1, "coin"


def source(coin: Coin, p: float, r: float = 0.0, seed: int = 0) -> Source:
    domain: Any = Stub()
    return Source(coin, jnp.array([p, r], jnp.float32), jax.random.key(seed), domain, REQUIREMENT)  # type: ignore[arg-type]


def test_the_chance_that_is_left_is_that_of_a_simulation() -> None:
    test = make_test("anytime", REQUIREMENT.constraints[0])  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for counts in (Counts(60, 4), Counts(62, 2), Counts(55, 9)):
        p = rng.beta(counts.satisfied + 1, counts.violated + 1, 20_000)
        more = rng.binomial(136, p)
        end = Counts(counts.satisfied + more, counts.violated + 136 - more)
        simulated = np.mean(test.decide(end) == 1)
        # 5 standard deviations of a share of 20,000: fails by chance once in a million
        assert chance_left(test, counts, 200) == pytest.approx(simulated, abs=0.018)


def test_giving_up_saves_episodes_and_never_changes_a_verdict_for_the_better() -> None:
    saved = 0
    for seed in range(8):
        for p in (0.84, 0.9, 0.97):
            patient = verify_parameters(source(Coin(), p, seed=seed), method="anytime", max_episodes=256)
            thrifty = verify_parameters(
                source(Coin(), p, seed=seed), method="anytime", max_episodes=256, give_up=0.01
            )
            if thrifty.verdict is Verdict.UNDECIDED:
                assert thrifty.episodes % 32 == 0 or thrifty.episodes == 256
                saved += patient.episodes - thrifty.episodes
            else:
                assert (thrifty.verdict, thrifty.episodes) == (patient.verdict, patient.episodes)
    assert saved > 100
    fixed = verify_parameters(source(Coin(), 0.5), method="fixed", max_episodes=64, give_up=0.5)
    assert fixed.episodes == 64  # counts on its cap


def race(folder: Path, coin: Coin, *, attempts: int = 1, most: int = 200) -> list[Any]:
    qualities = [(0.5, 9.0), (0.99, 1.0), (0.99, 3.0), (0.8, 5.0), (0.99, 2.0)]
    runners = []
    for i, (p, r) in enumerate(qualities):
        policy: Any = SimpleNamespace(digest=f"policy {i}")
        runners.append(Runner(i, policy, source(coin, p, r)))
    with Played(folder, "run") as played:
        settings = Settings(selection_episodes=most, attempts=attempts)
        remembering = [r._replace(source=r.source._replace(memory=played)) for r in runners]
        return [c.generation for c in _raced(remembering, settings, 1.0)]


def test_a_race_finds_the_best_with_fewer_episodes_and_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, cut = Coin(), Coin()
    order = race(tmp_path, whole)
    assert order[:1] == [2]  # certain enough, and the best return of those
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert whole.played <= 0.7 * 5 * 200
    folder = tmp_path / "run"
    folder.mkdir()

    failing = Failing()
    with pytest.raises(Stop):
        race(folder, failing)
    assert race(folder, cut) == order
    assert cut.played == whole.played - failing.played
    (folder / "played.safetensors").write_bytes(b"nonsense")
    again = Coin()
    assert race(folder, again) == order and again.played == whole.played


def test_an_interrupted_certificate_goes_on_where_it_was(tmp_path: Path) -> None:
    def look(coin: Coin, run: str = "run", code: str | None = "code") -> Any:
        with Played(tmp_path, run, code) as played:
            remembering = source(coin, 0.92, 1.0, seed=1)._replace(memory=played)
            return verify_parameters(remembering, method="anytime", max_episodes=400)

    whole, failing, rest = Coin(), Failing(), Coin()
    undisturbed = verify_parameters(source(whole, 0.92, 1.0, seed=1), method="anytime", max_episodes=400)
    with pytest.raises(Stop):
        look(failing)
    done = look(rest)
    assert (done.verdict, done.progress, done.episodes) == (
        undisturbed.verdict,
        undisturbed.progress,
        undisturbed.episodes,
    )
    assert done.returns.tobytes() == undisturbed.returns.tobytes()
    assert 0 < rest.played == whole.played - failing.played
    for other in ({"run": "another"}, {"code": "changed"}, {"code": None}):
        again = Coin()
        assert look(again, **other).progress == undisturbed.progress
        assert again.played == whole.played, "episodes of another run, or of other code, are not taken over"


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["ppo", "sac", "safe-es"])
def test_what_is_kept_meanwhile_is_written_whatever_learns(
    learner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actor-critics also look at what was observed, which is no part of what is judged."""
    monkeypatch.setattr("psyco._src.run.played.EVERY", 0.0)
    written: list[str] = []
    write = durable.write
    monkeypatch.setattr(
        durable, "write", lambda path, data: (written.append(path.name), write(path, data))[1]
    )
    run = psyco.start(
        psyco.make("CartPole-v1", horizon=10), POLE, tmp_path / "run", episodes=60, hidden=4, learner=learner,
        learner_options={"population": 4, "checks": 2}, candidates=2, selection_episodes=8, max_episodes=40,
    )  # fmt: skip
    assert run.certificate is not None and written.count("played.safetensors") >= 3
    assert not (run.folder / "played.safetensors").exists()


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_a_damaged_file_of_episodes_is_played_again(tmp_path: Path, cut: float) -> None:
    def look(coin: Coin) -> Any:
        with Played(tmp_path, "run") as played:
            done = verify_parameters(
                source(coin, 0.99)._replace(memory=played), method="anytime", max_episodes=100
            )
            played.save()
            return done

    first, again = Coin(), Coin()
    undisturbed = look(first)
    file = tmp_path / "played.safetensors"
    data = bytearray(file.read_bytes())
    data[int(cut * len(data))] ^= 1
    file.write_bytes(bytes(data))
    assert look(again).progress == undisturbed.progress and again.played == first.played


def test_plain_lines_say_which_phase_it_is_and_nobody_waits_for_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "remark", said.append)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.05)
    with progress._lines() as lines:
        time.sleep(0.3)
        lines.stage(Stage("learning", 50, 200, "steps"))
        lines.stage(Stage("checking", 1, 10, "episodes"))
        time.sleep(0.3)
        lines.stage(Stage("selecting", 3, 30, "episodes"))
    assert said[0].startswith("preparing, for 0 s") and said.count(said[0]) >= 2
    assert "learning: 50 steps (25%)" in said
    assert any(line.startswith("checking: 1 episodes (10%)") for line in said)
    assert said[-1].startswith("selecting: 3 episodes (10%)")
    assert len(said) >= 6


@pytest.mark.slow
def test_a_run_tells_its_phases_and_how_long_they_took(tmp_path: Path) -> None:
    stages: list[Stage] = []
    run = psyco.start(
        psyco.make("CartPole-v1", horizon=20), POLE, tmp_path / "pole", episodes=96, hidden=4,
        learner_options={"population": 6, "checks": 2}, candidates=3, selection_episodes=8, max_episodes=40,
        sinks=[psyco.Sink(progress=stages.append)],
    )  # fmt: skip
    assert list(dict.fromkeys(stage.phase for stage in stages)) == ["learning", "selecting", "certifying"]
    assert all(0 <= stage.done <= stage.of for stage in stages)
    assert run.about is not None and set(run.about.seconds) == {"learning", "certifying"}
    assert not (run.folder / "played.safetensors").exists()
