"""Make the gallery and the tutorials' pictures again: `make gallery`, or for some `python docs/gallery.py cartpole`.

Every example and tutorial is run in a folder of its own. What it prints becomes its certificate, and a picture is drawn
of the policy that it ends with. The page docs/gallery.md is written from all that lies in docs/images/gallery.
`python docs/gallery.py studio` makes the picture of the studio; it needs Playwright and a Chromium.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDEST = 900  # pixels of a picture
PRINTED = 7  # lines of a certificate that are shown

DANCE = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
RUN = "G (count(caught) <= 1)"
# Built-in domains: the title, and the words after `psyco synthesize`.
BUILT_IN = {
    "particle-dance": ("Particle Dance", ["particle-dance", "--require", DANCE]),
    "particle-dance-expected": (
        "Particle Dance, an expected value",
        ["particle-dance", "--require", "R{distance < 0.1}<=1 [ C ] & C>=0.98"],
    ),
    "particle-dance-team": (
        "Particle Dance with three agents",
        ["particle-dance", "--set", "agents=3", "--require", DANCE],
    ),
    "obstacle-run": (
        "Obstacle Run",
        ["obstacle-run", "--require", f"P>=0.9 [ {RUN} ] & C>=0.98", "--episodes", "20000"],
    ),
    "obstacle-run-team": (
        "Obstacle Run with two agents",
        ["obstacle-run", "--set", "opponent=true", "--require", f"P>=0.9 [ {RUN} ] & C>=0.98", "--episodes", "20000"],
    ),
}
FILMS = {"particle-dance-team": 0, "obstacle-run-team": 2}  # the episode of the film
EXAMPLES = {
    "cartpole": "CartPole near the middle of its rail",
    "cartpole_images": "CartPole from pixels",
    "corridor": "A compiled domain in one short file",
    "frozen_lake": "FrozenLake, with a custom signal",
    "hazard": "An environment that reports a cost",
    "pendulum": "Pendulum with a gentle motor",
    "velocity": "A running robot with a speed limit",
    "two_constraints": "CartPole with two constraints",
    "sb3_policy": "A Stable-Baselines3 model, verified",
    "sb3_ppo": "Stable-Baselines3's PPO under a requirement",
    "sb3_dqn": "Stable-Baselines3's DQN under a requirement",
}
# The script, and which file each picture of the page comes from.
TUTORIALS = {
    "dance": {"dance": "dance/trajectory.png", "dance-curves": "dance/curves.png"},
    "environment": {"environment": "courier/trajectory.png"},
    "robot": {"robot": "delivery/trajectory.png"},
    "others": {"others": "others.png"},
    "certificate": {"certificate": "certificate.png"},
    "field": {"field": "field/watch.png"},
    "elsewhere": {"elsewhere": "elsewhere.png"},
    "dancers": {"dancers": "dancers/trajectory.png", "dancers-film": "dancers/trajectory.gif"},
}
# The policy that an example has learned or verified last is drawn.
DRAWN = """
import runpy, sys
import psyco
last = {}
def seen(verb, policy_of):
    def call(first, *rest, **options):
        outcome = verb(first, *rest, **options)
        last.update(policy_of(outcome, first, rest, options))
        return outcome
    return call
psyco.synthesize = seen(psyco.synthesize, lambda out, domain, rest, options: {"policy": out.policy, "domain": domain})
psyco.verify = seen(psyco.verify, lambda out, policy, rest, options: {
    "policy": psyco.open_policy(policy, trust=options.get("trust", ())) if isinstance(policy, str) else policy,
    "domain": rest[0]})
if sys.argv[2].startswith("sb3_") and "policy" not in sys.argv[2]:
    from psyco.sb3 import Bridge
    certify = Bridge.certify
    def certified(self, model, *rest, **options):
        last.update(policy=model, domain=self.domain)
        return certify(self, model, *rest, **options)
    Bridge.certify = certified
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
psyco.render(last["policy"], ".", domain=last["domain"], animation=False)
"""


def main(chosen: list[str]) -> None:
    """Make the named parts, or everything."""
    for name, (_, words) in BUILT_IN.items():
        if not chosen or name in chosen:
            in_a_folder(lambda folder, name=name, words=words: built_in(name, words, folder))
    for name in EXAMPLES:
        if not chosen or name in chosen:
            in_a_folder(lambda folder, name=name: example(name, folder))
    for name, pictures in TUTORIALS.items():
        if not chosen or f"tutorial-{name}" in chosen:
            in_a_folder(lambda folder, name=name, pictures=pictures: tutorial(name, pictures, folder))
    if "studio" in chosen:
        in_a_folder(studio)
    (ROOT / "docs" / "gallery.md").write_text(page(), encoding="utf-8")


def in_a_folder(work) -> None:
    """Run in a temporary folder: only pictures and certificates are kept."""
    with tempfile.TemporaryDirectory() as folder:
        work(Path(folder))


def python(folder: Path, *words: object) -> str:
    """Return the output of a program."""
    print(*words, flush=True)
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src")), "MPLBACKEND": "Agg"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def built_in(name: str, words: list[str], folder: Path) -> None:
    """Make a run and its picture, by the command line."""
    printed = python(folder, "-m", "psyco", "-q", "synthesize", *words, "--out", "run")
    film = ("--film-format", "gif", "--episode", FILMS[name]) if name in FILMS else ("--no-animation",)
    python(folder, "-m", "psyco", "-q", "render", "run", *film)
    keep(name, printed, folder / "run" / "trajectory.png")
    if name in FILMS:
        shutil.copy(folder / "run" / "trajectory.gif", IMAGES / "gallery" / f"{name}.gif")


def example(name: str, folder: Path) -> None:
    """Run an example, and draw its policy."""
    (folder / "drawn.py").write_text(DRAWN)
    printed = python(folder, "drawn.py", ROOT / "examples" / f"{name}.py", name)
    keep(name, printed, folder / "trajectory.png")


def tutorial(name: str, pictures: dict[str, str], folder: Path) -> None:
    """Make the pictures of a tutorial."""
    python(folder, ROOT / "docs" / "tutorials" / f"{name}.py")
    for shown, file in pictures.items():
        if file.endswith(".gif"):
            shutil.copy(folder / file, IMAGES / "tutorials" / f"{shown}.gif")
        else:
            small(folder / file, IMAGES / "tutorials" / f"{shown}.png", colours=256 if name == "dancers" else 64)


def studio(folder: Path) -> None:
    """Make the picture of the studio: requirement, meaning and plan, as a new user sees them."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "psyco", "studio", "runs", "--no-open"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as run:
        try:
            chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
            browser = run.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            window = browser.new_page(viewport={"width": 1280, "height": 900})
            window.goto(server.stdout.readline().split()[1])
            window.locator(".property").nth(1).wait_for()
            window.locator("#plan-chart svg").wait_for()
            window.locator("#signals tr").first.wait_for(state="attached", timeout=120_000)
            window.screenshot(path=folder / "studio.png")
            frames = film(browser.new_page(viewport={"width": 960, "height": 820}), window.url)
            browser.close()
        finally:
            server.terminate()
    Image.open(folder / "studio.png").convert("RGB").save(IMAGES / "studio.png", optimize=True)
    pictures = [Image.open(io.BytesIO(shot)).convert("RGB").resize((720, 615)) for shot, _ in frames]
    both = Image.new("RGB", (720, 1230))  # one palette for all
    both.paste(pictures[0])
    both.paste(pictures[-1], (0, 615))
    colours = both.quantize(128)
    first, *others = [picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in pictures]
    durations = [duration for _, duration in frames]
    first.save(IMAGES / "studio.gif", save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


def film(window, address: str) -> list[tuple[bytes, int]]:
    """Return pictures of a requirement that is typed, learned and certified, each with its time in milliseconds."""
    frames = []
    window.goto(address)
    window.locator("#signals tr").first.wait_for(state="attached", timeout=120_000)
    window.locator("#requirement").fill("")
    for part in re.findall(r"\S+ ?", "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"):
        window.locator("#requirement").press_sequentially(part)
        frames.append((window.screenshot(), 90))
    window.keyboard.press("Escape")
    window.locator(".property").first.wait_for()
    frames.append((window.screenshot(), 1500))
    window.locator("#learn").click()
    verdict = window.frame_locator("#frame").get_by_text("SATISFIED", exact=True).first
    until = time.monotonic() + 120
    while time.monotonic() < until and not verdict.is_visible():
        if (shot := window.screenshot()) != frames[-1][0]:
            frames.append((shot, 160))
        window.wait_for_timeout(300)
    window.wait_for_timeout(2000)
    return [*frames, (window.screenshot(), 3500)]


def keep(name: str, printed: str, picture: Path) -> None:
    """Return the first lines of a certificate and its picture."""
    lines = printed[printed.index("SATISFIED") :].splitlines()[:PRINTED]
    (IMAGES / "gallery").mkdir(parents=True, exist_ok=True)
    (IMAGES / "gallery" / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    small(picture, IMAGES / "gallery" / f"{name}.png", colours=256 if name in FILMS else 64)


def small(picture: Path, to: Path, colours: int) -> None:
    """Shrink a picture: not wider than a page, with few colours."""
    drawn = Image.open(picture).convert("RGB")
    if drawn.width > WIDEST:
        drawn = drawn.resize((WIDEST, round(drawn.height * WIDEST / drawn.width)), Image.Resampling.LANCZOS)
    to.parent.mkdir(parents=True, exist_ok=True)
    drawn.quantize(colours).save(to, optimize=True)


def page() -> str:
    """Write the page: for every domain and example a picture, requirement, certificate and source."""
    parts = [
        "# Gallery",
        "Built-in domains and examples, each with its command and the resulting certificate.\n"
        "In the pictures time goes from light to dark; a domain without a scene shows its signals. "
        "`make gallery` makes this page.",
    ]
    for name, (title, words) in BUILT_IN.items():
        shown = " ".join(f"'{word}'" if " " in word else word for word in words)
        parts += entry(name, title, f"psyco synthesize {shown} --out runs/{name}\npsyco render runs/{name}")
    for name, title in EXAMPLES.items():
        source = f"[examples/{name}.py](../examples/{name}.py)"
        parts += entry(name, title, f"python examples/{name}.py", source)
    parts += [
        "## From learning to deployment",
        "[examples/deployment.py](../examples/deployment.py) learns, certifies, exports, runs a field test "
        "until an alarm, and\nadds a guard; [tutorial 6](tutorials/field.md) shows most of this with a picture.",
        "```sh\npython examples/deployment.py\n```",
    ]
    return "\n\n".join(parts) + "\n"


def entry(name: str, title: str, command: str, source: str = "") -> list[str]:
    """Return the section of one entry; entries that were not made yet are left out."""
    said = IMAGES / "gallery" / f"{name}.txt"
    if not said.exists():
        return []
    pictures = [
        f"![{what} of the policy](images/gallery/{name}.{kind})"
        for what, kind in (("Episodes", "png"), ("A film", "gif"))
        if kind == "png" or name in FILMS
    ]
    return [
        f"## {title}",
        *([source] if source else []),
        *pictures,
        f"```sh\n{command}\n```",
        f"```text\n{said.read_text(encoding='utf-8').rstrip()}\n  ...\n```",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
