"""Process state is restored after environment code, which cannot end the process."""

import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from psyco._src.envs import sandbox
from tests.environments import Stuck, Walk


def test_sandboxed_code_leaves_folder_handlers_and_output_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_sandbox_folder", None)
    home, handler = os.getcwd(), signal.getsignal(signal.SIGINT)
    with sandbox.sandboxed():
        os.chdir(tmp_path)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("hello")
    assert os.getcwd() == home
    assert signal.getsignal(signal.SIGINT) is handler
    assert tuple(capsys.readouterr()) == ("", "hello\n")
    with sandbox.sandboxed():
        assert Path.cwd() == tmp_path, "an environment that relies on its folder finds it again"


def test_sandboxed_code_does_not_end_the_process() -> None:
    with (
        pytest.raises(RuntimeError, match=r"it tried to end the process \(SystemExit: 0\)"),
        sandbox.sandboxed(),
    ):
        sys.exit(0)
    with (
        pytest.raises(RuntimeError, match=r"it tried to end the process \(SystemExit: 0\)"),
        sandbox.sandboxed(),
    ):
        os._exit(0)
    with pytest.raises(KeyboardInterrupt), sandbox.sandboxed():
        raise KeyboardInterrupt  # Ctrl-C still works


def test_environments_that_do_not_close_cost_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sandbox, "CLOSE_TIMEOUT", 0.2)
    with caplog.at_level(logging.WARNING, "psyco"):
        sandbox.close_envs(Stuck(), Walk(), Stuck())
    assert len(caplog.messages) == 1
    assert "2 of 3 environments do not close: Stuck: TimeoutError" in caplog.text
