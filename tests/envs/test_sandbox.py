"""What strangers' code does to the process is put right again."""

import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from psyco._src.envs import sandbox
from tests.environments import Stuck, Walk


def test_a_guest_leaves_folder_handlers_and_output_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_place", None)
    home, handler = os.getcwd(), signal.getsignal(signal.SIGINT)
    with sandbox.as_guest():
        os.chdir(tmp_path)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("hello")
    assert os.getcwd() == home
    assert signal.getsignal(signal.SIGINT) is handler
    assert tuple(capsys.readouterr()) == ("", "hello\n")
    with sandbox.as_guest():
        assert Path.cwd() == tmp_path, "an environment that relies on its folder finds it again"


def test_a_guest_does_not_end_the_process() -> None:
    with (
        pytest.raises(RuntimeError, match=r"it tried to end the process \(SystemExit: 0\)"),
        sandbox.as_guest(),
    ):
        sys.exit(0)
    with (
        pytest.raises(RuntimeError, match=r"it tried to end the process \(SystemExit: 0\)"),
        sandbox.as_guest(),
    ):
        os._exit(0)
    with pytest.raises(KeyboardInterrupt), sandbox.as_guest():
        raise KeyboardInterrupt  # Ctrl-C does


def test_environments_that_do_not_close_cost_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sandbox, "CLOSE_SECONDS", 0.2)
    with caplog.at_level(logging.WARNING, "psyco"):
        sandbox.close(Stuck(), Walk(), Stuck())
    assert len(caplog.messages) == 1
    assert "2 of 3 environments do not close: Stuck: TimeoutError" in caplog.text
