"""The examples end in a SATISFIED certificate."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_the_example_ends_in_a_satisfied_certificate(name: str, tmp_path: Path) -> None:
    if name.startswith("sb3"):
        pytest.importorskip("stable_baselines3")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SATISFIED"), done.stdout
    if name == "cartpole":
        shown = next(line for line in done.stdout.splitlines() if line.strip().startswith("return"))
        assert float(shown.split()[1]) >= 400
