"""Requirements about agents in run folders and studies: written out once, with their source as a comment."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import psyco
from psyco._src.logic.parser import parse
from psyco._src.runs.settings import Settings

TEXT = (
    'for each agent: P>=0.5 [ G (agent.distance >= 0.01) ] & C>=0.9; "all": P>=0.5 [ G each(agent.distance >= 0.01) ]'
)
WRITTEN = (
    "P>=0.5 [ G (agent_0.distance >= 0.01) ] & C>=0.9; P>=0.5 [ G (agent_1.distance >= 0.01) ] & C>=0.9; "
    '"all": P>=0.5 [ G (agent_0.distance >= 0.01 & agent_1.distance >= 0.01) ]'
)
SETTINGS = Settings(hidden=4, verify_every=100, max_episodes=60, selection_episodes=10, candidates=1)


def start(folder: Path, text: str) -> psyco.Run:
    return psyco.start(
        "particle-dance", text, folder, parameters={"agents": 2, "horizon": 5}, episodes=200, settings=SETTINGS
    )


@pytest.mark.more
def test_a_run_is_that_of_the_requirement_that_is_written_out(tmp_path: Path) -> None:
    run, same = start(tmp_path / "run", TEXT), start(tmp_path / "same", WRITTEN)
    assert run.config.requirement.startswith(f"// {TEXT}\n")
    assert parse(run.config.requirement) == parse(WRITTEN)
    assert run.policy.theta.tobytes() == same.policy.theta.tobytes()
    assert run.certificate.requirement == same.certificate.requirement and len(run.certificate.findings) == 3
    (tmp_path / "run" / "certificate.json").unlink()
    assert psyco.resume(tmp_path / "run").certificate.requirement == same.certificate.requirement


@pytest.mark.more
def test_a_study_finds_its_own_runs_again(tmp_path: Path) -> None:
    plan = {
        "seeds": 1,
        "requirement": TEXT,
        "domain": {"name": "particle-dance", "agents": 2, "horizon": 5},
        "settings": {"episodes": 200, "hidden": 4, "verify_every": 0, "max_episodes": 40, "candidates": 1},
    }
    first = psyco.study(plan, tmp_path / "study")
    assert first.complete, first.failed
    assert psyco.study(plan, tmp_path / "study").complete


@pytest.mark.more
@pytest.mark.parametrize("learner", ["safe-es", "ppo"])
def test_independent_learning_that_is_resumed_ends_with_the_same_bytes(
    tmp_path: Path, learner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    settings = dataclasses.replace(SETTINGS, learning="independent", learner=learner, options={"population": 10})

    class Stop(Exception):
        pass

    def interrupt(problem: Any, at: Any) -> None:
        if at.generation >= 8:
            raise Stop

    def run(folder: Path, *callbacks: psyco.Callback) -> psyco.Run:
        return psyco.start(
            "particle-dance", TEXT, folder, parameters={"agents": 2, "horizon": 5}, episodes=400, settings=settings,
            callbacks=callbacks, execution=psyco.Execution(checkpoint_every=0),
        )  # fmt: skip

    whole = run(tmp_path / "whole")
    assert whole.config.settings.policies == "separate" and len(whole.policy.network.policies) == 2
    assert not [name for name in whole.metrics if name.startswith("value")]
    with pytest.raises(Stop):
        run(tmp_path / "cut", psyco.Callback(on_checkpoint=interrupt))
    assert 0 < psyco.open_run(tmp_path / "cut").metrics.rows < whole.metrics.rows
    psyco.resume(tmp_path / "cut")
    for name in ("policy.safetensors", "metrics.csv", "certificate.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
