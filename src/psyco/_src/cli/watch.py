"""`psyco watch`: does the promise hold in the field?"""

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
from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError

if TYPE_CHECKING:
    from psyco._src.field.service import FieldEvent, WatchSession

LINE_EVERY = 5.0  # seconds between two words on how it goes
T = TypeVar("T")


def watch(
    certificate: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="What was promised: a certificate; or a requirement, as text or file."
        ),
    ],
    outcomes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="One episode per line: 0 or 1, CSV with a header, JSON lines; - for input."
        ),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Signals that are judged first: CSV or JSON lines with an episode column; - for input.",
        ),
    ] = None,
    false_alarm_every: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="A false alarm on average once in N episodes at most.  [default: 100000, or the state's]",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep everything here; a later call goes on where this one ended."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more when the file ends.")] = False,
    new_file: Annotated[
        bool,
        typer.Option(
            "--new-file", help="The file is a new one, such as a rotated log: read it from its start."
        ),
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
            help="Where an expected value's episodes lie, if the requirement does not say.",
        ),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(help="The longest episode, for rates, if the certificate does not say.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page of the watch to this file in the end.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Show a live page of the watch.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")] = False,
) -> None:
    """Watch whether a policy keeps in the field what was certified, and raise an alarm when it does not.

    Exit status: 0 no alarm at the end, also after Ctrl-C; 1 in alarm; 2 bad input, whose line is named; with --state
    nothing that came before is lost.

    Examples:

        psyco watch --certificate runs/dance/certificate.json --outcomes field.log --follow --state watch.json

        psyco watch --certificate 'P>=0.85 & C>=0.98' --outcomes - --json < outcomes.txt

        psyco watch --certificate runs/dance/certificate.json --traces field.csv --on-alarm './stop-the-fleet'
    """
    from psyco._src.field.service import held, open_session

    if (outcomes is None) == (traces is None):
        raise RunError("give the episodes with one of --outcomes and --traces")
    source = str(outcomes if traces is None else traces)
    if source == "-" and (follow or new_file):
        raise RunError("the standard input is read to its end anyway: leave out --follow and --new-file")

    def make(before: dict[str, Any] | None) -> psyco.FieldTest:
        every = (
            int(false_alarm_every) if false_alarm_every and false_alarm_every % 1 == 0 else false_alarm_every
        )
        return psyco.FieldTest(certificate, every, ranges=_ranges(span), horizon=horizon, state=before)

    with held(state):
        session = open_session(make, traces=traces is not None, state=state, new_file=new_file)
        if session.traces:
            session.refer_to(_reference(certificate, session))
        _check_promise(session.watcher.certificate)
        teller = AlarmReporter(session, on_alarm, as_json)
        with stopping() as stop, _served(session, source, serve, host, port):
            if source == "-":
                events = session.listen(stop.pieces(), stop=stop)
            else:
                events = session.follow(Path(source), on=follow, stop=stop)
            for event in events:
                teller.tell(event)
            # The page stays until somebody ends it, also when there is nothing more to come.
            while serve and not stop.asked:
                stop(1.0)
        teller.end()
        if page is not None:
            from psyco._src.reports.field_page import watch_page

            atomic_io.write(page, watch_page(session, _title(source)).encode())
    raise typer.Exit(1 if session.watcher.in_alarm else 0)


class AlarmReporter:
    """Says what happens: to people, to programs, and to whoever is to be called."""

    def __init__(self, session: WatchSession, on_alarm: str | None, as_json: bool) -> None:
        self.session, self.on_alarm, self.as_json = session, on_alarm, as_json
        self.next_line = time.monotonic() + LINE_EVERY

    def tell(self, event: FieldEvent) -> None:
        """One event; that things go on is worth a word now and then."""
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
        """How it stands."""
        if self.as_json:
            self._print({"kind": "end", **self._where()})
            return
        watcher = self.session.watcher
        say(f"{watcher.episodes:,} episodes: {'in alarm' if watcher.in_alarm else 'no alarm'}")
        for each, kept, interval in zip(watcher.watched, watcher.known, watcher.intervals, strict=True):
            stands = "HOLDS NO LONGER" if kept.lost else "holds, as far as is known"
            where = f"between {interval.lower:.4f} and {interval.upper:.4f}"
            since = f" since episode {kept.since:,}" * bool(kept.since)
            say(f"  {each.called}: {stands}; {where}{since}")

    def _where(self) -> dict[str, Any]:
        watcher = self.session.watcher
        names = [each.called for each in watcher.watched]
        intervals = [list(interval) for interval in watcher.intervals]
        return {
            "episodes": watcher.episodes,
            "alarm": list(watcher.in_alarm),
            "intervals": dict(zip(names, intervals, strict=True)),
        }

    def _print(self, content: dict[str, Any]) -> None:
        print(json.dumps(content, allow_nan=False), flush=True)

    def _call(self, command: str, alarm: psyco.Alarm) -> None:
        """The user's own command; what comes from data is in its environment and never part of it."""
        told = {
            "PSYCO_EVENT": "alarm" if alarm.lost else "recovered",
            "PSYCO_EPISODE": str(alarm.episode),
            "PSYCO_LOST": "\n".join(alarm.lost),
            "PSYCO_RECOVERED": "\n".join(alarm.recovered),
            "PSYCO_MESSAGE": str(alarm),
        }
        clean = {name: value.replace("\0", "") for name, value in told.items()}
        # Its output goes to standard error: standard output is for our own lines.
        done = subprocess.run(command, shell=True, env=os.environ | clean, stdin=subprocess.DEVNULL, stdout=2)
        if done.returncode:
            remark(f"warning: the command for alarms ended with status {done.returncode}: {command}")


class StopSignal:
    """Ctrl-C and SIGTERM end a watch between two episodes, or while it waits for one."""

    def __init__(self) -> None:
        self.asked = self.waiting = False

    def __call__(self, seconds: float) -> bool:
        """Wait that long, or until it is to end."""
        if seconds:
            self._patiently(partial(time.sleep, seconds), None)
        return self.asked

    def ask(self, number: int, frame: object) -> None:
        """What a signal does."""
        self.asked = True
        if self.waiting:
            raise KeyboardInterrupt

    def pieces(self) -> Iterator[bytes]:
        """The standard input as it comes, until it ends or the watch is to end."""
        stream = cast(BufferedReader, sys.stdin.buffer)
        while piece := self._patiently(partial(stream.read1, 2**16), b""):
            yield piece

    def _patiently(self, act: Callable[[], T], otherwise: T) -> T:
        """What an act returns that may take for ever; something else if a signal comes before."""
        try:
            self.waiting = True
            return otherwise if self.asked else act()
        except KeyboardInterrupt:
            return otherwise
        finally:
            self.waiting = False


@contextmanager
def stopping() -> Iterator[StopSignal]:
    """A `Stop` that listens to signals."""
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
    """What the policy saw when it was certified, where the certificate lies in its run."""
    from psyco._src.field.drift import find_reference

    promised = session.watcher.certificate
    if promised is None or promised.policy is None:
        return None
    found = find_reference(Path(certificate), promised.policy)
    if found is None:
        remark(
            "note: nothing beside the certificate says what the policy saw, so drift of it is not looked for"
        )
    return found


def _check_promise(certificate: psyco.Certificate | None) -> None:
    if certificate is not None and certificate.verdict is not psyco.Verdict.SATISFIED:
        remark(f"warning: nothing was promised: the certificate says {certificate.verdict.name}")


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
