"""The web application of the studio: addresses, and what each answers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from psyco._src.core import files as safe_files
from psyco._src.core.errors import MissingFileError, PsycoError, RequirementError, RunError, format_exception
from psyco._src.studio.bench_client import Workbench
from psyco._src.studio.jobs import FOLDER, Jobs, make_own_folder
from psyco._src.studio.order import (
    CERTIFICATE_EPISODES,
    EPISODES,
    as_arguments,
    read_domain,
    read_fraction,
    read_requirement,
    read_run_name,
    read_whole,
)
from psyco._src.studio.request_guard import HEADERS, MAX_STREAMS, POLICY, read_json

if TYPE_CHECKING:
    from psyco._src.logic.ast import Requirement

logger = logging.getLogger(__name__)

STATIC = {
    "studio.js": "text/javascript",
    "editor.js": "text/javascript",
    "plan.js": "text/javascript",
    "play.js": "text/javascript",
    "runs.js": "text/javascript",
    "look.js": "text/javascript",
    "draw.js": "text/javascript",
    "studio.css": "text/css",
    "page.css": "text/css",
}
REFRESH_SECONDS = 0.5
PING_SECONDS = 15.0
DEFAULT_DOMAIN = "particle-dance"
# That of the domain, which would take seconds to import.
DEFAULT_REQUIREMENT = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


class Studio:
    """The state of one studio: its folder, what it may import, its jobs, and its runs."""

    def __init__(self, folder: Path, trust: Collection[str] = (), at_once: int = 1) -> None:
        self.folder, self.trust = folder, tuple(trust)
        self.jobs = Jobs(folder, at_once)
        self.bench = Workbench()
        self.version, self.streams = 0, 0
        self.state: dict[str, Any] = {"runs": [], "jobs": [], "studies": [], "ready": False}
        self.library: Any = None  # RunLibrary, once it is imported
        self.studies: Any = None  # StudyLibrary

    def load(self) -> None:
        """Import the reader of runs, which takes seconds."""
        from psyco._src.studio.run_library import RunLibrary

        self.library = RunLibrary(self.folder)
        from psyco._src.studio.study_library import StudyLibrary  # runs need not wait for it

        self.studies = StudyLibrary([self.folder, self.folder.resolve().parent / "studies"])

    async def watch(self) -> None:
        """Look at jobs and runs again and again, and count the changes."""
        # In a thread that does not keep the program from ending.
        threading.Thread(target=self.load, daemon=True).start()
        while self.library is None:
            await asyncio.sleep(0.05)
        problem = ""
        while True:
            try:
                found = await run_in_threadpool(self.look)
                if found != self.state:
                    self.state, self.version = found, self.version + 1
            except Exception as error:
                before, problem = problem, format_exception(error)
                if problem != before:  # not twice a second
                    logger.exception("the folder cannot be read: %s", problem)
            await asyncio.sleep(REFRESH_SECONDS)

    def look(self) -> dict[str, Any]:
        """Return jobs and runs as they are now."""
        self.jobs.advance()
        rows = [{key: row[key] for key in row if key != "age_seconds"} for row in self.library.refresh()]
        listed = [
            {
                "number": job.number, "kind": job.kind, "run": job.run, "state": job.state, "status": job.status,
                "interrupted": job.interrupted, "stopped": job.stopped, "log": self.jobs.problem(job),
            }
            for job in self.jobs.all
        ]  # fmt: skip
        return {"runs": rows, "jobs": listed, "studies": self.studies.refresh() if self.studies else [], "ready": True}

    @property
    def about(self) -> dict[str, Any]:
        """What a page shows first."""
        from psyco._src.envs.registry import BUILT_IN, MODEL_SUFFIXES

        try:
            models = sorted(path.name for path in self.folder.iterdir() if path.suffix in MODEL_SUFFIXES)
        except OSError:
            models = []
        domains = [*BUILT_IN, *models, *self.trust]
        return {
            "folder": str(self.folder),
            "domains": domains,
            "domain": DEFAULT_DOMAIN,
            "requirement": DEFAULT_REQUIREMENT,
        }


Handler = Callable[[Studio, Request], Awaitable[Response]]


def make_application(studio: Studio) -> Starlette:
    """Return the application; the guard stands before it."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(studio.watch())
        try:
            yield
        finally:
            task.cancel()
            await studio.bench.close()

    reads: dict[str, Handler] = {
        "/": index,
        "/static/{name}": static,
        "/state": state,
        "/events": events,
        "/compare": compare,
        "/runs/{key}/": run_page,
        "/runs/{key}/data.json": run_data,
        "/runs/{key}/counterexamples.html": counterexamples_page,
        "/runs/{key}/files/{name}": download,
        "/runs/{key}/export/{name}": export,
        "/studies/{key}/": study,
    }
    changes: dict[str, Handler] = {
        "/check": check,
        "/rewrite": rewrite,
        "/domain": describe_domain,
        "/plan": plan,
        "/play": play,
        "/runs": start,
        "/runs/{key}/stop": stop,
        "/runs/{key}/resume": resume,
        "/runs/{key}/counterexamples": counterexamples,
        "/jobs/{name}/stop": stop_waiting,
    }
    routes = [Route(path, _answering(studio, handler), methods=["GET"]) for path, handler in reads.items()]
    routes += [Route(path, _answering(studio, handler), methods=["POST"]) for path, handler in changes.items()]
    found = Starlette(routes=routes, lifespan=lifespan)
    found.router.redirect_slashes = False  # an address without the secret would be the answer
    return found


def _answering(studio: Studio, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint: every error is an answer, and every answer has the headers of the studio."""

    async def endpoint(request: Request) -> Response:
        try:
            found = await handler(studio, request)
        except MissingFileError as error:
            found = json_answer({"error": str(error)}, 404)
        except PsycoError as error:
            found = json_answer(_error(error), 400)
        except Exception as error:
            logger.exception("%s %s failed: %s", request.method, handler.__name__, format_exception(error))
            found = json_answer({"error": "this failed; the studio's own output says why"}, 500)
        for name, value in HEADERS.items():
            found.headers.setdefault(name, value)
        found.headers.setdefault("Content-Security-Policy", POLICY)
        return found

    return endpoint


def _error(error: PsycoError) -> dict[str, Any]:
    line, column = getattr(error, "at", (getattr(error, "line", None), getattr(error, "column", None)))
    return {"error": str(error), "line": line, "column": column}


def json_answer(content: Any, status: int = 200) -> Response:
    """Return JSON in ASCII: the name of a folder may not be valid Unicode."""
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


# ---- pages ----------------------------------------------------------------------------------------------------------


@cache
def _file(name: str) -> bytes:
    if name == "page.css":
        from psyco._src.verification.theme import CSS

        own = (files("psyco._src.reports") / "page.css").read_text(encoding="utf-8")
        return f":root {{{CSS}}}\n{own}".encode()
    return (files("psyco._src.studio") / "static" / name).read_bytes()


async def index(studio: Studio, request: Request) -> Response:
    """Answer with the page."""
    return Response(await run_in_threadpool(_file, "index.html"), media_type="text/html")


async def static(studio: Studio, request: Request) -> Response:
    """Answer with a script or a style."""
    name = request.path_params["name"]
    if name not in STATIC:
        raise MissingFileError("there is no such file")
    return Response(await run_in_threadpool(_file, name), media_type=STATIC[name])


async def state(studio: Studio, request: Request) -> Response:
    """Answer with everything that the page shows of the folder."""
    about = await run_in_threadpool(lambda: studio.about)
    return json_answer({**studio.state, **about, "version": studio.version})


async def events(studio: Studio, request: Request) -> Response:
    """Send the number of the current state whenever it changes."""
    if studio.streams >= MAX_STREAMS:
        raise RunError(f"{MAX_STREAMS} pages are open already; close one")

    async def stream() -> AsyncIterator[str]:
        studio.streams += 1
        try:
            known, silent = -1, 0.0
            while True:
                if studio.version != known:
                    known, silent = studio.version, 0.0
                    yield f"data: {known}\n\n"
                elif silent >= PING_SECONDS:
                    silent = 0.0
                    yield ": still here\n\n"
                await asyncio.sleep(0.25)
                silent += 0.25
        finally:
            studio.streams -= 1

    return StreamingResponse(stream(), media_type="text/event-stream")


async def _library(studio: Studio) -> Any:
    for _ in range(600):
        if studio.library is not None:
            return studio.library
        await asyncio.sleep(0.1)
    raise RunError("the studio is still starting; try again in a moment")


def _report(text: str, frame: str, extra: str = "") -> Response:
    """Answer with a page of a report under its own policy; it may stand in a frame of the studio."""
    from psyco._src.reports.page import content_policy

    policy = f"{content_policy()}; frame-ancestors {frame}{extra}"
    return Response(text, media_type="text/html", headers={"Content-Security-Policy": policy})


async def run_page(studio: Studio, request: Request) -> Response:
    """Answer with the live page of a run."""
    library = await _library(studio)
    return _report(await run_in_threadpool(library.page, request.path_params["key"]), "'self'")


async def run_data(studio: Studio, request: Request) -> Response:
    """Answer with the current content of the page of a run."""
    library = await _library(studio)
    known = request.query_params.get("version", "")
    found = await run_in_threadpool(library.update, request.path_params["key"], known)
    if found is None:
        return Response(status_code=204)
    return Response(json.dumps(found, allow_nan=False), media_type="application/json")


async def compare(studio: Studio, request: Request) -> Response:
    """Answer with the page that compares runs."""
    library = await _library(studio)
    keys = request.query_params.getlist("run")
    if len(keys) < 2:
        raise RunError("choose two runs or more")
    return _report(await run_in_threadpool(library.comparison, keys), "'self'")


async def counterexamples_page(studio: Studio, request: Request) -> Response:
    """Answer with the stored page; it comes from a file of the folder, so it is kept apart from the studio."""
    library = await _library(studio)
    found = await run_in_threadpool(library.download, request.path_params["key"], "counterexamples.html")
    return _report(found.decode(errors="replace"), "'self'", "; sandbox allow-scripts")


async def download(studio: Studio, request: Request) -> Response:
    """Answer with a file of a run."""
    library = await _library(studio)
    key, name = request.path_params["key"], request.path_params["name"]
    found = await run_in_threadpool(library.download, key, name)
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(found, media_type="application/octet-stream", headers=disposition)


async def export(studio: Studio, request: Request) -> Response:
    """Answer with the policy of a run as ONNX or C."""
    library = await _library(studio)
    key, name = request.path_params["key"], request.path_params["name"]
    found = await run_in_threadpool(library.export, key, name)
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(found, media_type="application/octet-stream", headers=disposition)


async def study(studio: Studio, request: Request) -> Response:
    """Answer with the page of a study, a front or a tuning; a stored one is kept apart from the studio."""
    await _library(studio)
    if studio.studies is None:
        raise RunError("the studio is still starting; try again in a moment")
    text, stored = await run_in_threadpool(studio.studies.page, request.path_params["key"])
    return _report(text, "'self'", "; sandbox allow-scripts" if stored else "")


# ---- requirement, plan, play ------------------------------------------------------------------------------


async def check(studio: Studio, request: Request) -> Response:
    """Parse a requirement, and explain it; with a domain, check its signals and warn."""
    from psyco._src.logic.paraphrase import paraphrase
    from psyco._src.logic.parser import SENTENCE, parse

    asked = await read_json(request.receive)
    text = read_requirement(asked)
    requirement = await run_in_threadpool(parse, text)
    properties = paraphrase(requirement)
    other = _written(requirement, text, sentences=SENTENCE.search(text) is None)
    found: dict[str, Any] = {"properties": [each._asdict() for each in properties], "warnings": [], "other": other}
    stated = next(iter(requirement.probability_constraints), None)
    if stated is not None and stated.comparison in (">=", ">"):
        found |= {"p": stated.lower, "c": stated.confidence}
    if asked.get("domain"):
        order = read_domain(asked, studio.folder, studio.trust)
        found |= await studio.bench.ask(_bench_request(studio, "check", order, requirement=text))
    return json_answer(found)


def _bench_request(studio: Studio, operation: str, order: Any, **more: Any) -> dict[str, Any]:
    trust = [*studio.trust, order.name]  # its name has been checked
    return {"operation": operation, "domain": order.name, "parameters": order.parameters, "trust": trust, **more}


async def rewrite(studio: Studio, request: Request) -> Response:
    """Return the requirement with another probability and confidence in its first constraint."""
    from dataclasses import replace

    from psyco._src.logic.parser import SENTENCE, parse

    asked = await read_json(request.receive)
    text = read_requirement(asked)
    requirement = await run_in_threadpool(parse, text)
    p, c = read_fraction(asked, "p", 0.9), read_fraction(asked, "c", 0.95)
    bounded = [each for each in requirement.probability_constraints if each.comparison in (">=", ">")]
    if not bounded:
        raise RequirementError("the requirement has no probability with a lower bound")
    changed = tuple(
        replace(each, lower=p, confidence=c) if each is bounded[0] else each for each in requirement.constraints
    )
    found = replace(requirement, constraints=changed, text="")
    return json_answer({"requirement": _written(found, text, sentences=SENTENCE.search(text) is not None)})


def _written(requirement: Requirement, text: str, *, sentences: bool) -> str:
    """Return a requirement that was read from a text as sentences, where there are any, or as formulas."""
    from psyco._src.logic.ast import Goal
    from psyco._src.logic.paraphrase import paraphrase

    properties = paraphrase(requirement)
    if requirement.goal == Goal(maximize=True) and not re.search("Rmax|maximi", text, re.IGNORECASE):
        properties = properties[1:]  # the goal was not written
    return ";\n".join((sentences and each.sentence) or each.formula for each in properties)


async def describe_domain(studio: Studio, request: Request) -> Response:
    """Return the signals of a domain."""
    asked = await read_json(request.receive)
    order = read_domain(asked, studio.folder, studio.trust)
    return json_answer(await studio.bench.ask(_bench_request(studio, "domain", order)))


async def plan(studio: Studio, request: Request) -> Response:
    """Return the operating characteristic of the certificate."""
    from psyco._src.studio.plan_preview import MAX_PREVIEW, plan_preview

    asked = await read_json(request.receive)
    p, c = read_fraction(asked, "p", 0.9), read_fraction(asked, "c", 0.95)
    most = read_whole(asked, "max_episodes", 10, MAX_PREVIEW, 1000)
    return json_answer(await run_in_threadpool(plan_preview, p, c, most))


async def play(studio: Studio, request: Request) -> Response:
    """Return episodes of a random policy, or of that of a run."""
    asked = await read_json(request.receive)
    order = read_domain(asked, studio.folder, studio.trust)
    key, text = asked.get("policy"), read_requirement(asked)
    policy = None
    if key:
        library = await _library(studio)
        policy = str(await run_in_threadpool(library.path, str(key)))
    return json_answer(await studio.bench.ask(_bench_request(studio, "play", order, requirement=text, policy=policy)))


# ---- jobs -------------------------------------------------------------------------------------------------


async def start(studio: Studio, request: Request) -> Response:
    """Start a synthesis, or let it wait for its turn."""
    from psyco._src.logic.parser import parse

    asked = await read_json(request.receive)
    order = read_domain(asked, studio.folder, studio.trust)
    text = read_requirement(asked)
    await run_in_threadpool(parse, text)
    episodes = read_whole(asked, "episodes", *EPISODES, 60_000)
    seed = read_whole(asked, "seed", 0, 2**31 - 1, 0)
    limit = read_whole(asked, "max_episodes", *CERTIFICATE_EPISODES, 0) if asked.get("max_episodes") else None

    def enter() -> dict[str, Any]:
        with studio.jobs.lock:  # from the choice of a name on: the file of another job must stay
            name = read_run_name(asked, studio.folder, order.name, studio.jobs.active)
            # In a file: as an argument, a text that is the name of a file would be read from there.
            path = studio.folder / FOLDER / f"{name}.props"
            make_own_folder(path.parent)
            safe_files.write(path, text.encode())
            words = ["synthesize", *as_arguments(order, studio.trust), "--require", str(path)]
            words += ["--episodes", str(episodes), "--seed", str(seed), "--out", str(studio.folder / name)]
            words += [] if limit is None else ["--max-episodes", str(limit)]
            job = studio.jobs.add("learn", name, words)
            return {"name": name, "state": job.state, "job": job.number}

    return json_answer(await run_in_threadpool(enter))


async def _run_of(studio: Studio, request: Request) -> Path:
    library = await _library(studio)
    found: Path = await run_in_threadpool(library.path, request.path_params["key"])
    await read_json(request.receive)
    if found.is_symlink():
        raise RunError(f"{found.name} is a link; the studio changes only what lies in its folder")
    return found


async def stop(studio: Studio, request: Request) -> Response:
    """Interrupt the job of a run; it can be resumed."""
    path = await _run_of(studio, request)
    await run_in_threadpool(studio.jobs.stop, path.name)
    return json_answer({"stopped": path.name})


async def stop_waiting(studio: Studio, request: Request) -> Response:
    """Interrupt a job by the name of its run, which may have no folder yet."""
    await read_json(request.receive)
    await run_in_threadpool(studio.jobs.stop, request.path_params["name"])
    return json_answer({"stopped": request.path_params["name"]})


async def resume(studio: Studio, request: Request) -> Response:
    """Continue a run that was stopped."""
    path = await _run_of(studio, request)
    trust = [word for name in studio.trust for word in ("--trust", name)]
    job = await run_in_threadpool(studio.jobs.add, "resume", path.name, ["resume", str(path), *trust])
    return json_answer({"name": path.name, "state": job.state})


async def counterexamples(studio: Studio, request: Request) -> Response:
    """Make the page of counterexamples of a run."""
    path = await _run_of(studio, request)
    trust = [word for name in studio.trust for word in ("--trust", name)]
    words = ["counterexamples", str(path), "--out", str(path / "counterexamples.html"), *trust]
    job = await run_in_threadpool(studio.jobs.add, "counterexamples", path.name, words)
    return json_answer({"name": path.name, "state": job.state})
