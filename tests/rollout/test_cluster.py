"""A Ray cluster: the same bytes as in one process, also when a node is lost."""

import threading

import pytest

import psyco

pytestmark = pytest.mark.slow  # needs an extra and other processes

pytest.importorskip("ray")

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 1) ] & C>=0.9"
SETTINGS = {"episodes": 800, "verify_every": 200, "verify_episodes": 60, "max_episodes": 60}


@pytest.mark.full
def test_losing_a_node_in_the_middle_of_a_run_changes_no_byte() -> None:
    import ray
    from ray.cluster_utils import Cluster

    domain = psyco.make("CartPole-v1", horizon=100)
    alone = psyco.synthesize(domain, REQUIREMENT, **SETTINGS)
    memory = 100 * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": memory})
    try:
        node = cluster.add_node(num_cpus=1, object_store_memory=memory)
        undisturbed = psyco.synthesize(domain, REQUIREMENT, ray=cluster.address, **SETTINGS)
        assert undisturbed.policy.to_bytes() == alone.policy.to_bytes()

        removed_after = []
        started = threading.Event()

        def remove() -> None:
            started.wait()
            removed_after.append(len(segments))
            cluster.remove_node(node, allow_graceful=False)

        segments: list[int] = []

        def reached(problem: psyco.Problem, position: psyco.Position) -> None:
            segments.append(position.generation)
            started.set()

        remover = threading.Thread(target=remove)
        remover.start()
        disturbed = psyco.synthesize(
            domain, REQUIREMENT, ray=cluster.address, sinks=[psyco.Sink(reached=reached)], **SETTINGS
        )
        remover.join()
        assert removed_after[0] < len(segments)  # there was work left to do
        assert disturbed.policy.to_bytes() == alone.policy.to_bytes()
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_cluster_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**options: object) -> None:
        raise ConnectionError(f"nobody answers at {options['address']}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(psyco.RunError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        psyco.verify(lambda obs: 0, psyco.make("CartPole-v1"), REQUIREMENT, ray="127.0.0.1:1")
