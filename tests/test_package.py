"""What a stranger gets: wheel and sdist that build and install on their own, and work without this repository."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*words: object, folder: Path) -> str:
    """In an environment that knows nothing of this one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, words)), cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel made from an sdist, so that the sdist has all that it takes."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.extra("build")
@pytest.mark.full
def test_the_wheel_works_in_an_empty_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Other packages are lent by this environment; PSyCo is the wheel's."""
    run(sys.executable, "-m", "venv", tmp_path / "env", folder=tmp_path)
    binaries = tmp_path / "env" / "bin"
    run(binaries / "python", "-m", "pip", "install", "--no-deps", "--quiet", built[0], folder=tmp_path)
    (own,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (own / "lent.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # its own .pth files, ours among them, are not read
    found = run(
        binaries / "python",
        "-c",
        "import psyco; print(psyco.parse.__module__, psyco.__file__)",
        folder=tmp_path,
    )
    assert str(own) in found
    assert "synthesize" in run(binaries / "psyco", "--help", folder=tmp_path)
    run(
        binaries / "psyco", "synthesize", "particle-dance", "--require", "P>=0.5 [ G distance >= 0.001 ] & C>=0.9",
        "--episodes", "2000", "--out", "first", folder=tmp_path,
    )  # fmt: skip
    run(binaries / "psyco", "report", "first", folder=tmp_path)
    assert "SATISFIED" in (tmp_path / "first" / "report.html").read_text()


@pytest.mark.extra("build")
@pytest.mark.full
def test_what_is_shown_of_the_package_is_the_readme_the_license_and_the_extras(
    built: tuple[Path, Path],
) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
        metadata = message_from_bytes(wheel.read(next(n for n in names if n.endswith("METADATA"))))
    assert metadata["Description-Content-Type"] == "text/markdown"
    shown = metadata.get_payload(decode=True).decode()  # type: ignore[union-attr]
    assert shown.startswith("# PSyCo")
    assert "See docs/guarantees.md." in " ".join(shown.split())  # where there was a link
    # An index knows no files beside it: no link, no picture and no comment leads there.
    assert not re.findall(r"\]\((?!\w+:)[^)]*\)|<!--|<img", shown)
    assert len(shown) > 0.8 * len((ROOT / "README.md").read_text(encoding="utf-8"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"sb3", "onnx", "storm", "all"} <= set(metadata.get_all("Provides-Extra") or ())
    assert {"psyco/py.typed", "psyco/__init__.pyi", "psyco/_src/logic/grammar.lark"} <= set(names)
    assert not [name for name in names if not name.startswith("psyco")]


@pytest.mark.extra("build")
@pytest.mark.full
def test_the_sdist_has_what_a_packager_looks_for(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {
        "LICENSE",
        "CITATION.cff",
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        "tests/conftest.py",
        "docs/index.md",
    }
    assert wanted <= inside
