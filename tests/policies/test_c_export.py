"""Policies and monitors in C: compiled without a warning, they do what they do in Python."""

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

import psyco
from psyco import Continuous, Discrete, MultiBinary, MultiDiscrete, Outlook
from psyco._src.logic.c_monitor import c_comment, c_monitor
from psyco._src.policies.c_export import HEADER, SOURCE, TEST, c_files
from psyco._src.policies.network import Network, network_for
from psyco._src.policies.serialization import Policy, policy_for
from psyco._src.rollout.record import record_episodes
from tests.logic.test_c_monitor import short_texts

pytestmark = pytest.mark.slow  # runs a compiler

FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
OUTLOOKS = [Outlook.OPEN, Outlook.SATISFIED, Outlook.VIOLATED]
EPISODES = 1000


def build(compiler: str, folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="ascii")
    command = [compiler, *FLAGS, SOURCE, TEST, "-lm", "-o", "psyco_test"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "psyco_test"


def run(program: Path, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """What it prints for lines of numbers; nine digits tell all of single precision."""
    lines = "\n".join(" ".join([f"{int(row[0])}", *(f"{x:.9g}" for x in row[1:])]) for row in rows.tolist())
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    return np.array([line.split() for line in done.stdout.splitlines()], float)


def expected(monitor: psyco.Monitor, episodes: list[dict[str, NDArray[Any]]]) -> list[list[float]]:
    """What Python says after each state of episodes: outlook and step of its decision, of every constraint."""
    rows = []
    for signals in episodes:
        status, last = monitor.start(), len(signals["step"]) - 1
        for step in range(last + 1):
            now = {name: np.asarray(signals[name][step], np.float32) for name in monitor.signals}
            status = monitor.update(now, end=step == last)
            pairs = [(OUTLOOKS.index(c.outlook), -1 if c.decided is None else c.decided) for c in status.constraints]
            rows.append([number for pair in pairs for number in pair])
    return rows


@pytest.mark.more
def test_a_thousand_episodes_have_the_same_actions_and_verdicts_at_the_same_steps(
    compiler: str, tmp_path: Path
) -> None:
    domain = psyco.make("particle-dance")
    network = network_for(domain)
    policy = policy_for(domain, network, 3 * network.init(jax.random.key(0)))
    text = Path("examples/particle_dance.props").read_text()
    requirement = psyco.parse(text)
    files = c_files(policy, requirement, horizon=domain.horizon, counters=["collisions"])
    episodes = record_episodes(domain, policy, seed=0, count=EPISODES)
    ends = [np.arange(len(e["step"])) == len(e["step"]) - 1 for e in episodes]
    columns = [np.concatenate(ends)[:, None]]
    for name in ("obs", "distance", "collisions"):
        joined = np.concatenate([e[name] for e in episodes])
        columns.append(joined.reshape(len(joined), -1))
    found = run(build(compiler, tmp_path, files), np.concatenate(columns, axis=1, dtype=np.float32))
    np.testing.assert_allclose(found[:, :2], policy(np.concatenate([e["obs"] for e in episodes])), atol=1e-6)
    monitor = psyco.Monitor(requirement, horizon=domain.horizon, counters=["collisions"])
    judged = expected(monitor, episodes)
    np.testing.assert_array_equal(found[:, 2:], judged)
    assert {row[0] for row in judged} == {0, 1, 2}


@pytest.mark.parametrize("bias", ["one", "learned"])
@pytest.mark.parametrize(
    "actions",
    [Continuous((-2.0, 0.0), (2.0, 5.0)), Discrete(4), MultiDiscrete((3, 2, 2)), MultiBinary(3)],
    ids=lambda kind: type(kind).__name__,
)
def test_every_kind_of_action_is_the_policys(compiler: str, tmp_path: Path, actions: Any, bias: Any) -> None:
    network = Network(5, actions.outputs, 16, bias)
    if bias == "learned":
        network = dataclasses.replace(network, shift=(0.5,) * 5, scale=(0.3, 1.0, 2.0, 5.0, 1.0))
        network = dataclasses.replace(network, hidden=(16, 8, 12))
    policy = Policy(np.asarray(network.init(jax.random.key(1))), network, actions, "no */ domain", {})
    x = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float32)
    found = run(build(compiler, tmp_path, c_files(policy)), np.insert(x, 0, 0, axis=1))
    np.testing.assert_allclose(found, policy(x).reshape(500, -1), rtol=0, atol=1e-6)


def test_a_table_has_the_policys_actions(compiler: str, tmp_path: Path) -> None:
    network = Network(9, 3, (), "learned", one_hot=(4, 2, 3))
    policy = Policy(np.asarray(network.init(jax.random.key(1))), network, Discrete(3), "somewhere", {})
    numbers = np.indices((4, 2, 3)).reshape(3, -1).T
    x = np.concatenate([np.eye(n, dtype=np.float32)[i] for n, i in zip((4, 2, 3), numbers.T, strict=True)], axis=1)
    found = run(build(compiler, tmp_path, c_files(policy)), np.insert(x, 0, 0, axis=1))
    rows = network.unflatten(policy.theta)[0] + network.unflatten(policy.theta)[1]
    np.testing.assert_array_equal(found[:, 0], rows.argmax(axis=1))
    np.testing.assert_array_equal([policy(each) for each in numbers], rows.argmax(axis=1))


LANGUAGE = [
    "G (count(a) <= 3 | mean(x) > 0.2)",
    "F<=6 (least(x - y) < -1.5 & !(most(abs(y)) >= 2.5))",
    "G (a => F<=3 (x > 0.7 | b))",
    "(x < 1.5) U[1,4] (min(x, y, 0.3) * 2 <= y / x)",
    'F ("end" & sum(x) >= 0.1 + 0.2 & step > 3)',
    "a W (b & X !a)",
    "G[2,5] (max(x, -y) != 0 <=> obs[2] = obs[0])",
    "return >= 0.7 | (b R info.cost <= 1.25)",
    "F (a & !a)",
]


def test_the_whole_language_is_there(compiler: str, tmp_path: Path) -> None:
    requirement = psyco.parse("; ".join(f"P>=0.5 [ {formula} ]" for formula in LANGUAGE) + "; P<=0.5 [ F (b & X b) ]")
    network = Network(1, 1, 1)
    policy = Policy(np.zeros(network.size, np.float32), network, Discrete(1), "nowhere", {})
    rng, episodes = np.random.default_rng(0), []
    for _ in range(300):
        n = int(rng.integers(1, 10))
        signals: dict[str, Any] = {name: rng.random(n) < 0.5 for name in ("a", "b")}
        signals |= {name: rng.choice([0, -1.3, 0.2, 0.7, 1.1], n) for name in ("x", "y", "return", "info.cost")}
        episodes.append(signals | {"obs": rng.choice([0.0, 1.0], (n, 3)), "step": np.arange(n)})
    for horizon in (9, None):
        files = c_files(policy, requirement, horizon=horizon)
        names = [name for name, _ in c_monitor(requirement, horizon=horizon).signals]
        rows = []
        for signals in episodes:
            flat = signals | {f"obs[{i}]": signals["obs"][:, i] for i in range(3)}
            for step in range(len(signals["step"])):
                end = step == len(signals["step"]) - 1
                rows.append([end, 0.0, *(flat[name][step] for name in names)])
        found = run(build(compiler, tmp_path, files), np.array(rows, np.float32))
        judged = np.array(expected(psyco.Monitor(requirement, horizon=horizon), episodes))
        np.testing.assert_array_equal(found[:, 1:], judged)
        assert (judged[:, ::2].max(axis=0) > 0).all()


def test_a_compiler_sees_nothing_but_comments_in_texts_of_a_file(compiler: str, tmp_path: Path) -> None:
    """Every text of dangerous characters up to length 4; what is left after the comments are the declarations."""
    texts = short_texts()
    lines = [f"/* {c_comment(text)}*/int x{i}; /* {c_comment(text)} */" for i, text in enumerate(texts)]
    (tmp_path / "comments.c").write_text("\n".join(lines) + "\n", encoding="ascii")
    command = [compiler, *FLAGS, "-trigraphs", "-E", "-P", "comments.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [word for i in range(len(texts)) for word in ("int", f"x{i};")]


def test_a_domain_and_a_formula_with_hostile_names_are_exported(compiler: str, tmp_path: Path) -> None:
    hostile = 'a*\\#include "/etc/passwd"\n??/\n*/ int y; /*'
    network = Network(2, 2, hidden=3)
    policy = Policy(np.zeros(network.size, np.float32), network, Discrete(2), hostile, {})
    requirement = psyco.parse('"*??/": P>=0.5 [ G (2*x/3 < 1) ]')
    build(compiler, tmp_path, c_files(policy, requirement))


def test_signals_may_be_called_what_c_has_names_for(compiler: str, tmp_path: Path) -> None:
    words = ["HIDDEN", "NEVER", "PSYCO_INPUTS", "NAN", "EOF", "_Bool", "__LINE__", "int", "int_", "bool"]
    requirement = psyco.parse(f"P>=0.5 [ G ({' & '.join(words)}) ]")
    network = Network(1, 1, 1)
    policy = Policy(np.zeros(network.size, np.float32), network, Discrete(1), "nowhere", {})
    files = c_files(policy, requirement)
    files[TEST] = "#include <stdbool.h>\n#include <stdio.h>\n#include <math.h>\n" + files[TEST]
    rows = np.ones((2, 2 + len(words)), np.float32)
    rows[0, 0] = 0.0
    assert run(build(compiler, tmp_path, files), rows)[:, 1].tolist() == [0, 1]
    assert len({name for _, name in c_monitor(requirement).signals}) == len(words)


def test_what_is_not_finite_and_what_comes_after_the_end_is_refused(compiler: str, tmp_path: Path) -> None:
    network = Network(1, 1, 1)
    policy = Policy(np.zeros(network.size, np.float32), network, Discrete(1), "nowhere", {})
    files = c_files(policy, psyco.parse("P>=0.5 [ G x < 1 ]"), horizon=2)
    files[TEST] = f"""
#include "{HEADER}"
#include <math.h>
#include <stdio.h>
int main(void) {{
    psyco_monitor m; psyco_signals s; int i;
    psyco_start(&m);
    s.x = NAN; printf("%d ", psyco_update(&m, &s, 0));
    s.x = INFINITY; printf("%d ", psyco_update(&m, &s, 0));
    s.x = 0.5f; for (i = 0; i < 4; i++) printf("%d ", psyco_update(&m, &s, 0));
    printf("%d %d", (int)m.step, (int)m.outlook[0]);
    return 0;
}}
"""
    done = subprocess.run([build(compiler, tmp_path, files)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-1", "-1", "0", "0", "0", "-1", "2", "1"]


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("G (a => F[8,20] b)", "has more than"),
        (" & ".join(f"(F x > {i})" for i in range(11)), "11 state formulas"),
    ],
)
def test_a_monitor_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, formula: str, words: str) -> None:
    monkeypatch.setattr("psyco._src.logic.c_monitor.MAX_TABLE_ENTRIES", 1000)  # as it is for larger bounds
    with pytest.raises(psyco.RequirementError, match=f"too large for C: .*{words}"):
        c_monitor(psyco.parse(f"P>=0.5 [ {formula} ]"))


def test_the_command_line_exports_a_run_with_its_monitor(cli: Any, compiler: str, tmp_path: Path) -> None:
    domain = psyco.make("obstacle-run", horizon=7)
    policy = policy_for(domain, network_for(domain), np.zeros(network_for(domain).size))
    policy.save(tmp_path / "policy.safetensors")
    bare = cli("export", tmp_path / "policy.safetensors", "--c", tmp_path / "bare")
    assert bare.status == 0 and "psyco_update" not in (tmp_path / "bare" / HEADER).read_text()
    done = cli(
        "export", tmp_path / "policy.safetensors", "--c", tmp_path / "c", "--require", "examples/obstacle_run.props"
    )  # fmt: skip
    assert done.status == 0 and str(tmp_path / "c" / SOURCE) in done.out
    header = (tmp_path / "c" / HEADER).read_text()
    assert "PSYCO_HORIZON 7" in header and "bounded catches: G (!caught | collisions <= 1)" in header
    build(
        compiler,
        tmp_path / "c",
        {name: (tmp_path / "c" / name).read_text() for name in (HEADER, SOURCE, TEST)},
    )
    nothing = cli("export", tmp_path / "policy.safetensors")
    assert nothing.status == 2 and "give --onnx FILE, --c DIR, or both" in nothing.err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("0 0.5 0.5\n0 0.5", "state 2 of the input: the signal x is missing"),
        ("0 0.5 0.5\n0 cold", "state 2 of the input: a number of the observation is missing or is no number"),
        ("no", "state 1 of the input: 0 or 1 for the last state is missing"),
        ("0 0.5 nan", "state 1 of the input: a signal is not a finite number"),
        ("0 0.5 0.5\n1 0.5 0.5\n", ""),
    ],
)
def test_the_test_program_says_what_is_wrong_with_its_input(
    compiler: str, tmp_path_factory: pytest.TempPathFactory, lines: str, said: str
) -> None:
    program = tmp_path_factory.getbasetemp() / "input" / "psyco_test"
    if not program.exists():
        program.parent.mkdir()
        network = Network(1, 1, 1)
        policy = Policy(np.zeros(network.size, np.float32), network, Discrete(1), "nowhere", {})
        build(compiler, program.parent, c_files(policy, psyco.parse("P>=0.5 [ G x < 1 ]")))
    done = subprocess.run([program], input=lines, capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (1 if said else 0, True), done
