"""`psyco watch`: test in the field whether a certificate still holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args

import typer

import psyco
from psyco._src.cli.common import CutEpisodes, Host, Port, open_server, remark, say
from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.core.wording import plural
from psyco._src.verification.recorded_columns import DEFAULT_IN_FLIGHT, Cut

if TYPE_CHECKING:
    from psyco._src.field.service import FieldEvent, WatchSession

LINE_EVERY = 5.0  # seconds between two progress lines
GRACE = 2.0  # seconds that the command for alarms has to end after each signal
MAX_VARIABLE = 8000  # characters of a variable of the command's environment
T = TypeVar("T")


def watch(
    certificate: Annotated[
        str,
        typer.Option(metavar="FILE", help="Certificate to watch, or a requirement as text or file."),
    ],
    outcomes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="One episode per line: 0 or 1, CSV with a header, JSON lines; - for input. The lines are in the order "
            "in which episodes began, with none left out that still runs, or a column index (0, 1, 2, ...) states it.",
        ),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Recorded signals: CSV or JSON lines with an episode column; - for input. Order as in --outcomes.",
        ),
    ] = None,
    in_flight: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="With a column index: outcomes wait until all episodes that began before have ended; it is an error "
            "if more than N wait for one.",
        ),
    ] = DEFAULT_IN_FLIGHT,
    first_index: Annotated[
        int | None, typer.Option(help="Index of the first episode.  [default: 0, or that of the state]")
    ] = None,
    cut: CutEpisodes = "error",
    false_alarm_every: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Mean number of episodes between false alarms, at least.  [default: 100000, or that of the state]",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the state in this file; a later call continues from it."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more when the file ends.")] = False,
    new_file: Annotated[
        bool,
        typer.Option("--new-file", help="The file is new, such as a rotated log: read it from its start."),
    ] = False,
    on_alarm: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run this at every alarm and recovery, with PSYCO_EVENT, PSYCO_EPISODE, PSYCO_LOST, PSYCO_RECOVERED, "
            "PSYCO_MESSAGE in its environment.",
        ),
    ] = None,
    span: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="LO,HI",
            help="Range of an expected value per episode, if the requirement does not state it.",
        ),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Longest episode, for rates, if the certificate does not state it.")
    ] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page to this file at the end.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve a live page.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")] = False,
) -> None:
    """Watch whether a certificate still holds for episodes in the field, and raise an alarm when it does not.

    Exit status: 0 no alarm at the end, also after Ctrl-C; 1 in alarm; 2 bad input, with its line number. With --state,
    earlier episodes are not lost.

    Examples:

        psyco watch --certificate runs/dance/certificate.json --outcomes field.log --follow --state watch.json

        psyco watch --certificate 'P>=0.85 & C>=0.98' --outcomes - --json < outcomes.txt

        psyco watch --certificate runs/dance/certificate.json --traces field.csv --on-alarm './stop-the-fleet'
    """
    from psyco._src.field.service import lock_state, open_session

    if (outcomes is None) == (traces is None):
        raise RunError("give the episodes with one of --outcomes and --traces")
    source = str(outcomes if traces is None else traces)
    if source == "-" and (follow or new_file):
        raise RunError("the standard input is read to its end anyway: leave out --follow and --new-file")

    if cut not in get_args(Cut):
        raise RunError(f"--cut is error or violated, got {cut!r}")

    def make(before: dict[str, Any] | None) -> psyco.FieldTest:
        every = int(false_alarm_every) if false_alarm_every and false_alarm_every % 1 == 0 else false_alarm_every
        return psyco.FieldTest(certificate, every, ranges=_ranges(span), horizon=horizon, state=before)

    with lock_state(state):
        session = open_session(
            make, traces=traces is not None, state=state, new_file=new_file, first_index=first_index,
            in_flight=in_flight, cut=cast(Cut, cut),
        )  # fmt: skip
        if session.traces:
            session.set_reference(_reference(certificate, session))
        _check_verdict(session.field_test.certificate)
        with stopping() as stop, _served(session, source, serve, host, port):
            teller = AlarmReporter(session, on_alarm, as_json, stop)
            if source == "-":
                events = session.read_stream(stop.pieces(), should_stop=stop)
            else:
                events = session.read_file(Path(source), follow=follow, should_stop=stop)
            for event in events:
                if not teller.tell(event):
                    break  # without a further event, so that the alarm is raised again
            # The page stays until it is stopped, also after the end of the input.
            while serve and not stop.asked:
                stop(1.0)
        teller.end()
        if page is not None:
            from psyco._src.reports.field_page import watch_page

            files.write(page, watch_page(session, _title(source)).encode())
    raise typer.Exit(1 if session.field_test.in_alarm else 0)


class AlarmReporter:
    """Report events as text or JSON, and run the command for alarms."""

    def __init__(self, session: WatchSession, on_alarm: str | None, as_json: bool, stop: StopSignal) -> None:
        self.session, self.on_alarm, self.as_json, self.stop = session, on_alarm, as_json, stop
        self.next_line = time.monotonic() + LINE_EVERY

    def tell(self, event: FieldEvent) -> bool:
        """Report one event; progress is reported at intervals. Return whether it was handled to its end."""
        if event.kind == "progress":
            if time.monotonic() < self.next_line:
                return True
            self.next_line = time.monotonic() + LINE_EVERY
        if self.as_json:
            self._print({"kind": event.kind, "line": event.line, "message": event.text, **self._where()})
        elif event.alarm is not None:
            say(f"{event.kind.upper()} {event.text}")
        elif event.kind == "progress":
            remark(event.text)
        else:
            remark(f"{event.kind}: line {event.line}: {event.text}")
        return event.alarm is None or self.on_alarm is None or self._call(self.on_alarm, event.alarm)

    def end(self) -> None:
        """Report the final state."""
        if self.as_json:
            self._print({"kind": "end", **self._where()})
            return
        test = self.session.field_test
        say(f"{plural(test.episodes, 'episode')}: {'in alarm' if test.in_alarm else 'no alarm'}")
        for constraint, evidence, interval in zip(test.constraints, test.evidence, test.intervals, strict=True):
            stands = "HOLDS NO LONGER" if evidence.lost else "holds, as far as is known"
            where = f"between {interval.lower:.4f} and {interval.upper:.4f}"
            since = f" since episode {evidence.since:,}" * bool(evidence.since)
            say(f"  {constraint.label}: {stands}; {where}{since}")

    def _where(self) -> dict[str, Any]:
        test = self.session.field_test
        names = [constraint.label for constraint in test.constraints]
        intervals = [list(interval) for interval in test.intervals]
        return {
            "episodes": test.episodes,
            "alarm": list(test.in_alarm),
            "intervals": dict(zip(names, intervals, strict=True)),
            "held_back": len(self.session.order.held),
        }

    def _print(self, content: dict[str, Any]) -> None:
        print(json.dumps(content, allow_nan=False), flush=True)

    def _call(self, command: str, alarm: psyco.Alarm) -> bool:
        """Run the user's command; values from data are in its environment, never in the command.

        Returns:
            Whether the command has ended by itself.
        """
        variables = {
            "PSYCO_EVENT": "alarm" if alarm.lost else "recovered",
            "PSYCO_EPISODE": str(alarm.episode),
            "PSYCO_LOST": "\n".join(alarm.lost),
            "PSYCO_RECOVERED": "\n".join(alarm.recovered),
            "PSYCO_MESSAGE": str(alarm),
        }
        try:
            process = _start(command, {name: _environment_text(value) for name, value in variables.items()})
        except OSError as error:
            remark(f"warning: the command for alarms cannot be run: {error.strerror or error}: {command}")
            return True
        if not self._wait(process):
            remark("warning: the command for alarms was ended with the watch; with --state the alarm is raised again")
            return False
        if process.returncode:
            remark(f"warning: the command for alarms ended with status {process.returncode}: {command}")
        return True

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for a command; after a signal it has a short time to end, then it is terminated, then killed."""
        self.stop.interruptible(process.wait, None)
        ended = _ends_soon(process)
        for number in () if ended else (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            _signal_group(process, number)
            if _ends_soon(process):
                break
        if process.stdin is not None:
            process.stdin.close()
        return ended


# Runs a command in a process group of its own. Another process in the group waits for the end of the pipe from the
# watch, which also a kill of the watch closes, and then kills the group.
_SUPERVISED = """
trap : TERM
exec 3<&0 </dev/null
{ trap '' TERM; read -r line <&3; kill -s KILL -- -$$; } &
guard=$!
sh -c "$1" 3<&-
status=$?
kill -s KILL $guard
exit $status
"""


def _ends_soon(process: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    return process.poll() is not None


def _start(command: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command that ends with this process at the latest; its output goes to standard error."""
    environment = os.environ | variables
    if os.name == "nt":
        return subprocess.Popen(command, shell=True, env=environment, stdin=subprocess.DEVNULL, stdout=2)
    return subprocess.Popen(
        ["sh", "-c", _SUPERVISED, "sh", command], env=environment, stdin=subprocess.PIPE, stdout=2,
        start_new_session=True,
    )  # fmt: skip


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if os.name == "nt":
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)


def _environment_text(text: str) -> str:
    """Return a text that every system takes as the value of a variable: valid Unicode, no NUL, of limited length."""
    clean = text.replace("\0", "").encode("utf-8", "backslashreplace").decode()
    cut = f" ... (cut; {len(clean):,} characters)"
    return clean if len(clean) <= MAX_VARIABLE else clean[: MAX_VARIABLE - len(cut)] + cut


class StopSignal:
    """Stop a watch on Ctrl-C or SIGTERM, between two episodes or while it waits for one."""

    def __init__(self) -> None:
        self.asked = self.waiting = False

    def __call__(self, seconds: float) -> bool:
        """Wait, or return early when asked to stop."""
        if seconds:
            self.interruptible(partial(time.sleep, seconds), None)
        return self.asked

    def ask(self, number: int, frame: object) -> None:
        """Handle a signal."""
        self.asked = True
        if self.waiting:
            raise KeyboardInterrupt

    def pieces(self) -> Iterator[bytes]:
        """Yield the standard input as it arrives, until it ends or the watch is stopped."""
        stream = cast(BufferedReader, sys.stdin.buffer)
        while piece := self.interruptible(partial(stream.read1, 2**16), b""):
            yield piece

    def interruptible(self, act: Callable[[], T], otherwise: T) -> T:
        """Return the result of a blocking call; `otherwise` if a signal arrives before."""
        try:
            self.waiting = True
            return otherwise if self.asked else act()
        except KeyboardInterrupt:
            return otherwise
        finally:
            self.waiting = False


@contextmanager
def stopping() -> Iterator[StopSignal]:
    """Install a `StopSignal` for SIGINT and SIGTERM."""
    stop = StopSignal()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _served(session: WatchSession, source: str, serve: bool, host: str, port: int) -> Iterator[None]:
    if not serve:
        yield
        return
    from psyco._src.reports.field_page import LiveWatch

    server = open_server(LiveWatch(session, _title(source)), host, port)
    print(f"live page: {server.url}  (Ctrl-C ends it)", file=sys.stderr, flush=True)
    with server.in_background():
        yield


def _title(source: str) -> str:
    return "the input" if source == "-" else Path(source).name


def _reference(certificate: str, session: WatchSession) -> Any:
    """Return the statistics of observations at certification, if the certificate lies in its run folder."""
    from psyco._src.field.drift import find_reference

    certified = session.field_test.certificate
    if certified is None or certified.policy is None:
        return None
    found = find_reference(Path(certificate), certified.policy)
    if found is None:
        remark("note: there are no statistics of observations beside the certificate, so drift is not tested")
    return found


def _check_verdict(certificate: psyco.Certificate | None) -> None:
    if certificate is not None and certificate.verdict is not psyco.Verdict.SATISFIED:
        remark(f"warning: the verdict of the certificate is {certificate.verdict.name}")


def _ranges(texts: list[str] | None) -> list[tuple[float, float]] | None:
    if not texts:
        return None
    try:
        pairs = [tuple(map(float, text.split(","))) for text in texts]
    except ValueError:
        pairs = [()]
    if any(len(pair) != 2 or not pair[0] < pair[1] for pair in pairs):
        raise RunError(f"--range takes two numbers, LO,HI; got {' '.join(texts)}")
    return [(pair[0], pair[1]) for pair in pairs]
