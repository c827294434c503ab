"""Serve the studio on loopback until it is interrupted."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Callable, Collection
from contextlib import suppress
from html import escape
from pathlib import Path

from psyco._src.core.errors import RunError
from psyco._src.runs.lock import LOCK, lock_file
from psyco._src.studio.jobs import FOLDER, make_own_folder

MAX_CONNECTIONS = 100
MAX_HEAD_BYTES = 16 * 1024
RUN_FILE = "config.toml"  # of every run; runs.store would take seconds to import


def serve_studio(
    folder: Path,
    *,
    trust: Collection[str] = (),
    port: int = 0,
    at_once: int = 1,
    open_browser: bool = True,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the studio of a folder with runs.

    Args:
        folder: where runs are and will be; it is made if it is missing.
        trust: code and files that a page may name.
        port: 0: a free one.
        at_once: number of runs that learn at the same time; others wait.
        open_browser: open the page.
        announce: called with the address.
    """
    try:
        import uvicorn

        from psyco._src.reports.live_server import listen
        from psyco._src.reports.short_connections import KeptConnection
        from psyco._src.studio.request_guard import RequestGuard
        from psyco._src.studio.web_app import Studio, make_application
    except ImportError as error:
        raise RunError(f'the studio needs {error.name}: pip install "psyco[studio]"') from None
    _make_folder(folder)
    make_own_folder(folder / FOLDER)
    listening = listen("127.0.0.1", port)
    guard = RequestGuard(make_application(Studio(folder, trust, at_once)))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/{guard.token}/"
    config = uvicorn.Config(
        guard, http=KeptConnection, ws="none", lifespan="on", log_level="warning", access_log=False,
        server_header=False, date_header=False, proxy_headers=False, limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=10, h11_max_incomplete_event_size=MAX_HEAD_BYTES, timeout_graceful_shutdown=1,
    )  # fmt: skip
    # Two studios would write the same list of jobs.
    with lock_file(folder / FOLDER / LOCK, Path(f"{folder}: its studio")):
        announce(address)
        opener = _open_page(folder, address) if open_browser else None
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:
            pass
        finally:
            if opener is not None:
                opener.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    if os.path.lexists(folder / RUN_FILE):
        raise RunError(f"{folder} is a run; name the folder that it lies in: psyco studio {folder.resolve().parent}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None


def _open_page(folder: Path, address: str) -> Path | None:
    """Open the page through a file that only this user can read: arguments of processes are visible to all users."""
    path = folder / FOLDER / "open.html"
    with suppress(OSError, webbrowser.Error):
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">\n')
        webbrowser.open(path.resolve().as_uri())
        return path
    return None
