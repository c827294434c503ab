"""A Ray cluster: the same bytes as in one process, also when a node is lost."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.policies.network import network_for
from psyco._src.rollout import ray_backend
from psyco._src.verification.certificate import ENDED_PROCESS_NOTE
from psyco._src.verification.recertify import replay
from tests.environments import Walk
from tests.making import flat

pytestmark = pytest.mark.extra("ray")

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 1) ] & C>=0.9"
MEMORY = 100 * 2**20  # bytes of a node
SETTINGS: dict[str, Any] = {
    "learner": "safe-es",
    "episodes": 800,
    "verify_every": 200,
    "verify_episodes": 60,
    "max_episodes": 60,
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of one node."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY})
    yield nodes
    nodes.shutdown()


@pytest.mark.more
def test_losing_a_node_in_the_middle_of_a_run_changes_no_byte(nodes: Any) -> None:
    import ray

    domain = psyco.make("CartPole-v1", horizon=100)
    alone = psyco.synthesize(domain, REQUIREMENT, **flat(**SETTINGS))
    try:
        node = nodes.add_node(num_cpus=1, object_store_memory=MEMORY)
        undisturbed = psyco.synthesize(domain, REQUIREMENT, **flat(**SETTINGS, ray=nodes.address))
        assert undisturbed.policy.to_bytes() == alone.policy.to_bytes()

        removed_after = []
        started = threading.Event()

        def remove() -> None:
            started.wait()
            removed_after.append(len(segments))
            nodes.remove_node(node, allow_graceful=False)

        segments: list[int] = []

        def reached(problem: psyco.Problem, position: psyco.TrainingState) -> None:
            segments.append(position.generation)
            started.set()

        remover = threading.Thread(target=remove)
        remover.start()
        disturbed = psyco.synthesize(
            domain,
            REQUIREMENT,
            **flat(callbacks=[psyco.Callback(on_checkpoint=reached)], **SETTINGS, ray=nodes.address),
        )
        remover.join()
        assert removed_after[0] < len(segments)  # there was work left to do
        assert disturbed.policy.to_bytes() == alone.policy.to_bytes()
    finally:
        ray.shutdown()
        ray_backend.connect_ray.cache_clear()


def test_a_cluster_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**options: object) -> None:
        raise ConnectionError(f"nobody answers at {options['address']}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(psyco.RunError, match="no Ray cluster at 'auto'"):
        psyco.verify(lambda obs: 0, psyco.make("CartPole-v1"), REQUIREMENT, execution=psyco.Execution(ray="auto"))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"], ids=["silence", "another server"])
def test_a_server_that_is_not_ray_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """`ray.init` would try for two minutes, and then end the process."""
    monkeypatch.setattr(ray_backend, "HEALTH_CHECK_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        if answer:
            threading.Thread(target=lambda: server.accept()[0].sendall(answer)).start()
        with pytest.raises(psyco.RunError, match="does not answer as a Ray cluster; give the address"):
            ray_backend.check_cluster(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("prefix", ["", "ray://"])
@pytest.mark.parametrize("address", ["nowhere.invalid:6379", "x" * 300 + ":1", "127.0.0.1:99999", ":1", "127.0.0.1:1"])
def test_an_address_where_nothing_listens_is_refused(prefix: str, address: str) -> None:
    with pytest.raises(psyco.RunError, match="nothing answers at the Ray address"):
        ray_backend.check_cluster(prefix + address)


def test_a_cluster_that_answers_is_accepted(nodes: Any) -> None:
    ray_backend.check_cluster(nodes.address)


class Killed(Walk):
    """Once it is armed, it kills its process once, or that of Ray, as a system without memory does."""

    def __init__(self, armed: str = "", whom: str = "nobody") -> None:
        super().__init__()
        self.armed, self.whom = Path(armed), whom

    def step(self, action: Any) -> Any:
        # The parent must be a worker of Ray, whose title begins so: no other process may be hit.
        parent = Path(f"/proc/{os.getppid()}/cmdline")
        if self.whom != "nobody" and self.armed.exists() and parent.read_bytes().startswith(b"ray::"):
            self.armed.unlink()
            os.kill(os.getpid() if self.whom == "its own" else os.getppid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.more
def test_a_certificate_says_how_often_tasks_were_lost_and_a_replay_of_it_agrees(tmp_path: Path) -> None:
    """An episode that ends its process may be left out by that, so retries must not be silent."""
    import ray

    ray_backend.connect_ray.cache_clear()
    try:
        found = {}
        for whom in ("nobody", "its own", "that of Ray"):
            armed = tmp_path / whom
            domain = psyco.make(Killed, horizon=6, armed=str(armed), whom=whom)
            network = network_for(domain, hidden=4)
            theta = np.zeros(network.size, np.float32)
            policy = psyco.Policy(theta, network, domain.actions, domain.name, domain.parameters)
            run = psyco.Execution(ray=None if whom == "nobody" else "local")
            armed.touch()
            found[whom] = psyco.verify(
                policy, domain, "P>=0.1 [ G (abs(obs[0]) <= 9) ]", max_episodes=60, execution=run
            )
            assert armed.exists() == (whom == "nobody")
            notes = [note for note in found[whom].notes if note.startswith(ENDED_PROCESS_NOTE)]
            assert len(notes) == (whom != "nobody") and all("ended 1 time while" in note for note in notes)
            assert found[whom].findings == found["nobody"].findings
            again = replay(found[whom].to_json(), policy, domain=domain)
            assert again.matches and ("processes that were ended" in again.not_compared) == (whom != "nobody")
    finally:
        ray.shutdown()
        ray_backend.connect_ray.cache_clear()
