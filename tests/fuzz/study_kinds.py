"""Folders of studies and tunings: one file of a stranger's folder is almost right, the others are.

An input is the name of the file in its first line, and its content. `cells/1/run.json` is that of the second cell by
name: names of cells have a digest of the configuration, which changes with every new setting.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from psyco._src.core import files
from psyco._src.core.files import from_json, json_digest
from psyco._src.core.provenance import package_versions
from psyco._src.envs.registry import DomainDescription, make_from_description
from psyco._src.logic.parser import parse
from psyco._src.runs.store import RunInfo
from psyco._src.studies.collect import collect
from psyco._src.studies.objective import PruningThreshold
from psyco._src.studies.search_config import DEFAULTS, TUNED, SearchConfig, make_search
from psyco._src.studies.study_folder import Study, read_study
from psyco._src.studies.study_page import study_page
from psyco._src.studies.study_plan import Cell, make_plan
from psyco._src.studies.trials import TrialSampler, _make_trial
from psyco._src.studies.tuning import Tuning, _recommended_config
from psyco._src.studies.tuning_page import tuning_page
from psyco._src.verification.outcomes import verify_outcomes
from tests.fuzz.mutate import as_json, mutate_bytes, mutate_json, nudge_json

if TYPE_CHECKING:
    from tests.fuzz.kinds import Place

REQUIREMENT = '"a": P>=0.5 [ G distance > 0.1 ] & C>=0.9'
OUTCOMES = '"a": P>=0.5 [ F "x" ] & C>=0.9'  # a certificate about recorded outcomes is made at once
PLAN: dict[str, Any] = {
    "title": "What does it cost?",
    "seeds": [3, 4],
    "requirement": REQUIREMENT,
    "domain": {"name": "particle-dance", "horizon": 5},
    "settings": {"episodes": 60, "max_episodes": 100},
    "grid": {"learner": ["snes", {"name": "safe-es", "sigma": 0.2}]},
}
SEARCH: dict[str, Any] = {
    "domain": "particle-dance",
    "requirement": REQUIREMENT,
    "trials": 3,
    "batch_size": 2,
    "rerun_seeds": 2,
    "validation_seeds": 2,
    "seed": 0,
    "over": {"sigma": "0.05:0.5", "population": "10,20"},
    "parameters": {"horizon": 5},
    "learner": "snes",
    "learner_options": {"learning_rate": 0.1},
    "settings": {"episodes": 60},
}
WORDS = [b"seeds = ", b"[grid]\n", b"[[cells]]\n", b"label = ", b'"0:9999"', b"hidden = [1, 2]\n", b"domain.x = [1]\n"]
OPTIONS = {"sigma": 0.2, "population": 20}  # of the second trial
PRUNING = PruningThreshold()


def make_study(rng: Random, place: Place) -> bytes:
    if rng.random() < 0.5:
        return _named(rng, place, _study(place.folder))
    text = tomli_w.dumps(PLAN)
    if rng.random() < 0.5:
        return b"study.toml\n" + mutate_bytes(rng, text.encode(), WORDS)
    try:
        text = tomli_w.dumps(mutate_json(rng, PLAN))
    except (TypeError, AttributeError):  # TOML has no such content
        return make_study(rng, place)
    return b"study.toml\n" + text.encode(errors="replace")


def read_studies(data: bytes, place: Place) -> None:
    study = _study(place.folder)
    name, _, content = data.partition(b"\n")
    with _Replaced(study, name.decode(errors="replace"), content):
        found = read_study(study)
        _show(found)
        assert make_plan(found.plan.content).cells == found.plan.cells
        for cell in found.plan.cells[:20]:
            assert Path(cell.name).name == cell.name and len(cell.name) < 200


def make_tuning(rng: Random, place: Place) -> bytes:
    if rng.random() < 0.5:
        return _named(rng, place, _tuning(place.folder))
    return b"search.json\n" + as_json(mutate_json(rng, SEARCH)).encode(errors="replace")


def read_tuning(data: bytes, place: Place) -> None:
    name, _, content = data.partition(b"\n")
    if name == b"search.json":
        _read_search(from_json(content, "the search"))
        return
    folder = _tuning(place.folder)
    search = make_search(**SEARCH)
    with _Replaced(folder, name.decode(errors="replace"), content):
        sampler = TrialSampler(search, {"sigma": 0.1, "population": 10})
        trials = []
        for number, cell in enumerate(_trial_cells(search)):
            sampler.ask(number)
            (outcome,) = collect([cell], folder / "cells")
            trial = _make_trial(number, OPTIONS if number else {}, outcome, folder / "cells" / cell.name, PRUNING)
            sampler.tell(number, trial.score, trial.checkpoint_scores, pruned=trial.pruned_at is not None)
            trials.append(trial)
        rerun = read_study(folder, search.rerun_plan({trial.label: trial.options for trial in trials}))
        validation = read_study(folder, search.validation_plan(OPTIONS))
        tuning = Tuning(search, folder, tuple(trials), rerun, trials[1], validation, {"sigma": 0.1, "population": 10})
        json.loads(tuning.to_json())
        assert tuning_page(tuning) and repr(tuning) and tuning._repr_html_()
        _recommended_config(tuning).to_toml()


def _read_search(content: Any) -> None:
    if not isinstance(content, dict) or not content.keys() <= SEARCH.keys() or "domain" not in content:
        return  # no call has such arguments
    search = make_search(content.pop("domain"), content.pop("requirement", None), **content)
    assert search.to_toml() and search.digest and search.title
    for cell in search.boundary_plan().cells[:3]:
        make_from_description(DomainDescription(cell.config.domain, cell.config.parameters))
    search.rerun_plan({"trial 1": {}})


def _show(study: Study) -> None:
    json.loads(study.to_json())
    assert study_page(study) and repr(study) and study._repr_html_() and study.tables.files()


# ---- folders that are right ----------------------------------------------------------------------------------------


@cache
def _study(parent: Path) -> Path:
    folder = parent / "study"
    plan = make_plan(PLAN)
    for number, cell in enumerate(plan.cells):
        _finished(folder / "cells" / cell.name, cell, number)
    (folder / "study.toml").write_text(plan.to_toml())
    return folder


@cache
def _tuning(parent: Path) -> Path:
    folder = parent / "tuning"
    search = make_search(**SEARCH)
    plans = [search.rerun_plan({DEFAULTS: {}, "trial 1": OPTIONS}), search.validation_plan(OPTIONS)]
    cells = [*_trial_cells(search), *(cell for plan in plans for cell in plan.cells)]
    assert {cell.method for cell in plans[1].cells} == {TUNED, DEFAULTS}
    for number, cell in enumerate(cells):
        _finished(folder / "cells" / cell.name, cell, number)
    return folder


def _trial_cells(search: SearchConfig) -> list[Cell]:
    cells = [search.trial_cell(0, {}), search.trial_cell(1, OPTIONS)]
    return [dataclasses.replace(cell, pruning=PRUNING) for cell in cells]


def _finished(folder: Path, cell: Cell, number: int) -> None:
    """Write a finished run by hand; nothing is compiled for it."""
    from psyco._src.learners.metrics import COLUMNS, Metrics

    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(cell.config.to_toml())
    numbers = {name: np.linspace(0.1, 0.9, 3) for name in COLUMNS}
    counts = {"generation": np.arange(3), "episodes": 20 * np.arange(1, 4), "verdict": np.full(3, "")}
    (folder / "metrics.csv").write_text(Metrics(numbers | counts).to_csv())
    made = verify_outcomes(np.arange(50) % 25 > 0, parse(OUTCOMES), issued="2026")
    made = dataclasses.replace(
        made, domain="particle-dance", policy="0" * 64, mean_return=-1.5 * number, return_standard_error=0.1
    )
    (folder / "certificate.json").write_text(made.to_json())
    (folder / "times.json").write_text('{"seconds": 3.5, "processor": 3.0, "first_satisfied": 1.0}')
    (folder / "pruned.json").write_text(json.dumps({"fraction": 0.5, "threshold": PRUNING.digest}))
    _seal(folder)


def _seal(folder: Path) -> None:
    """Anybody can compute the checksums of a finished run."""
    written = {
        "certificates/0001.json": (folder / "certificate.json").read_bytes(),
        "metrics.csv": (folder / "metrics.csv").read_bytes(),
    }
    (folder / "certificates").mkdir(exist_ok=True)
    (folder / "certificates" / "0001.json").write_bytes(written["certificates/0001.json"])
    outcome = {name: files.digest(data) for name, data in written.items()}
    RunInfo(1_700_000_000, package_versions(), {"system": "none"}, outcome).save(folder)


def _named(rng: Random, place: Place, folder: Path) -> bytes:
    """One file of a cell, changed."""
    cell = rng.choice(sorted((folder / "cells").iterdir()))
    name = rng.choice(["certificate.json", "certificate.json", "metrics.csv", "times.json", "pruned.json", "run.json"])
    data = (cell / name).read_bytes()
    if name.endswith(".json") and rng.random() < 0.8:
        content = rng.choice([mutate_json, nudge_json])(rng, json.loads(data))
        if name == "certificate.json" and isinstance(content, dict):
            content = {key: value for key, value in content.items() if key != "checksum"}
            content["checksum"] = json_digest(content)
        data = as_json(content).encode(errors="replace")
    elif name == "metrics.csv" and rng.random() < 0.6:
        rows = [line.split(",") for line in data.decode().splitlines()]
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(["", "nan", "inf", "1e308", "-1e308", "0", "-1", "x", "9" * 25])
        data = "".join(",".join(row) + "\n" for row in rows).encode()
    else:
        data = mutate_bytes(rng, data)
    number = sorted((folder / "cells").iterdir()).index(cell)
    return f"cells/{number}/{name}\n".encode() + data


class _Replaced:
    """A file with other content, for a while; a run whose result was replaced is sealed again."""

    def __init__(self, folder: Path, name: str, content: bytes) -> None:
        cells = sorted(path.name for path in (folder / "cells").iterdir())
        parts = name.split("/")
        if len(parts) == 3 and parts[0] == "cells" and parts[1].isdecimal() and int(parts[1]) < len(cells):
            parts[1] = cells[int(parts[1])]
        path = folder.joinpath(*parts)
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            raise AssertionError(f"the folder has no file {name!r}")
        self.path, self.content, self.before = path, content, path.read_bytes()

    def __enter__(self) -> None:
        self._write(self.content)

    def __exit__(self, *_: object) -> None:
        self._write(self.before)

    def _write(self, content: bytes) -> None:
        self.path.write_bytes(content)
        if self.path.name in ("certificate.json", "metrics.csv"):
            _seal(self.path.parent)
