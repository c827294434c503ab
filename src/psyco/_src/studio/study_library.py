"""Studies, fronts and tunings as the studio shows them: a row for each, and its page."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from psyco._src.core.errors import MissingFileError, PsycoError
from psyco._src.core.files import read_bytes
from psyco._src.studies import pareto, study_folder, tuning
from psyco._src.studies.runner import CELLS
from psyco._src.studies.study_page import study_page
from psyco._src.studies.study_plan import PLAN_FILE, read_plan
from psyco._src.studio.run_library import identity

# Kind, the file that tells it, and its page; the first that fits.
KINDS = (
    ("tuning", tuning.CONFIG_FILE, tuning.PAGE),
    ("front", pareto.TABLE, pareto.PAGE),
    ("study", PLAN_FILE, study_folder.PAGE),
)
MAX_PAGE_BYTES = 64 * 2**20
MAX_FOLDERS = 1000  # that are looked at


class StudyLibrary:
    """All studies below some folders; a row is read again only after its files have changed."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.paths: dict[str, tuple[Path, str, str]] = {}  # identity -> folder, kind, name of the page
        self.rows: dict[str, tuple[str, dict[str, Any]]] = {}  # identity -> version, row
        self.lock = threading.Lock()

    def refresh(self) -> list[dict[str, Any]]:
        """Return the rows of all studies, by name."""
        with self.lock:
            self.paths = {identity(path): (path, kind, page) for path, kind, page in self._found()}
            for key, (path, kind, page) in self.paths.items():
                version = " ".join(map(_stamp, (path / page, path / PLAN_FILE, path / CELLS)))
                if self.rows.get(key, ("",))[0] != version:
                    self.rows[key] = version, _row(key, path, kind, page)
            self.rows = {key: self.rows[key] for key in self.paths}
            return sorted((row for _, row in self.rows.values()), key=lambda row: str(row["name"]))

    def page(self, key: str) -> tuple[str, bool]:
        """Return the page of a study, and whether it was stored in its folder, by whomever."""
        if key not in self.paths:
            self.refresh()
        if key not in self.paths:
            raise MissingFileError("there is no such study")
        path, kind, page = self.paths[key]
        try:
            return read_bytes(path / page, "file", inside=path, limit=MAX_PAGE_BYTES).decode(errors="replace"), True
        except MissingFileError:
            if kind != "study":
                raise MissingFileError(f"{path.name} has no page yet; its command writes it at the end") from None
        return study_page(study_folder.read_study(path)), False

    def _found(self) -> list[tuple[Path, str, str]]:
        found = {}
        for folder in self.folders:
            try:
                children = sorted(folder.iterdir())[:MAX_FOLDERS]
            except OSError:
                continue
            for path in children:
                kind = next(((kind, page) for kind, mark, page in KINDS if (path / mark).is_file()), None)
                if kind is not None:
                    found[path.resolve()] = (path, *kind)
        return list(found.values())


def _row(key: str, path: Path, kind: str, page: str) -> dict[str, Any]:
    title, cells, begun, problem = "", None, None, ""
    if (path / PLAN_FILE).is_file():
        try:
            plan = read_plan(path)
            title, cells = plan.title, len(plan.cells)
            begun = len(os.listdir(path / CELLS))
        except PsycoError as error:
            problem = str(error)
        except OSError:
            begun = 0
    finished = (path / page).is_file()
    return {
        "id": key, "name": path.name, "kind": kind, "title": title, "cells": cells, "begun": begun,
        "finished": finished, "problem": problem,
    }  # fmt: skip


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "-"
    return f"{found.st_mtime_ns}.{found.st_size}"
