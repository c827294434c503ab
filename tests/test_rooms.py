"""The rooms of the house: later rooms import earlier ones only, and no file can run code from a stranger's data."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from psyco._src.cli.app import COMMANDS

SOURCE = Path(__file__).parents[1] / "src" / "psyco" / "_src"

# A room is a module or a package directly below src/psyco/_src. It may import itself and everything on the lines above
# its own; rooms on one line don't know each other. A new room must be given its place here.
ORDER = [
    ["__init__", "core"],
    ["logic"],
    ["envs"],
    ["policies"],
    ["rollout"],
    ["learners", "verification"],  # they first meet in runs
    ["exact"],
    ["runs"],
    ["field"],
    ["reports"],
    ["studies"],
    ["paper"],
    ["api"],
    ["psyco"],  # the public names: for users and the command line, never for the rooms above
    ["studio"],
    ["cli"],
]
FLOOR = {room: floor for floor, rooms in enumerate(ORDER) for room in rooms}

# Modules whose files run code when they are loaded.
UNSAFE_MODULES = {"pickle", "_pickle", "dill", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec"}


def rooms_on_disk() -> set[str]:
    modules = {path.stem for path in SOURCE.glob("*.py")}
    packages = {path.relative_to(SOURCE).parts[0] for path in SOURCE.glob("*/**/*.py")}
    return modules | packages


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def package_of(path: Path) -> list[str]:
    """`src/psyco/_src/learners/es.py` -> `["psyco", "_src", "learners"]`: where its relative imports start."""
    return ["psyco", "_src", *path.relative_to(SOURCE).parent.parts]


def imported_modules(node: ast.AST, package: list[str]) -> list[list[str]]:
    """Return the imported modules, split at the dots: `from .. import logic` -> `[["psyco", "logic"]]`."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".") for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = package[: len(package) + 1 - node.level] if node.level else []
        base = [*start, *(node.module.split(".") if node.module else [])]
        return [[*base, alias.name] for alias in node.names]
    return []


def imported_rooms(source: str, package: list[str]) -> list[tuple[int, str]]:
    """`(line, room)` for every import of a room, wherever it stands: in a function and under TYPE_CHECKING too."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for module in imported_modules(node, package):
            if module[0] == "psyco" and module[1:2] != ["version"]:
                # `import psyco` and `from psyco import parse` reach for the public names.
                is_room = module[1:2] == ["_src"] and len(module) > 2 and module[2] in FLOOR
                found.append((node.lineno, module[2] if is_room else "psyco"))
    return found


def wrong_imports(source: str, room: str, package: list[str]) -> list[str]:
    return [
        f"line {line}: {room} must not import {other}"
        for line, other in imported_rooms(source, package)
        if other != room and FLOOR[other] >= FLOOR[room]
    ]


def unsafe_code(source: str, package: list[str]) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        for module in imported_modules(node, package):
            if module[0] in UNSAFE_MODULES:
                found.append(f"line {node.lineno}: import of {module[0]}")
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in UNSAFE_CALLS:
                found.append(f"line {node.lineno}: {name}(...)")
            case ast.Attribute(value=ast.Name(id="builtins"), attr=name) if name in UNSAFE_CALLS:
                found.append(f"line {node.lineno}: builtins.{name}")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=value)) if value:
                found.append(f"line {node.value.lineno}: allow_pickle={value}")
    return found


FILES = [pytest.param(path, id=path.relative_to(SOURCE).as_posix()) for path in sorted(SOURCE.glob("**/*.py"))]


def test_every_room_has_its_place() -> None:
    homeless = rooms_on_disk() - FLOOR.keys()
    assert not homeless, f"give {sorted(homeless)} a line in ORDER, after everything they import"


@pytest.mark.parametrize("path", FILES)
def test_rooms_import_earlier_rooms_only(path: Path) -> None:
    room = room_of(path)
    if room not in FLOOR:
        pytest.fail(f"{room} has no line in ORDER")
    wrong = wrong_imports(path.read_text(encoding="utf-8"), room, package_of(path))
    assert not wrong, "\n".join([f"{path.relative_to(SOURCE)} (see ORDER in {Path(__file__).name}):", *wrong])


@pytest.mark.parametrize("path", FILES)
def test_no_source_file_can_run_code_from_data(path: Path) -> None:
    unsafe = unsafe_code(path.read_text(encoding="utf-8"), package_of(path))
    assert not unsafe, "\n".join([f"{path.relative_to(SOURCE)}:", *unsafe])


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("learners", "from ..verification import verifier"),
        ("learners", "from .. import verification"),
        ("verification", "import psyco._src.learners.belief"),
        ("envs", "from psyco._src.policies import Policy"),
        ("logic", "def f():\n    from psyco import synthesize"),
        ("runs", "import psyco"),
        ("reports", "from psyco._src.paper.claims import claims"),
    ],
)
def test_an_import_of_a_later_room_or_a_neighbour_is_found(room: str, source: str) -> None:
    assert wrong_imports(source, room, ["psyco", "_src", room])


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("learners", "from . import belief\nfrom .es import ask\nfrom ..rollout.episodes import Episodes"),
        ("policies", "from psyco._src.envs import base\nfrom psyco._src.core import errors"),
        ("runs", "from psyco._src import learners, verification"),
        ("cli", "import psyco\nfrom psyco import __version__"),
        ("logic", "import numpy.random\nfrom pathlib import Path"),
    ],
)
def test_an_import_of_an_earlier_room_is_fine(room: str, source: str) -> None:
    assert not wrong_imports(source, room, ["psyco", "_src", room])


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "eval('1')", "exec(text)", "np.load(f, allow_pickle=True)"],
)
def test_unsafe_code_is_found(source: str) -> None:
    assert unsafe_code(source, ["psyco"])


def test_a_method_called_eval_is_no_eval() -> None:
    assert not unsafe_code("network.eval()\nnp.load(f, allow_pickle=False)", ["psyco"])


# ---- CONTRIBUTING.md is true ------------------------------------------------------------------------------------

CONTRIBUTING = (SOURCE.parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def room_lists() -> dict[str, str]:
    """Return the list of each room, by its name."""
    house = CONTRIBUTING[CONTRIBUTING.index("## The house") : CONTRIBUTING.index("## From a requirement")]
    return dict(re.findall(r"^### `(\w+)`(.*?)(?=^### |\Z)", house, re.M | re.S))


def test_the_lists_of_rooms_name_every_module_and_no_other() -> None:
    lists = room_lists()
    assert list(lists) == [room for floor in ORDER for room in floor if (SOURCE / room).is_dir()]  # from top to bottom
    for room, text in lists.items():
        modules = {path.stem for path in (SOURCE / room).glob("*.py")} - {"__init__"}
        named = set(re.findall(r"`([a-z]\w*)`", text)) - {"grammar.lark"}
        commands = set(COMMANDS) if room == "cli" else set()
        assert modules - commands <= named, f"the list of {room} in CONTRIBUTING.md lacks {modules - commands - named}"
        assert named <= modules, f"the list of {room} in CONTRIBUTING.md names {named - modules}, which are not there"


def test_the_lists_of_rooms_are_read_at_a_glance() -> None:
    for room, text in room_lists().items():
        assert max(map(len, text.splitlines())) <= 180, f"break the lines of {room} in CONTRIBUTING.md"
        assert all(len(item) <= 600 for item in text.split("\n- ")), f"split the longest item of {room} by its purpose"


def test_the_walk_leads_through_functions_that_are_there() -> None:
    start = CONTRIBUTING.index("## From a requirement to a certificate on disk")
    walk = CONTRIBUTING[start : CONTRIBUTING.index("##", start + 2)]
    hops = re.findall(r"^\d+\. `([\w/]+\.py)` (.*?)[:\n]", walk, re.M)
    assert 10 <= len(hops) <= 15
    for file, words in hops:
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        named = re.findall(r"`(\w+)`", words.partition(" writes ")[0])
        assert named and set(named) <= defined, f"{file} has no {named}"
    methods = set(re.findall(r"`([A-Z]\w+\.\w+)`", walk))
    assert methods and methods <= {
        f"{node.name}.{each.name}"
        for file in set(re.findall(r"`(\w+/\w+\.py)`", walk))
        for node in ast.parse((SOURCE / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    }


def test_ruff_checks_every_file() -> None:
    """A pattern for the folder of results would leave out the room `runs` as well."""
    root = SOURCE.parents[2]
    listed = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert {path for name in ("src", "tests") for path in (root / name).rglob("*.py")} <= set(map(Path, listed.split()))
