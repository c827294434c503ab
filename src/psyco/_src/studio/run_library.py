"""The runs of a folder as the studio shows them: rows of a table, live pages, comparisons, files to download."""

from __future__ import annotations

import hashlib
import io
import shlex
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import psyco
from psyco._src.core.errors import MissingFileError, PsycoError
from psyco._src.core.files import read_bytes
from psyco._src.envs.registry import proposed_trust
from psyco._src.reports.live_server import live_html, live_update
from psyco._src.reports.run_page import LiveRun, compare_page
from psyco._src.runs.live_progress import load_progress
from psyco._src.runs.run_summary import summarize
from psyco._src.runs.store import CERTIFICATE, CONFIG, POLICY, REQUIREMENT, find_runs, read_run

DOWNLOADS = (POLICY, CERTIFICATE, CONFIG, REQUIREMENT)
COUNTEREXAMPLES = "counterexamples.html"
ONNX, C_ARCHIVE = "policy.onnx", "policy-c.zip"
EXPORTS = (ONNX, C_ARCHIVE)
MAX_COMPARED = 6
MAX_DOWNLOAD_BYTES = 256 * 2**20


class RunLibrary:
    """All runs below one folder; a row is read again only after its files have changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, Path] = {}  # identity -> run folder
        self.rows: dict[str, dict[str, Any]] = {}
        self.versions: dict[str, str] = {}
        self.lock = threading.Lock()
        self.exporting = threading.Lock()  # one at a time: an export takes a processor for seconds

    def refresh(self) -> list[dict[str, Any]]:
        """Return the rows of all runs, the newest first."""
        with self.lock:
            self.paths = {identity(path): path for path in self._found()}
            for key, path in self.paths.items():
                version = f"{LiveRun(path).version()} {(path / COUNTEREXAMPLES).exists()}"
                if version != self.versions.get(key):
                    self.rows[key] = self._row(key, path)
                    self.versions[key] = version
            for key in self.rows.keys() - self.paths.keys():
                del self.rows[key], self.versions[key]
            return sorted(self.rows.values(), key=lambda row: -(row["created"] or 0))

    def _found(self) -> list[Path]:
        try:
            return find_runs(self.folder)
        except PsycoError:
            return []

    def _row(self, key: str, path: Path) -> dict[str, Any]:
        run = read_run(path)
        moment = load_progress(path) if run.state == "running" else None
        here = path.resolve()  # its files may be links in a circle
        again = ["psyco", "synthesize", "--config", str(here / CONFIG), "--out", f"{here}-again"]
        again += [
            word
            for name in (proposed_trust(run.config.description) if run.config else ())
            for word in ("--trust", name)
        ]
        replay = ["psyco", "verify", "--replay", *(str(here / name) for name in (CERTIFICATE, POLICY))]
        return {
            **summarize(run),
            "id": key,
            "name": path.name,
            "text": run.config.requirement if run.config else "",
            "parameters": {name: repr(value) for name, value in run.config.parameters.items()} if run.config else {},
            "command": shlex.join(again),
            "replay": shlex.join(replay) if run.certificate else "",
            "moment": moment._asdict() if moment else None,
            "files": [name for name in DOWNLOADS if (path / name).is_file()],
            "counterexamples": (path / COUNTEREXAMPLES).is_file(),
        }

    def path(self, key: str) -> Path:
        """Return the folder of a run; raise MissingFileError if there is none with this identity."""
        if key not in self.paths:
            self.refresh()
        if key not in self.paths:
            raise MissingFileError("there is no such run")
        return self.paths[key]

    def page(self, key: str) -> str:
        """Return the live page of a run."""
        return live_html(LiveRun(self.path(key)))

    def update(self, key: str, known: str) -> dict[str, Any] | None:
        """Return the content of the page of a run if it has changed."""
        live = LiveRun(self.path(key))
        return None if live.version() == known else live_update(live)

    def comparison(self, keys: list[str]) -> str:
        """Return the page that compares runs."""
        return compare_page([read_run(self.path(key)) for key in keys[:MAX_COMPARED]])

    def download(self, key: str, name: str) -> bytes:
        """Return a file of a run."""
        if name not in DOWNLOADS and name != COUNTEREXAMPLES:
            raise MissingFileError("there is no such file")
        folder = self.path(key)
        return read_bytes(folder / name, "file", inside=folder, limit=MAX_DOWNLOAD_BYTES)

    def export(self, key: str, name: str) -> bytes:
        """Return the policy of a run as ONNX, or as C with the monitor of its requirement in an archive."""
        if name not in EXPORTS:
            raise MissingFileError("there is no such export")
        path = self.path(key)
        with tempfile.TemporaryDirectory(prefix="psyco-export-") as made, self.exporting:
            if name == ONNX:
                psyco.export(path, Path(made) / name)
                return (Path(made) / name).read_bytes()
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
                for file in psyco.export_c(path, made):
                    archive.write(file, file.name)
            return buffer.getvalue()


def identity(path: Path) -> str:
    """Return a short name of a run for addresses."""
    return hashlib.sha256(str(path.resolve()).encode(errors="replace")).hexdigest()[:16]
