"""The verbs: the same words everywhere, and errors of ours for everything that is not as it should be."""

import dataclasses
import importlib.metadata
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import psyco
from psyco._src.api.coerce import as_subject
from psyco._src.logic.requirement import as_requirement
from psyco._src.runs.budget import COMPILED_DEFAULTS
from psyco._src.verification.verifier import look_share
from tests.making import flat

pytestmark = pytest.mark.slow  # whole runs

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
EASY = "P>=0.02 [ G (!caught | collisions <= 9) ] & C>=0.9"
SMALL: dict[str, Any] = {"episodes": 44, "verify_every": 0, "max_episodes": 50, "selection_episodes": 5}
VERBS = (
    "make", "synthesize", "verify", "verify_outcomes", "exact", "plan", "check", "replay", "start", "resume",
    "open_run", "metrics", "report", "export", "export_c", "render", "certify_candidates", "study", "open_study",
    "pareto_front", "tune",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> psyco.Run:
    folder = tmp_path_factory.mktemp("runs") / "obstacles"
    return psyco.start("obstacle-run", EASY, folder, **flat(parameters={"grid": 3, "horizon": 6}, **SMALL))


def test_a_whole_way_by_names_texts_and_folders(run: psyco.Run) -> None:
    assert run.state == "finished" and run.certificate is not None
    opened = psyco.open_run(run.folder)
    assert opened.certificate == run.certificate
    assert psyco.metrics(run.folder).plot("return").axes[0].get_ylabel() == "return"
    assert opened.policy.digest == run.certificate.policy
    again = psyco.verify(run.folder, max_episodes=50, ignore_looks=True)
    assert psyco.verify(run, max_episodes=50, ignore_looks=True).findings == again.findings
    file = run.folder / "policy.safetensors"
    by_file = psyco.verify(file, requirement=EASY, max_episodes=50, ignore_looks=True)
    assert by_file.findings == again.findings
    by_hand = psyco.verify(
        lambda observation: int(opened.policy(observation)),
        psyco.make("obstacle-run", grid=3, horizon=6),
        EASY,
        max_episodes=50,
    )
    assert by_hand.findings == again.findings
    assert psyco.replay(run.folder / "certificate.json", run).matches
    assert psyco.exact(run).value == psyco.exact(opened.policy, requirement=EASY).value
    assert psyco.record(run, episode=2)["step"][0] == 0
    assert psyco.report(run).read_text().endswith("</html>\n")


def test_a_runs_own_requirement_is_text_whatever_it_ends_with(run: psyco.Run) -> None:
    """Else a stranger's run could have another file read as its requirement."""
    assert run.config is not None
    text = f"{run.config.requirement.strip()} // as in notes.txt"
    other = dataclasses.replace(run, config=dataclasses.replace(run.config, requirement=text))
    assert as_subject(other, None, None).requirement == as_subject(run, None, None).requirement


def test_a_domain_is_an_object_or_a_name_everywhere(run: psyco.Run) -> None:
    values = {"grid": 3, "horizon": 6}
    assert psyco.synthesize("obstacle-run", EASY, **flat(parameters=values, **SMALL)).policy.domain == "obstacle-run"
    assert psyco.verify(run, "obstacle-run", EASY, parameters=values, max_episodes=9).domain == "obstacle-run"
    with pytest.raises(psyco.DomainError, match="is already a domain"):
        psyco.verify(run, psyco.make("obstacle-run"), EASY, parameters={"grid": 3})
    with pytest.raises(psyco.DomainError, match="3 is not a domain"):
        psyco.synthesize(3, EASY)  # type: ignore[arg-type]


@pytest.mark.more
def test_plan_predicts_what_synthesize_does() -> None:
    """The same cap, and the share that its first look at a candidate has."""
    plan = psyco.plan("P>=0.9 & C>=0.9", method="anytime", p=[0.95])
    result = psyco.synthesize(
        "obstacle-run", EASY, episodes=220, settings=psyco.Settings(verify_every=0, selection_episodes=5)
    )
    assert plan.max_episodes == COMPILED_DEFAULTS["max_episodes"] == result.certificate.max_episodes
    assert plan.share == result.certificate.looks[0].share == look_share(1)
    assert psyco.plan("P>=0.9 & C>=0.9", method="anytime", p=[0.95], share=1.0, max_episodes=50).share == 1.0


def test_an_unreadable_requirement_file_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "dance.props"
    file.write_text(DANCE)
    assert as_requirement(str(file)).constraints == as_requirement(file).constraints

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("psyco._src.core.files.os.open", refuse)
        with pytest.raises(psyco.RequirementError, match=r"cannot read the requirement .*dance.props: Permission"):
            as_requirement(str(file))
    with pytest.raises(psyco.RequirementError, match="there is no file"):
        as_requirement(str(tmp_path / "nowhere.props"))
    (tmp_path / "folder.props").mkdir()
    with pytest.raises(psyco.RequirementError, match="cannot read"):
        as_requirement(tmp_path / "folder.props")
    assert as_requirement(" & ".join(["P>=0.5 [ G step >= 0 ]"])).constraints
    with pytest.raises(psyco.RequirementError, match="is not a requirement"):
        as_requirement(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: psyco.synthesize("particle-dance", DANCE, epsiodes=3), "did you mean 'episodes'"),  # type: ignore[call-arg]
        (lambda: psyco.synthesize("particle-dance", DANCE, population=3), r"learner=psyco\.SafeES\(population="),  # type: ignore[call-arg]
        (lambda: psyco.verify("x", max_epsiodes=3), "did you mean 'max_episodes'"),  # type: ignore[call-arg]
        (
            lambda: psyco.synthesize("particle-dance", DANCE, settings=psyco.Settings(options={"learning_rat": 1.0})),
            "did you mean 'learning_rate'",
        ),
        (lambda: psyco.verify("nowhere.safetensors", "obstacle-run", EASY), "there is no file"),
        (lambda: psyco.verify(3, "obstacle-run", EASY), "3 is not a policy"),  # type: ignore[arg-type]
        (lambda: psyco.verify(lambda x: 0, None, EASY), "give its domain"),
        (lambda: psyco.exact("nowhere.safetensors", "obstacle-run", EASY), "there is no file"),
        (lambda: psyco.open_run("nowhere"), "not a run folder"),
        (lambda: psyco.open_run(3), "3 is not a run"),  # type: ignore[arg-type]
        (lambda: psyco.Settings(method="anytim"), "did you mean 'anytime'"),
        (lambda: psyco.Settings(method=None), "unknown verification method"),  # type: ignore[arg-type]
        (lambda: psyco.Settings(severity="yes"), "true or false"),  # type: ignore[arg-type]
        (lambda: psyco.synthesize("obstacle-run", EASY, learner=3), "or an options object, got 3"),
        (lambda: psyco.synthesize("obstacle-run", EASY, learner=psyco.PPO), "or an options object, got <class"),
        (lambda: psyco.synthesize("obstacle-run", EASY, settings={"candidates": 1}), r"must be a psyco\.Settings"),
        (lambda: psyco.verify(lambda x: 0, "obstacle-run", EASY, execution=2), r"must be a psyco\.Execution"),
        (lambda: psyco.synthesize("obstacle-run", EASY, workers=2), r"execution=psyco\.Execution\(workers="),
        (lambda: psyco.Settings(learner=psyco.PPO(clip=0.1), options={"clip": 0.3}), "not in both"),
        (lambda: psyco.Settings(options=[1]), "given by name"),  # type: ignore[arg-type]
        (lambda: psyco.synthesize(gymnasium.make("CartPole-v1"), EASY), "pass its class"),  # type: ignore[arg-type]
        (lambda: psyco.record("nowhere.safetensors"), "there is no file"),
        (lambda: psyco.record(lambda x: 0, "obstacle-run", seed=1.5), "a seed is a whole number"),  # type: ignore[arg-type]
        (lambda: psyco.verify(lambda x: 0, "obstacle-run", EASY, max_episodes=1.5), "whole number"),  # type: ignore[arg-type]
        (lambda: psyco.verify(""), "not a policy"),
        (lambda: psyco.resume("nowhere"), "not a run folder"),
        (lambda: psyco.plan("Rmax=? [ C ]"), "nothing to plan"),
        (lambda: psyco.verify_outcomes("nowhere.csv", "P>=0.5"), "cannot read"),
        (lambda: psyco.start("obstacle-run", EASY, track=["tensorbord"]), "did you mean 'tensorboard'"),
    ],
)  # fmt: skip
def test_errors_are_ours_and_say_what_to_do(call: Any, message: str) -> None:
    with pytest.raises(psyco.PsycoError, match=message):
        call()


def test_the_lists_of_learners_and_methods_are_complete() -> None:
    from psyco._src.learners.learner_registry import LEARNERS
    from psyco._src.verification.methods import METHODS

    assert all(f'"{name}"' in str(psyco.synthesize.__doc__) for name in LEARNERS)
    assert all(f'"{name}"' in str(psyco.verify.__doc__) for name in METHODS)


def test_every_verb_documents_every_argument() -> None:
    import inspect

    for name in VERBS:
        function = getattr(psyco, name)
        text = inspect.getdoc(function) or ""
        shared = inspect.signature(psyco.synthesize).parameters if name == "start" else ()
        assert not shared or "All arguments of `synthesize`" in text
        for parameter in inspect.signature(function).parameters:
            documented = parameter in shared or re.search(rf"^ +{parameter}: ", text, re.M)
            assert documented, f"psyco.{name} says nothing of {parameter}"


def test_importing_psyco_loads_nothing_heavy_and_lists_everything() -> None:
    code = "import psyco, sys; print([m for m in ('jax', 'scipy', 'gymnasium', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert set(VERBS) <= set(psyco.__all__)
    for name in psyco.__all__:
        assert getattr(psyco, name) is not None


# ---- domains of one's own ---------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_class_of_a_compiled_domain_is_named_on_the_command_line(cli, tmp_path: Path) -> None:
    name = "tests.environments:Slide"
    require = "P>=0.1 [ G (x <= 9) ] & C>=0.9"
    small = ("--episodes", 44, "--option", "verify_every=0", "--max-episodes", 50, "--selection-episodes", 5)
    done = cli("synthesize", name, "--require", require, *small, "--set", "length=3", "--out", tmp_path / "run")
    assert done.status == 0, done.err
    run = psyco.open_run(tmp_path / "run")
    assert run.config is not None and (run.config.domain, run.config.parameters["length"]) == (name, 3)
    assert cli("render", tmp_path / "run").status == 2
    drawn = cli("render", tmp_path / "run", "--trust", name, "--no-animation")
    assert drawn.status == 0, drawn.err


@pytest.mark.more
def test_an_entry_point_may_have_another_name_than_its_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from psyco._src.envs import registry

    point = importlib.metadata.EntryPoint("my-slide", "tests.environments:Slide", "psyco.domains")
    monkeypatch.setattr(registry, "_plugins", lambda: {point.name: point})
    run = psyco.start(
        "my-slide",
        "P>=0.1 [ G (x <= 9) ] & C>=0.9",
        tmp_path / "run",
        **flat(parameters={"length": 3}, **SMALL),
    )
    assert run.policy.domain == "my-slide"
    assert psyco.verify(run, max_episodes=20).domain == "my-slide"
    assert (tmp_path / "trajectory.png") in psyco.render(run, tmp_path, animation=False)


# ---- what is printed ----------------------------------------------------------------------------------------------


def test_results_print_what_matters_and_not_their_weights(run: psyco.Run) -> None:
    result = psyco.synthesize("obstacle-run", EASY, **flat(parameters={"grid": 3, "horizon": 6}, **SMALL))
    assert len(repr(result)) < 400 and "SATISFIED" in repr(result) and "array" not in repr(result)
    assert repr(result.policy).startswith("<Policy for obstacle-run: ")
    assert repr(run) == f"<Run {run.folder}: obstacle-run, finished, SATISFIED, 44 episodes>"
    for thing in (result, run, result.metrics, result.certificate):
        assert "<" in thing._repr_html_()
    assert repr(result.certificate).startswith("<Certificate SATISFIED after ")
    assert psyco.verify(result, requirement=EASY, max_episodes=20).policy == result.policy.digest


@pytest.mark.extra("pandas")
def test_metrics_are_a_data_frame_in_one_call(run: psyco.Run) -> None:
    import pandas

    frame = pandas.DataFrame(run.metrics)
    assert frame.shape == (run.metrics.rows, len(run.metrics))
    assert run.metrics.to_pandas().index.name == "generation"


def test_metrics_are_a_plot_in_one_call(run: psyco.Run) -> None:
    assert len(run.metrics.plot().axes) == 4
    with pytest.raises(psyco.RunError, match="did you mean 'return'"):
        run.metrics.plot(["retrun"])


def test_recorded_outcomes_that_were_not_needed_are_mentioned() -> None:
    certificate = psyco.verify_outcomes(np.ones(600, bool), "P>=0.85 & C>=0.98")
    assert certificate.episodes < 600
    rest = 600 - certificate.episodes
    assert f"{certificate.episodes} of 600 recorded outcomes" in str(certificate)
    assert f"the other {rest}, which were not looked at" in str(certificate)
    assert "not looked at" not in str(psyco.verify_outcomes([True, False], "P>=0.85 & C>=0.98"))


# ---- the command line ---------------------------------------------------------------------------------------------


def test_the_version_is_there_at_once(cli) -> None:
    done = cli("--version")
    assert done.status == 0
    assert done.out.startswith(f"psyco {psyco.__version__} (Python ")


def test_the_command_line_is_there_without_anything_heavy() -> None:
    code = "import sys, psyco._src.cli.app; print([m for m in ('jax', 'scipy', 'gymnasium') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", "TAB and --help would take seconds"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("psyco synthesize part", "particle-dance"),
        ("psyco synthesize CartP", "CartPole-v1"),
        ("psyco synthesize particle-dance --learner s", "safe-es"),
        ("psyco verify --method any", "anytime"),
    ],
)
def test_tab_completes_domains_learners_and_methods(
    monkeypatch: pytest.MonkeyPatch, capsys, words: str, offered: str
) -> None:
    from psyco._src.cli import main

    for name, value in {
        "_PSYCO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["psyco"])
    with pytest.raises(SystemExit):
        main()
    assert offered in capsys.readouterr().out.split()


def test_ctrl_c_while_things_are_imported_is_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "sys.argv = ['psyco', 'runs']\n"
        "from psyco._src.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_ctrl_c_while_learning_says_how_to_go_on(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from psyco._src.runs import execute

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "learn", interrupt)
    done = cli("synthesize", "obstacle-run", "-v", "--require", EASY, "--episodes", 44, "--out", tmp_path / "a run")
    assert done.status == 130
    assert f"continue with: psyco resume '{tmp_path}/a run'" in done.err
    assert "stopped by an error" not in done.err


@pytest.mark.more
@pytest.mark.parametrize(("p", "status"), [("0.02", 0), ("0.999", 1)])
def test_synthesize_ends_with_the_status_of_its_verdict(cli, tmp_path: Path, p: str, status: int) -> None:
    require = f"P>={p} [ F target ] & C>=0.9"
    small = ("--episodes", 44, "--option", "verify_every=0", "--selection-episodes", 5)
    done = cli("synthesize", "obstacle-run", "--require", require, *small, "--out", tmp_path / "run")
    assert done.status == status, done.err
    assert cli("resume", tmp_path / "run").status == status


@pytest.mark.parametrize("width", [60, 80, 120])
def test_runs_fits_the_terminal_and_cuts_no_number(run: psyco.Run, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from psyco._src.cli import common, runs

    console = Console(width=width, force_terminal=True, color_system=None, record=True, file=io.StringIO())
    for module in (common, runs):
        monkeypatch.setattr(module, "console", console)
    runs.runs(run.folder.parent)
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines() if "P>=" not in line)
    assert run.certificate is not None and f"{run.certificate.mean_return:.2f}" in text
    assert "SATISFIED" in text and "100%" in text
    assert EASY in " ".join(re.sub(r"[│┃]", " ", text).split()) or width == 120


def test_progress_has_a_bar_on_a_narrow_terminal() -> None:
    from psyco._src.cli.display import summary
    from psyco._src.learners.metrics import Metrics

    metrics = Metrics({n: np.array([-56.789]) for n in ("return", "satisfied", "c_sat", "lambda")})
    assert "-56.79" in summary(metrics, 60) and len(summary(metrics, 60)) < 20
    assert "λ" in summary(metrics, 120)


@pytest.mark.more
def test_an_overwritten_run_leaves_no_page_of_the_old_one(tmp_path: Path) -> None:
    old = psyco.start("obstacle-run", EASY, tmp_path / "run", **flat(**SMALL))
    page = psyco.report(old)
    psyco.start("obstacle-run", EASY, tmp_path / "run", **flat(overwrite=True, seed=1, **SMALL))
    assert not page.exists()


@pytest.mark.parametrize("command", ["report", pytest.param("export", marks=pytest.mark.extra("onnxruntime"))])
def test_what_cannot_be_written_is_one_sentence(cli, run: psyco.Run, tmp_path: Path, command: str) -> None:
    words = {"report": ("--out", tmp_path / "no" / "x.html"), "export": ("--onnx", tmp_path)}[command]
    done = cli(command, run.folder, *words)
    assert done.status == 2 and "cannot write" in done.err and "psyco resume" not in done.err


def test_a_plan_can_be_read() -> None:
    plan = psyco.plan("P>=0.9 & C>=0.9", method="anytime", p=[0.95], max_episodes=50)
    assert repr(plan).startswith("<Plan for P>=0.9") and len(repr(plan)) < 200
    assert re.search(r"0\.95  anytime +0\.\d{3} +0\.\d{3}", str(plan))


def test_hints_repeat_how_a_run_is_computed() -> None:
    from psyco._src.cli.declared_options import execution_words

    chosen = psyco.Execution(workers=2, step_timeout=1.0, checkpoint_every=0.5)
    assert execution_words(chosen) == ["--workers", "2", "--step-timeout", "1.0"]
    assert execution_words(psyco.Execution()) == []


def test_unreadable_configurations_are_not_called_the_same(cli, run: psyco.Run, tmp_path: Path) -> None:
    import shutil

    for name in ("one", "two"):
        shutil.copytree(run.folder, tmp_path / name)
        (tmp_path / name / "config.toml").write_text("{")
    done = cli("compare", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "page.html")
    assert "are the same" not in done.out and "can't be compared" in done.out
    assert "are the same" not in (tmp_path / "page.html").read_text()
    assert json.loads(cli("compare", tmp_path / "one", run.folder, "--json").out)["differences"] is None


@pytest.mark.more
def test_a_run_may_be_resumed_with_a_domain_that_no_name_brings_back(tmp_path: Path) -> None:
    from tests.environments import Slide

    @dataclasses.dataclass(frozen=True)
    class Local(Slide):
        pass

    require = "P>=0.1 [ G (x <= 9) ] & C>=0.9"
    psyco.start(Local(), require, tmp_path / "run", **flat(**SMALL))
    with pytest.raises(psyco.PsycoError, match="cannot be imported by name"):
        psyco.resume(tmp_path / "run", episodes="+22")
    assert psyco.resume(tmp_path / "run", episodes="+22", domain=Local()).episodes == 66
