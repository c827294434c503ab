"""Pictures and animations of `psyco render` show every body in every state."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

import psyco
from psyco._src.api.runs import _judge
from psyco._src.core.errors import DomainError
from psyco._src.envs.base import Scene, scene_of
from psyco._src.logic.ast import SignalInfo
from psyco._src.logic.parser import parse
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import Policy, policy_for
from psyco._src.reports.trajectory import (
    CAPTION_HEIGHT,
    FRAME_WIDTH,
    WITHOUT_DEVICES,
    _draw_scene,
    animate_trajectory,
    animate_video,
    bounded_terms,
    draw_trajectory,
    record_video,
)
from tests.environments import Drawn, Walk

# ---- scenes ---------------------------------------------------------------------------------------------------


def domain_with(*bodies: str) -> Any:
    """Return a domain whose only signals are these bodies."""
    table = {body: SignalInfo(2, False) for body in bodies}
    return SimpleNamespace(name="test", table=table, scene=Scene(bodies, (-1, -1), (1, 1), contact=0.2))


def path_of(**tracks: Any) -> dict[str, NDArray[Any]]:
    length = len(next(iter(tracks.values())))
    return {"step": np.arange(length), "return": np.zeros(length)} | {k: np.array(v) for k, v in tracks.items()}


def test_positions_of_agents_are_called_by_the_agents() -> None:
    axis = Figure().add_subplot()
    track = np.zeros((3, 2))
    _draw_scene(axis, {"particle": track, "agent_0.position": track + 1.0}, 0.2)
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["particle", "agent_0"]


def frames_of(path: Path) -> list[NDArray[np.int16]]:
    with Image.open(path) as gif:
        return [np.asarray(_frame(gif, k), np.int16) for k in range(gif.n_frames)]


def _frame(gif: Image.Image, index: int) -> Image.Image:
    gif.seek(index)
    return gif.convert("RGB")


def shares(frame: NDArray[np.int16]) -> Mapping[str, int]:
    """Return the numbers of clearly blue and clearly red pixels."""
    r, _, b = np.moveaxis(frame, -1, 0)
    return {"blue": int((b - r > 60).sum()), "red": int((r - b > 60).sum())}


def test_an_animation_has_a_frame_per_state_and_the_last_one_shows_both_bodies(tmp_path: Path) -> None:
    apart = np.linspace(0, 0.8, 5)[:, None] * [1, 0]
    animate_trajectory(domain_with("one", "other"), path_of(one=apart, other=-apart), tmp_path / "a.gif")
    frames = frames_of(tmp_path / "a.gif")
    assert len(frames) == 5
    assert {frame.shape for frame in frames} == {(460, 420, 3)}
    seen = [shares(frame) for frame in frames]
    for colour in ("blue", "red"):
        assert [s[colour] for s in seen] == sorted(s[colour] for s in seen), "trails grow"
        assert seen[-1][colour] > seen[0][colour] + 50
    left, _, right = np.array_split(frames[-1][100:], 3, axis=1)  # below the legend
    assert shares(right)["blue"] > 50
    assert shares(left)["red"] > 50
    assert shares(right)["red"] == shares(left)["blue"] == 0


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_scene_has_any_number_of_bodies(count: int, tmp_path: Path) -> None:
    names = [f"b{i}" for i in range(count)]
    path = path_of(**{name: [[0, i / 8], [0.1, i / 8]] for i, name in enumerate(names)})
    draw_trajectory(domain_with(*names), [path], tmp_path / "a.png")
    animate_trajectory(domain_with(*names), path, tmp_path / "a.gif")
    assert len(frames_of(tmp_path / "a.gif")) == 2


def test_a_picture_says_when_an_episode_was_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda self, text, **_: titles.append(text))
    paths = [path_of(one=[(0, 0)] * 3, far=[1.0, 0.0, 1.0]), path_of(one=[(0, 0)] * 3, far=[1.0] * 3)]
    domain = domain_with("one")
    domain.horizon = 9
    outcomes = list(map(_judge(parse("P>=0.5 [ G far > 0.5 ]"), domain), paths))
    draw_trajectory(domain, paths, tmp_path / "a.png", outcomes=outcomes)
    assert [title.partition("\n")[2] for title in titles] == [
        "violated, decided at step 1",
        "satisfied, decided at step 2",
    ]
    assert _judge(parse("P>=0.5 [ G near > 0.5 ]"), domain)(paths[0]) == ""  # drawn in another domain than its own


WATCHED = "P>=0.5 [ G (abs(far) <= 0.5 | count(far > 0.7) < 2) ]; P>=0.5 [ F (wet & far > 0.2) ]; R{far}<=9 [ C ]"


def test_the_terms_of_a_requirement_are_those_that_it_bounds() -> None:
    path = path_of(far=[1.0, 0.0, 1.0], wet=[False, True, False])
    found = {str(term): limits for term, limits in bounded_terms(parse(WATCHED), path).items()}
    assert found == {"abs(far)": [0.5], "count(far > 0.7)": [2.0], "far": [0.7, 0.2], "wet": []}
    assert bounded_terms(parse("P>=0.5 [ G near > 0.5 ]"), path) == {} == bounded_terms(None, path)


@pytest.mark.parametrize("scene", [True, False])
def test_a_picture_shows_the_terms_of_the_requirement_with_their_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: bool
) -> None:
    bounds, shapes, drawn = list[float](), list[Any](), []
    monkeypatch.setattr("matplotlib.axes.Axes.axhline", lambda self, y, **_: bounds.append(y))
    plot, subplots = Axes.plot, Figure.subplots
    monkeypatch.setattr(Axes, "plot", lambda *a, **k: drawn.append(k["label"]) or plot(*a, **k))
    monkeypatch.setattr(Figure, "subplots", lambda self, *a, **k: shapes.append(a) or subplots(self, *a, **k))
    domain = domain_with("one")
    domain.scene = domain.scene if scene else None
    path = path_of(one=[(0, 0)] * 3, far=[1.0, 0.0, 1.0], wet=[False, True, False])
    draw_trajectory(domain, [path, path], tmp_path / "a.png", requirement=parse(WATCHED))
    animate_trajectory(domain, path, tmp_path / "a.gif", parse(WATCHED))
    assert bounds == 3 * [0.5, 2.0, 0.7, 0.2]
    every = [] if scene else ["far", "one[0]", "one[1]", "wet"]
    assert drawn == 3 * [*every, "abs(far)", "count(far > 0.7)", "far", "wet"]
    assert shapes == [(5, 2), (5, 1)]
    assert len(frames_of(tmp_path / "a.gif")) == 3


def test_an_episode_of_one_state_can_be_drawn(tmp_path: Path) -> None:
    animate_trajectory(domain_with("only"), path_of(only=[[0, 0]]), tmp_path / "a.gif")
    assert len(frames_of(tmp_path / "a.gif")) == 1


def test_a_scene_without_bodies_or_room_and_a_body_that_is_no_position_are_refused() -> None:
    with pytest.raises(DomainError, match="needs a body"):
        Scene((), (0, 0), (1, 1))
    with pytest.raises(DomainError, match="low must lie below high"):
        Scene(("a",), (0, 1), (1, 1))
    domain = domain_with("a")
    domain.scene = Scene(("b",), (0, 0), (1, 1))
    with pytest.raises(DomainError, match=r"body 'b'.*such signals are: a"):
        scene_of(domain)


# ---- videos ---------------------------------------------------------------------------------------------------


def video_subject(source: Any, **parameters: Any) -> tuple[Any, Policy]:
    domain = psyco.make(source, horizon=6, **parameters)
    network = network_for(domain, hidden=2)
    return domain, policy_for(domain, network, np.zeros(network.size))


def test_a_video_has_the_environments_frames_and_step_and_return_above_them(tmp_path: Path) -> None:
    domain, policy = video_subject(Drawn)
    video = record_video(domain, policy, seed=0)
    states = len(video.signals["step"])
    assert len(video.frames) == states > 2
    animate_video(video, tmp_path / "a.gif")
    frames = frames_of(tmp_path / "a.gif")
    assert [frame.shape for frame in frames] == [(CAPTION_HEIGHT + FRAME_WIDTH * 20 // 30, FRAME_WIDTH, 3)] * states
    assert [int(frame[-5, 5, 0]) for frame in frames] == pytest.approx([8 * t for t in range(states)], abs=4)
    assert all(frame[:CAPTION_HEIGHT].min() < 60 < 200 < frame[:CAPTION_HEIGHT].max() for frame in frames), (
        "black on white"
    )
    draw_trajectory(domain, [video.signals], tmp_path / "video.png", video.frames)
    with Image.open(tmp_path / "video.png") as picture:
        assert picture.height > 1.2 * picture.width, "a strip above the signals"


def test_a_video_is_of_the_same_episode_and_goes_through_the_wrappers() -> None:
    class Bright(gymnasium.Wrapper):  # type: ignore[type-arg]
        def render(self) -> Any:
            return self.env.render() + np.uint8(100)

    domain, policy = video_subject(Drawn, wrappers=[Bright])
    video = record_video(domain, policy, seed=0)
    expected = psyco.record(policy, domain)
    assert video.signals["obs"].tolist() == expected["obs"].tolist()
    assert video.frames[0].convert("RGB").getpixel((5, 5)) == pytest.approx((100,) * 3, abs=4)
    assert domain.wrappers == (Bright,), "the domain stays as it was"


@pytest.mark.parametrize(
    ("source", "parameters", "why"),
    [
        (Walk, {}, r"rgb_array is not among its render modes \(none\)"),
        (Drawn, {"broken": "raise"}, "pygame is not installed"),
        (Drawn, {"broken": "grey"}, r"shape \(20, 30, 1\)"),
    ],
)
def test_an_environment_that_renders_no_frames_says_why(source: Any, parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(DomainError, match=why):
        record_video(*video_subject(source, **parameters), seed=0)


def test_frames_are_rendered_without_display_and_sound_and_the_environment_variables_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[dict[str, str]]()

    class Quiet(gymnasium.Wrapper):  # type: ignore[type-arg]
        def render(self) -> Any:
            seen.append({name: os.environ[name] for name in WITHOUT_DEVICES})
            return self.env.render()

    for name in WITHOUT_DEVICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    before = dict(os.environ)
    domain, policy = video_subject(Drawn, wrappers=[Quiet])
    record_video(domain, policy, seed=0)
    assert seen[0] == {**WITHOUT_DEVICES, "SDL_VIDEODRIVER": "x11"}
    assert dict(os.environ) == before
