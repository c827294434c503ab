"""`psyco watch`: test in the field whether a certificate still holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

import psyco
from psyco._src.cli.common import Host, Port, open_server, remark, say
from psyco._src.core import files
from psyco._src.core.errors import RunError

if TYPE_CHECKING:
    from psyco._src.field.service import FieldEvent, WatchSession

LINE_EVERY = 5.0  # seconds between two progress lines
T = TypeVar("T")


def watch(
    certificate: Annotated[
        str,
        typer.Option(metavar="FILE", help="Certificate to watch, or a requirement as text or file."),
    ],
    outcomes: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="One episode per line: 0 or 1, CSV with a header, JSON lines; - for input."),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Recorded signals: CSV or JSON lines with an episode column; - for input.",
        ),
    ] = None,
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

    def make(before: dict[str, Any] | None) -> psyco.FieldTest:
        every = int(false_alarm_every) if false_alarm_every and false_alarm_every % 1 == 0 else false_alarm_every
        return psyco.FieldTest(certificate, every, ranges=_ranges(span), horizon=horizon, state=before)

    with lock_state(state):
        session = open_session(make, traces=traces is not None, state=state, new_file=new_file)
        if session.traces:
            session.set_reference(_reference(certificate, session))
        _check_verdict(session.field_test.certificate)
        teller = AlarmReporter(session, on_alarm, as_json)
        with stopping() as stop, _served(session, source, serve, host, port):
            if source == "-":
                events = session.read_stream(stop.pieces(), should_stop=stop)
            else:
                events = session.read_file(Path(source), follow=follow, should_stop=stop)
            for event in events:
                teller.tell(event)
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

    def __init__(self, session: WatchSession, on_alarm: str | None, as_json: bool) -> None:
        self.session, self.on_alarm, self.as_json = session, on_alarm, as_json
        self.next_line = time.monotonic() + LINE_EVERY

    def tell(self, event: FieldEvent) -> None:
        """Report one event; progress is reported at intervals."""
        if event.kind == "progress":
            if time.monotonic() < self.next_line:
                return
            self.next_line = time.monotonic() + LINE_EVERY
        if self.as_json:
            self._print({"kind": event.kind, "line": event.line, "message": event.text, **self._where()})
        elif event.alarm is not None:
            say(f"{event.kind.upper()} {event.text}")
        elif event.kind == "progress":
            remark(event.text)
        else:
            remark(f"{event.kind}: line {event.line}: {event.text}")
        if event.alarm is not None and self.on_alarm is not None:
            self._call(self.on_alarm, event.alarm)

    def end(self) -> None:
        """Report the final state."""
        if self.as_json:
            self._print({"kind": "end", **self._where()})
            return
        test = self.session.field_test
        say(f"{test.episodes:,} episodes: {'in alarm' if test.in_alarm else 'no alarm'}")
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
        }

    def _print(self, content: dict[str, Any]) -> None:
        print(json.dumps(content, allow_nan=False), flush=True)

    def _call(self, command: str, alarm: psyco.Alarm) -> None:
        """Run the user's command; values from data are in its environment, never in the command."""
        variables = {
            "PSYCO_EVENT": "alarm" if alarm.lost else "recovered",
            "PSYCO_EPISODE": str(alarm.episode),
            "PSYCO_LOST": "\n".join(alarm.lost),
            "PSYCO_RECOVERED": "\n".join(alarm.recovered),
            "PSYCO_MESSAGE": str(alarm),
        }
        clean = {name: value.replace("\0", "") for name, value in variables.items()}
        # Its output goes to standard error: standard output is for results.
        done = subprocess.run(command, shell=True, env=os.environ | clean, stdin=subprocess.DEVNULL, stdout=2)
        if done.returncode:
            remark(f"warning: the command for alarms ended with status {done.returncode}: {command}")


class StopSignal:
    """Stop a watch on Ctrl-C or SIGTERM, between two episodes or while it waits for one."""

    def __init__(self) -> None:
        self.asked = self.waiting = False

    def __call__(self, seconds: float) -> bool:
        """Wait, or return early when asked to stop."""
        if seconds:
            self._interruptible(partial(time.sleep, seconds), None)
        return self.asked

    def ask(self, number: int, frame: object) -> None:
        """Handle a signal."""
        self.asked = True
        if self.waiting:
            raise KeyboardInterrupt

    def pieces(self) -> Iterator[bytes]:
        """Yield the standard input as it arrives, until it ends or the watch is stopped."""
        stream = cast(BufferedReader, sys.stdin.buffer)
        while piece := self._interruptible(partial(stream.read1, 2**16), b""):
            yield piece

    def _interruptible(self, act: Callable[[], T], otherwise: T) -> T:
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
    threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
    print(f"live page: {server.url}  (Ctrl-C ends it)", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


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
