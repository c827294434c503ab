"""Experiment tracking with TensorBoard, MLflow or Weights & Biases, behind one interface."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from psyco._src.core.errors import RunError, check_known
from psyco._src.core.lazy_registry import Registry

if TYPE_CHECKING:  # the names of the trackers are available without importing JAX
    from psyco._src.learners.metrics import Metrics
    from psyco._src.runs.problem import Problem
    from psyco._src.verification.certificate import Certificate

logger = logging.getLogger(__name__)


LOCAL_TRACKERS = ("tensorboard",)  # write into the run folder only; the others may open connections


@dataclass(frozen=True)
class RunName:
    """The identity of a tracked run, the same in every process that works on it."""

    folder: Path
    identity: str  # stable over resumes
    settings: dict[str, Any]  # flat: `learner.learning_rate` -> 0.01

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name


class Tracker(Protocol):
    """Receives the metrics and the result of a run."""

    def log(self, metrics: Metrics) -> None:
        """Log further rows."""

    def finish(self, certificate: Certificate) -> None:
        """Log the result."""

    def close(self) -> None:
        """End the work of this process, whether the run has finished or not."""


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs`."""

    def __init__(self, run: RunName) -> None:
        SummaryWriter = _extra("tensorboard", "tensorboardX").SummaryWriter
        self.writer = SummaryWriter(str(run.folder / "tensorboard"))
        rows = "\n".join(f"| {key} | {value} |" for key, value in run.settings.items())
        self.writer.add_text("configuration", f"| key | value |\n|---|---|\n{rows}", 0)

    def log(self, metrics: Metrics) -> None:
        """Log one scalar per number; the step is the number of episodes."""
        for step, values in row_numbers(metrics):
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, certificate: Certificate) -> None:
        """Log the verdict as text, the certificate's numbers as scalars."""
        self.writer.add_text("verdict", certificate.verdict.name, certificate.episodes)
        for name, value in certificate_numbers(certificate).items():
            self.writer.add_scalar(name, value, 0)

    def close(self) -> None:
        """Flush and close the event file."""
        self.writer.close()


class MLflow:
    """A run in the store of MLFLOW_TRACKING_URI; by default `mlruns` in the current folder."""

    def __init__(self, run: RunName) -> None:
        # Set before the import: without this switch MLflow 3 refuses plain files and asks for a database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
        mlflow = _extra("mlflow", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns").absolute().as_uri()
        self.client = mlflow.MlflowClient(uri)
        self.entities = mlflow.entities
        experiment = self.client.get_experiment_by_name("psyco")
        number = experiment.experiment_id if experiment else self.client.create_experiment("psyco")
        known = self.client.search_runs([number], f"tags.psyco_run = '{run.identity}'")
        if known:
            self.id = known[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return
        made = self.client.create_run(number, run_name=run.name, tags={"psyco_run": run.identity})
        self.id = made.info.run_id
        parameters = [self.entities.Param(key, str(value)[:6000]) for key, value in run.settings.items()]
        self.client.log_batch(self.id, params=parameters)

    def log(self, metrics: Metrics) -> None:
        """Log one metric per number; the step is the number of episodes."""
        rows = [
            self.entities.Metric(_plain(name), value, 0, step)
            for step, values in row_numbers(metrics)
            for name, value in values.items()
        ]
        for start in range(0, len(rows), 1000):  # the maximum size of a batch
            self.client.log_batch(self.id, metrics=rows[start : start + 1000])

    def finish(self, certificate: Certificate) -> None:
        """Log the certificate as an artifact, its numbers as metrics, the verdict as a tag."""
        for name, value in certificate_numbers(certificate).items():
            self.client.log_metric(self.id, _plain(name), value)
        self.client.set_tag(self.id, "verdict", certificate.verdict.name)
        self.client.log_text(self.id, certificate.to_json(), "certificate.json")
        self.client.set_terminated(self.id, "FINISHED")

    def close(self) -> None:
        """Mark a run that has not finished as killed; resuming it changes that."""
        if self.client.get_run(self.id).info.status == "RUNNING":
            self.client.set_terminated(self.id, "KILLED")


class WandB:
    """Weights & Biases, offline unless WANDB_MODE says otherwise; `wandb sync RUN/wandb/...` uploads the run."""

    def __init__(self, run: RunName) -> None:
        wandb = _extra("wandb", "wandb")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "psyco"),
            name=run.name,
            id=run.identity[:16],
            resume="allow",
            dir=str(run.folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=run.settings,
            settings=wandb.Settings(silent=True, x_disable_stats=True, x_service_wait=120),
        )
        # With a step of our own, since a resumed run logs the rows after its checkpoint again.
        self.run.define_metric("*", step_metric="episodes")

    def log(self, metrics: Metrics) -> None:
        """Log one history row per generation."""
        for step, values in row_numbers(metrics):
            self.run.log({"episodes": step, **values})

    def finish(self, certificate: Certificate) -> None:
        """Log the result as the run's summary."""
        self.run.summary.update({"verdict": certificate.verdict.name, **certificate_numbers(certificate)})

    def close(self) -> None:
        """Wait until everything is written."""
        self.run.finish()


TRACKERS = Registry(
    "tracker",
    {
        "tensorboard": "runs.tracking:TensorBoard",
        "mlflow": "runs.tracking:MLflow",
        "wandb": "runs.tracking:WandB",
    },
)


def row_numbers(metrics: Metrics) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number of episodes and the numbers of each row, without NaN and text."""
    names = [name for name in metrics if name not in ("generation", "episodes") and metrics[name].dtype.kind in "fiu"]
    columns = [metrics[name].tolist() for name in names]
    for step, *row in zip(metrics["episodes"].tolist(), *columns, strict=True):
        yield int(step), {name: float(x) for name, x in zip(names, row, strict=True) if x == x}


def certificate_numbers(certificate: Certificate) -> dict[str, float]:
    """Return the numbers of a certificate."""
    values: dict[str, float] = {"certificate/episodes": certificate.episodes}
    if certificate.mean_return is not None:
        values["certificate/return"] = certificate.mean_return
    for i, finding in enumerate(certificate.findings):
        values[f"certificate/confidence/{i}"] = finding.confidence
        number = "mean" if hasattr(finding, "mean") else "share"
        values[f"certificate/{number}/{i}"] = getattr(finding, number)
    return values | {f"certificate/answer/{i}": answer.mean for i, answer in enumerate(certificate.answers)}


class Tracking:
    """All trackers of a run. One that fails is dropped with a warning, since tracking must not end a run."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self.trackers = trackers

    def on_metrics(self, problem: Problem, metrics: Metrics) -> None:
        """Log further rows."""
        self._each(lambda tracker: tracker.log(metrics))

    def finish(self, certificate: Certificate) -> None:
        """Log the result."""
        self._each(lambda tracker: tracker.finish(certificate))

    def close(self) -> None:
        """Close all trackers."""
        self._each(lambda tracker: tracker.close())

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                action(tracker)
            except Exception as error:  # external code and servers may raise anything
                logger.warning("tracking with %s failed and ends here: %s", name, error)
                del self.trackers[name]


def permitted_trackers(named: Collection[str], asked: Collection[str]) -> tuple[str, ...]:
    """Return the trackers that a resumed run may use: local ones of its file, and those that the user asks for.

    Args:
        named: trackers in the configuration file, which may come from a stranger.
        asked: trackers that the user names.
    """
    for name in asked:
        check_known("tracker", name, TRACKERS)
    for name in named:
        if name not in (*LOCAL_TRACKERS, *asked):
            logger.warning(
                "this run was tracked with %s, which writes outside of this folder; to continue with it: --track %s",
                name, name,
            )  # fmt: skip
    return tuple(dict.fromkeys([*(name for name in named if name in LOCAL_TRACKERS), *asked]))


@contextmanager
def start_trackers(names: tuple[str, ...], run: RunName) -> Iterator[Tracking]:
    """Start trackers by name, and close them when the block ends."""
    tracking = Tracking({})
    try:
        for name in names:
            try:
                tracking.trackers[name] = TRACKERS[name](run)
            except RunError:  # a missing extra is an error before learning starts
                raise
            except Exception as error:
                logger.warning("tracking with %s could not start: %s", name, error)
        yield tracking
    finally:
        tracking.close()


def _extra(extra: str, module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise RunError(f'tracking with {extra} needs: pip install "psyco[{extra}]"') from None


def _plain(name: str) -> str:
    """Replace brackets, which MLflow does not allow in names: `c_sat[1]` -> `c_sat/1`."""
    return name.replace("[", "/").replace("]", "")
