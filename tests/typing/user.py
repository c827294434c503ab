"""What a user writes: mypy checks it as strictly as it can, with nothing but the installed package (`make lint`)."""

from pathlib import Path
from typing import assert_type

import psyco

REQUIREMENT = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"


def synthesize() -> psyco.Certificate:
    result = psyco.synthesize(
        "particle-dance", REQUIREMENT, episodes=20_000, settings=psyco.Settings(options={"margin": 0.2})
    )
    assert_type(result, psyco.Result)
    assert_type(result.metrics, psyco.Metrics)
    return result.certificate


def durable(folder: Path) -> str:
    run = psyco.start(
        psyco.make("obstacle-run", grid=4),
        "P>=0.9 [ G !caught ]",
        folder,
        execution=psyco.Execution(workers=1),
    )
    assert_type(run, psyco.Run)
    longer = psyco.resume(folder, episodes="+1000", trust=["my_module:Env"])
    certificate = psyco.open_run(folder).certificate
    psyco.report(longer, folder / "page.html")
    return "none" if certificate is None else certificate.verdict.name


def verify(folder: Path) -> psyco.Replay:
    certificate = psyco.verify(folder, seed=3, max_episodes=500, method_options={})
    psyco.verify(lambda observation: 0, "CartPole-v1", REQUIREMENT)
    psyco.verify_outcomes([True, False, True], "P>=0.5 & C>=0.9")
    assert_type(psyco.plan("P>=0.9 & C>=0.95").max_episodes, int)
    assert_type(psyco.exact(folder).gap, float | None)
    for each in psyco.check("CartPole-v1"):
        assert_type(each.passed, bool | None)
    return psyco.replay(certificate, folder)


def tune(folder: Path) -> str:
    tuning = psyco.tune("particle-dance", REQUIREMENT, folder, trials=20, over=["learning_rate", "sigma=0.05:0.5"])
    assert_type(tuning, psyco.Tuning)
    return tuning.verdict if tuning.outcome == "better" else tuning.config.read_text()


def watch(certificate: psyco.Certificate) -> bool:
    watcher = psyco.FieldTest(certificate, false_alarm_every=10_000)
    alarm = watcher.update(True)
    assert_type(alarm, psyco.Alarm | None)
    assert_type(watcher.interval, psyco.Interval)
    return alarm is not None and bool(alarm.lost)


def follow() -> psyco.Callback:
    def show(problem: psyco.Problem, metrics: psyco.Metrics) -> None:
        print(problem.generations, metrics["return"][-1])

    return psyco.Callback(on_metrics=show)
