"""Episodes that cost time are not played twice: an interrupted generation, selection or certificate goes on."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import psyco
from psyco._src.core import files
from psyco._src.envs.gym_env import gym_domain
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse_formula
from psyco._src.policies.network import network_for
from psyco._src.rollout import gym_sampler
from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.gym_sampler import Chunk, GymSampler, Job, in_process_backend
from psyco._src.runs import episode_cache
from psyco._src.runs.episode_cache import FileEpisodeCache, local_key
from tests.environments import Walk
from tests.making import flat
from tests.runs.small import outcome

COUNT = 12
DOMAIN = gym_domain(Walk, horizon=10)
JOB = Job(DOMAIN, network_for(DOMAIN, hidden=4), compile_monitor([parse_formula("G (abs(obs[0]) <= 1)")]))
THETA = np.asarray(jax.vmap(JOB.network.init)(jax.random.split(jax.random.key(0), COUNT)), np.float32)  # type: ignore[attr-defined]
SEEDS = list(range(1, 2 * COUNT, 2))


class Stop(Exception):
    """Something comes in between."""


class Counting:
    """A backend that knows how many episodes it has played, and may stop after some."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.played, self.stop_after = 0, stop_after

    def __call__(self, job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Episodes]]:
        for number, episodes in reversed(list(in_process_backend()(job, chunks))):  # workers end in any order
            if self.stop_after is not None and self.played >= self.stop_after:
                raise Stop
            self.played += len(episodes.returns)
            yield number, episodes


def play(folder: Path, backend: Any, std: float | None = None, observed: bool = False, **about: Any) -> Episodes:
    with FileEpisodeCache(folder / "played", **({"run": "run", "code": "code"} | about)) as memory:
        sampler = GymSampler(JOB, backend, with_obs_stats=observed, episode_cache=memory)
        noise = None if std is None else np.full((COUNT, JOB.network.outputs), std, np.float32)  # type: ignore[attr-defined]
        return sampler.run(THETA, SEEDS, noise)


def assert_same(one: Episodes, other: Episodes) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("std", "observed"), [(None, False), (None, True), (0.5, False)])
def test_what_was_played_before_an_interruption_is_not_played_again(
    tmp_path: Path, std: float | None, observed: bool
) -> None:
    """Plain episodes, those that say what was seen, and exploring ones with everything that happened in them."""
    noise = None if std is None else np.full((COUNT, JOB.network.outputs), std, np.float32)  # type: ignore[attr-defined]
    undisturbed = GymSampler(JOB, in_process_backend(), with_obs_stats=observed).run(THETA, SEEDS, noise)
    with pytest.raises(Stop):
        play(tmp_path, Counting(stop_after=5), std, observed)
    rest, nothing = Counting(), Counting()
    assert_same(play(tmp_path, rest, std, observed), undisturbed)
    assert rest.played == COUNT - 5 + 2, "two of them show whether the simulator is still the same"
    memory = FileEpisodeCache(tmp_path / "played", "run", "code")
    assert len(memory.episodes) == 5, "what has gone well is not written at once"
    assert_same(play(tmp_path, nothing, std, observed), undisturbed)
    assert nothing.played == COUNT - 5 + 2


def test_episodes_of_others_are_not_taken_over(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        play(tmp_path, Counting(stop_after=5))
    others: list[dict[str, Any]] = [
        {"run": "another"},
        {"code": "changed"},
        {"code": None},
        {"std": 0.5},
        {"observed": True},
    ]
    for other in others:
        backend = Counting()
        play(tmp_path, backend, **other)
        assert backend.played == COUNT, other


def test_episodes_that_somebody_else_has_written_are_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would become part of a certificate. The key is made once, in a folder of the user's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    local_key.cache_clear()
    with pytest.raises(Stop):
        play(tmp_path, Counting(stop_after=5))
    key = tmp_path / "mine" / "psyco" / "key"
    assert key.stat().st_mode & 0o777 == 0o600 and local_key() == key.read_bytes()
    local_key.cache_clear()
    assert local_key() == key.read_bytes(), "it stays the same"
    assert len(FileEpisodeCache(tmp_path / "played", "run", "code").episodes) == 5
    for elsewhere in (
        tmp_path / "theirs",
        tmp_path / "played",
    ):  # the latter is a file, so nothing can be kept there
        monkeypatch.setenv("XDG_STATE_HOME", str(elsewhere))
        local_key.cache_clear()
        backend = Counting()
        play(tmp_path, backend)
        assert backend.played == COUNT
    local_key.cache_clear()


def test_another_simulator_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it depends on beside its code, nobody knows: so two episodes are played again, and all if one differs."""
    with pytest.raises(Stop):
        play(tmp_path, Counting(stop_after=5))

    class Changed(Counting):
        def __call__(self, job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Episodes]]:
            for number, episodes in super().__call__(job, chunks):
                yield number, episodes._replace(returns=episodes.returns + np.float32(1))

    backend = Changed()
    assert_same(play(tmp_path, backend), GymSampler(JOB, Changed()).run(THETA, SEEDS))
    assert backend.played == COUNT + 2
    assert "does not do what it did before" in caplog.text


def test_counted_episodes_are_not_exchanged_for_others(tmp_path: Path) -> None:
    memory = FileEpisodeCache(tmp_path / "played", "run", "code")
    GymSampler(JOB, in_process_backend(), episode_cache=memory).run(THETA, SEEDS)
    memory.clear()  # these were not counted
    GymSampler(JOB, in_process_backend(), episode_cache=memory, look="a").run(THETA, SEEDS)
    with pytest.raises(psyco.RunError, match="cannot be repeated with other episodes"):
        memory.clear()


@pytest.mark.parametrize("cut", [0.0, 0.1, 0.3, 0.9, None])
def test_a_damaged_file_is_played_again(tmp_path: Path, cut: float | None) -> None:
    with pytest.raises(Stop):
        play(tmp_path, Counting(stop_after=5))
    data = bytearray((tmp_path / "played").read_bytes())
    if cut is not None:
        data[int(cut * len(data))] ^= 1
    (tmp_path / "played").write_bytes(b"" if cut is None else bytes(data))
    backend = Counting()
    assert_same(play(tmp_path, backend), GymSampler(JOB, in_process_backend()).run(THETA, SEEDS))
    assert backend.played == COUNT, "none of them is taken over"


def test_no_more_is_kept_than_was_asked_for_or_than_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = FileEpisodeCache(tmp_path / "few", "run", max_episodes=4)
    GymSampler(JOB, in_process_backend(), episode_cache=few).run(THETA, SEEDS)
    assert list(few.episodes) == [Chunk(THETA, SEEDS).identity(row) for row in range(8, 12)]
    each = few.size // 4
    monkeypatch.setitem(episode_cache.SIZE_LIMITS, "played episodes", 4 * each)  # of which a tenth is left for the rest
    small = FileEpisodeCache(tmp_path / "small", "run")
    GymSampler(JOB, in_process_backend(), episode_cache=small).run(THETA, SEEDS)
    assert len(small.episodes) == 3 and small.size == 3 * each


def test_where_episodes_take_long_each_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first, when nobody knows, one by one; then as many at a time as a worker plays in two seconds."""
    sizes: list[int] = []

    def backend(job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Episodes]]:
        sizes.extend(len(chunk.seeds) for chunk in chunks)
        return in_process_backend()(job, chunks)

    clock = iter([0.0, 12.0, 20.0, 20.012, 30.0, 30.001])  # seconds for 12 episodes: 12, 0.012
    monkeypatch.setattr(gym_sampler, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    memory = SimpleMemory()
    for expected in ([1] * 12, [2] * 6, [12]):
        memory.known, before = {}, len(sizes)
        GymSampler(JOB, backend, episode_cache=memory).run(THETA, SEEDS)
        assert sizes[before:] == expected


class SimpleMemory:
    def __init__(self) -> None:
        self.known: dict[str, Episodes] = {}
        self.seconds_per_episode, self.verified = float("inf"), True

    def clear(self) -> None:
        raise AssertionError

    def get(self, identity: str) -> Episodes | None:
        return self.known.get(identity)

    def put(self, identity: str, episode: Episodes) -> None:
        self.known[identity] = episode


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner", ["safe-es", *(pytest.param(name, marks=pytest.mark.more) for name in ("ppo", "sac"))]
)
def test_an_interrupted_run_plays_no_episode_twice(
    learner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a generation and of the certificate; it ends with the same bytes."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr(gym_sampler, "CACHE_SECONDS", 0.0)  # as if each episode took long
    kept: list[str] = []  # in which file
    names: list[str] = []  # of episodes
    stops: dict[str, int] = {}
    put = FileEpisodeCache.put

    def interrupted(memory: FileEpisodeCache, identity: str, episode: Episodes) -> None:
        put(memory, identity, episode)
        kept.append(memory.path.name)
        names.append(identity)
        if kept.count(memory.path.name) == stops.get(memory.path.name):
            raise KeyboardInterrupt

    monkeypatch.setattr(FileEpisodeCache, "put", interrupted)
    options: Any = {
        "episodes": 30, "hidden": 4, "learner": learner, "options": {"population": 8, "checks": 2},
        "candidates": 1, "max_episodes": 60,
    }  # fmt: skip
    domain, demand = psyco.make("CartPole-v1", horizon=8), "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.95"
    psyco.start(domain, demand, tmp_path / "undisturbed", **flat(**options))
    assert set(kept) == {"generation.safetensors", "played.safetensors"}
    kept.clear(), names.clear()

    folder = tmp_path / "disturbed"
    stops["generation.safetensors"] = 17
    with pytest.raises(KeyboardInterrupt):
        psyco.start(domain, demand, folder, **flat(**options))
    assert (folder / "generation.safetensors").exists()
    stops["played.safetensors"] = 9
    with pytest.raises(KeyboardInterrupt):
        psyco.resume(folder)
    assert (folder / "played.safetensors").exists()
    psyco.resume(folder)
    assert kept.count("generation.safetensors") == 30
    assert len(set(names)) == len(names)
    assert outcome(folder) == outcome(tmp_path / "undisturbed")
    assert not (folder / "played.safetensors").exists()
    assert not (folder / "generation.safetensors").exists()


@pytest.mark.more
def test_a_generation_that_takes_long_is_written_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a kill costs a few seconds, not a generation."""
    written: list[str] = []
    write = files.write
    monkeypatch.setattr(files, "write", lambda path, data: (written.append(path.name), write(path, data))[1])
    domain = psyco.make("CartPole-v1", horizon=8)
    options: Any = {
        "episodes": 60, "hidden": 4, "learner": "ppo", "options": {"population": 8, "checks": 2},
        "candidates": 1, "max_episodes": 60,
    }  # fmt: skip
    monkeypatch.setattr(episode_cache, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(episode_cache, "MAX_SAVE_SHARE", 1e9)
    psyco.start(domain, "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.95", tmp_path / "slow", **flat(**options))
    assert written.count("generation.safetensors") == 60


def test_where_generations_are_quick_checkpoints_alone_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(episode_cache, "time", SimpleNamespace(monotonic=lambda: now[0]))
    memory = FileEpisodeCache(tmp_path / "played", "run")
    episode = GymSampler(JOB, in_process_backend()).run(THETA[:1], SEEDS[:1])
    now[0] = 1.5
    memory.put("one", episode)
    memory.postpone_save()  # the generation has ended
    now[0] = 3.0
    memory.put("another", episode)
    assert not memory.path.exists()
    now[0] = 3.6  # which are 2.1 seconds of the next one
    memory.put("third", episode)
    assert memory.path.exists()
