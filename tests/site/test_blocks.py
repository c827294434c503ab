"""What the pages show is true: every block of code is run, with a small budget, or is marked as output."""

import ast
import doctest
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import psyco
from psyco._src.envs import registry
from psyco._src.logic.parser import parse
from psyco._src.runs.config import read_config
from psyco._src.studies.study_plan import make_plan
from tests.site.reader import BLOCKS, PAGES, ROOT, Block, Reader, commands, examples, known_options

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
LAST_PICTURES = {
    "dance": "dance/trajectory.png",
    "environment": "courier/trajectory.png",
    "robot": "delivery/trajectory.png",
    "others": "others.png",
    "certificate": "certificate.png",
    "field": "field/watch.png",
    "elsewhere": "elsewhere.png",
    "model": "model.png",
    "dancers": "dancers/trajectory.png",
}


# Pages whose blocks take long together: `make test-all`.
MORE = [
    "README.md",
    "docs/agents.md",
    "docs/counterexamples.md",
    "docs/deployment.md",
    "docs/explanation/posterior.md",
    "docs/gallery.md",
    "docs/guarantees.md",
    "docs/gymnasium.md",
    "docs/index.md",
    "docs/learners.md",
    "docs/pettingzoo.md",
    "docs/reproduction.md",
    "docs/robustness.md",
    "docs/runs.md",
    "docs/studies.md",
    "docs/unbounded.md",
    "docs/warm-start.md",
]
ELSEWHERE = {"docs/get-started.md", "docs/real.md"}  # below with their own budgets, and in tests/test_real.py
CODE = {"python", "sh", "c"}
RUN = sorted({block.page for block in BLOCKS if block.language in CODE} - ELSEWHERE)
SB3_AND_ONNX = pytest.mark.extra("stable_baselines3", "onnxruntime")
STORM = pytest.mark.extra("stormpy")
NEEDS = {
    "docs/agents.md": pytest.mark.extra("jaxmarl"),
    "docs/models.md": STORM,
    "docs/pettingzoo.md": pytest.mark.extra("mpe2"),
    "docs/gymnasium.md": SB3_AND_ONNX,
    "docs/robustness.md": pytest.mark.extra("carl"),
    "docs/warm-start.md": SB3_AND_ONNX,
    "others": SB3_AND_ONNX,
    "model": STORM,
}


def marks_of(page: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.more] * (page in MORE) + ([NEEDS[page]] if page in NEEDS else [])


def of(language: str) -> list[Any]:
    found = [block for block in BLOCKS if block.language == language]
    return [
        pytest.param(block, id=f"{block.page}-{block.text.splitlines()[0][:30]}".replace("/", "-")) for block in found
    ]


def run(folder: Path, *words: object) -> str:
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_block_says_what_it_is() -> None:
    """Output is `text`; everything else is code. A block that is only indented would be neither."""
    assert {block.language for block in BLOCKS} <= {*CODE, "prism", "toml", "text"}
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        indented = re.findall(r"(?<=\n\n) {4}(?! *[-*\d]).*", text)
        assert not indented, f"{page.name}: {indented[0]}"


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks_of(page)) for page in RUN])
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: str,
    cli: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if page == "docs/deployment.md":
        request.getfixturevalue("compiler")
    reader = Reader(tmp_path, cli, monkeypatch)
    for block in BLOCKS:
        if block.page == page:
            reader.copy(block)


def test_examples_in_docstrings_say_what_comes_out() -> None:
    assert doctest.testmod(registry) == (0, 2)


@pytest.mark.parametrize("block", of("python"))
def test_python_uses_names_that_there_are(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "psyco":
            assert node.attr in {*psyco.__all__, "runtime", "sb3"}, node.attr


@pytest.mark.parametrize("block", of("prism"))
def test_requirements_parse(block: Block) -> None:
    parse(block.text)


@pytest.mark.parametrize("block", of("toml"))
def test_configurations_are_read(block: Block) -> None:
    if "requirement" in tomllib.loads(block.text):
        read_config(block.text, block.page)


def test_the_study_that_is_explained_is_the_example_and_may_have_further_cells() -> None:
    grid, cells = (block.text for block in BLOCKS if block.page == "docs/studies.md" and block.language == "toml")
    example = (ROOT / "examples" / "study.toml").read_text(encoding="utf-8")
    assert tomllib.loads(grid) == tomllib.loads(example)
    whole = tomllib.loads(example) | tomllib.loads(cells)
    whole["requirement"] = whole.pop("grid")["requirement"][0]["text"]
    assert [cell.method for cell in make_plan(whole).cells] == ["wide"] * 20  # its own number of seeds


@pytest.mark.parametrize("block", of("sh"))
def test_commands_have_the_options_that_are_shown(block: Block) -> None:
    for words in commands(block.text):
        if words[0] == "psyco" and len(words) > 1 and not words[1].startswith("-"):
            known = known_options(words[1])
            for word in words[2:]:
                assert not word.startswith("--") or word.partition("=")[0] in known, word


def test_examples_of_commands_have_options_that_there_are() -> None:
    shown = examples()
    assert len(shown) >= 20
    for words in shown:
        assert {word for word in words[2:] if word.startswith("--")} <= known_options(words[1]), words


@pytest.mark.extra("onnxruntime", "stormpy")
@pytest.mark.more
def test_examples_of_commands_run(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those of studies and fronts, which docs/studies.md shows, and watches and the studio, which wait."""
    reader = Reader(tmp_path, cli, monkeypatch)
    dance, obstacles = "P>=0.85 [ G distance >= 0.1 ] & C>=0.98", "P>=0.9 [ G !caught ] & C>=0.98"
    cart = "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.98"
    made = {"dance-naive": ("particle-dance", dance), "obstacles": ("obstacle-run", obstacles)}
    for name, (domain, requirement) in {**made, "cartpole": ("CartPole-v1", cart)}.items():
        reader.run(["psyco", "synthesize", domain, "--require", requirement, "--out", f"runs/{name}"])
    for name, (domain, parameter) in {
        "game": ("obstacle-run", "opponent=true"),
        **dict.fromkeys(("team", "team2", "team3"), ("particle-dance", "agents=3")),
    }.items():
        requirement = dance if domain == "particle-dance" else obstacles
        words = ["psyco", "synthesize", domain, "--set", parameter, "--require", requirement, "--out", f"runs/{name}"]
        reader.run([*words, "--seed", str(len(name) + int(name[-1] == "3"))])
    scripted = "def scripted(observations):\n    return {agent: [0.0, 0.0] for agent in observations}\n"
    (tmp_path / "my_policies.py").write_text(scripted)
    reader.run(["psyco", "export", "runs/cartpole", "--onnx", "model.onnx"])
    reader.run(
        ["psyco", "verify", "model.onnx", "--domain", "CartPole-v1", "--require", cart, "--out", "certificate.json"]
    )
    (tmp_path / "results.csv").write_text("1\n" * 100)
    (tmp_path / "field.csv").write_text("episode,distance\n" + "".join(f"{i},{i % 2}\n" for i in range(100)))
    reader.run(["psyco", "verify", "--traces", "field.csv", "--require", dance, "--out", "field.json"])
    for words in sorted(examples(), key=lambda words: words[1] != "synthesize"):  # it makes what others use
        if words[1] not in ("pareto", "study", "studio", "watch"):
            reader.run(words)


def test_the_landing_page_shows_the_program_and_the_certificate_of_the_readme() -> None:
    """Which a test runs."""
    readme = [block for block in BLOCKS if block.page == "README.md"]
    landing = [block.text for block in BLOCKS if block.page == "docs/index.md"]
    assert next(block.text for block in readme if block.language == "python") in landing
    assert next(block.text for block in readme if block.language == "text") in landing


@pytest.mark.full
def test_from_nothing_to_a_certificate_by_copying_five_blocks(tmp_path: Path) -> None:
    blocks = [block for block in BLOCKS if block.page == "docs/get-started.md" and block.language != "text"]
    assert [block.language for block in blocks] == ["sh", "python", "sh", "sh", "sh"]
    assert blocks[0].text.endswith("\npip install .\n")
    (tmp_path / re.search(r'title="(.*)"', blocks[1].title)[1]).write_text(blocks[1].text)  # type: ignore[index]
    for block in blocks[2:]:
        said = run(tmp_path, "sh", "-ec", f'psyco() {{ "{sys.executable}" -m psyco "$@"; }}\n{block.text}')
        if "synthesize" in block.text:
            assert "\nSATISFIED" in said
    assert (tmp_path / "runs" / "first" / "trajectory.png").exists()


def test_every_tutorial_has_its_page_and_its_picture_and_uses_the_front_door() -> None:
    assert {path.stem for path in TUTORIALS} == set(LAST_PICTURES)
    for path in TUTORIALS:
        text = path.read_text(encoding="utf-8")
        assert "_src" not in text
        page = path.with_suffix(".md").read_text(encoding="utf-8")
        sections = re.findall(r"\[start:(\w+)\]", text)
        assert re.findall(r"--8<-- \"docs/tutorials/\w+\.py:(\w+)\"", page) == sections, "all of it, in its order"
        assert sections[-1] == "picture"


@pytest.mark.full
@pytest.mark.parametrize(
    "script", [pytest.param(path, id=path.stem, marks=NEEDS.get(path.stem, ())) for path in TUTORIALS]
)
def test_a_tutorial_ends_with_its_picture(script: Path, tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, script)
    assert (tmp_path / LAST_PICTURES[script.stem]).stat().st_size > 5_000
    expected = {
        "dance": r"^SATISFIED: .*\nVIOLATED ",
        "environment": r"ok   determinism.*^SATISFIED: ",
        "robot": r"^SATISFIED: .*^VIOLATED: ",
        "others": r"a function: SATISFIED.*a memory: SATISFIED.*ONNX: SATISFIED.*Stable-Baselines3: ",
        "certificate": r"the same: True.*^refused: ",
        "field": r"^SATISFIED\n.*holds no longer",
        "model": r"^SATISFIED after .*^SATISFIED Value.*exactly 1/7",
        "dancers": r"^SATISFIED: .*alone as in the team: True.*^bounded VIOLATED with twins",
        "elsewhere": r"in the worst environment that was found.*^SATISFIED: .*in the environment with max_speed",
    }
    assert re.search(expected[script.stem], said, re.MULTILINE | re.DOTALL), said


def test_the_gallery_shows_every_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for path in (ROOT / "examples").glob("*.py"):
        assert f"python examples/{path.name}\n" in page, path.name
