"""The command line on Gymnasium environments: check, synthesize, verify, export, and what a fault leaves behind."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from psyco._src.cli import app, main
from psyco._src.policy.file import load_policy

HERE = "tests.environments"
REQUIREMENT = "P>=0.3 [ G (abs(obs[0]) <= 9) ] & C>=0.9"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=True)
    return result.exit_code, result.output + (repr(result.exception) if result.exception else "")


def status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """As the program itself: expected errors become messages and an exit status."""
    monkeypatch.setattr("sys.argv", ["psyco", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0), capsys.readouterr().err


def test_check_says_that_all_is_well_and_what_is_not() -> None:
    code, out = run("check", "CartPole-v1", "--require", "P>=0.9 [ G (abs(obs[0]) <= 1) ]", "--horizon", "20")
    assert code == 0, out
    assert "episodes repeat exactly" in out
    code, out = run("check", f"{HERE}:Leaky", "--horizon", "5", "--json")
    assert code == 1, out
    failed = {each["name"]: each["passed"] for each in json.loads(out.partition("SystemExit")[0])["checks"]}
    assert failed["determinism"] is False


def test_from_synthesis_over_verification_to_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "run"
    code, out = run(
        "synthesize", f"{HERE}:Walk", "--require", REQUIREMENT, "--horizon", "20", "--episodes", "60",
        "--max-episodes", "100", "--verify-every", "0", "--workers", "2", "--out", folder,
    )  # fmt: skip
    assert code == 0, out
    assert load_policy(folder / "policy.safetensors").network.scale
    code, out = run("verify", folder, "--seed", "5", "--trust", f"{HERE}:Walk")
    assert code == 0, out
    assert "SATISFIED" in out
    onnx = tmp_path / "policy.onnx"
    code, out = run("export", folder, "--onnx", onnx)
    assert code == 0, out
    again = (
        "verify",
        onnx,
        "--domain",
        f"{HERE}:Walk",
        "--horizon",
        "20",
        "--require",
        REQUIREMENT,
        "--seed",
        "5",
    )
    code, out = run(*again)
    assert code == 0, out


def test_a_policy_of_others_needs_a_domain_and_a_requirement() -> None:
    policy = f"python:{HERE}:to_the_left"
    code, out = run("verify", policy)
    assert code == 1
    assert "--domain" in out
    code, out = run(
        "verify", policy, "--domain", "PsycoTestWalk-v0", "--horizon", "20", "--require", REQUIREMENT
    )
    assert code == 0, out


@pytest.mark.parametrize(
    ("fault", "options", "message"),
    [
        ("raise", (), "fell over"),
        ("nan", (), "not finite"),
        ("shape", (), "its space says"),
        ("hang", ("--step-timeout", "2"), "step timeout of 2 s"),
    ],
)
def test_a_fault_ends_with_status_2_and_keeps_what_was_learned(
    fault: str, options: tuple[str, ...], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    # One episode in 97 goes wrong, if it lasts for four steps: not one of the first generation.
    folder = tmp_path / "run"
    code, err = status(
        monkeypatch, capsys,
        "synthesize", f"{HERE}:Walk", "--set", f"fault={fault}", "--set", "at=4", "--set", "rare=97", "--out", folder,
        "--require", REQUIREMENT, "--horizon", "10", "--episodes", "4000", "--verify-every", "0", "--scaling", "none",
        *options,
    )  # fmt: skip
    assert code == 2, err
    assert message in err
    assert f"{HERE}:Walk, episode with seed" in err
    assert "at step 4" in err
    assert "what was learned so far is kept" in err
    assert (folder / "policy.safetensors").exists()


def test_a_file_does_not_choose_the_code_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "run-by-a-file"
    config = tmp_path / "config.toml"
    config.write_text(f'requirement = "P>=0.5 [ G true ]"\n[domain]\nname = "os:mkdir"\npath = "{marker}"\n')
    code, err = status(monkeypatch, capsys, "synthesize", "--config", config, "--out", tmp_path / "out")
    assert code == 2
    assert "must not choose which code runs" in err
    assert not marker.exists()
