"""Films: the format that can be written here, and what is said about one that cannot."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from psyco._src.core.errors import RunError
from psyco._src.reports import film
from psyco._src.reports.film import make_film, resolve_format

FRAMES = [Image.fromarray(np.full((31, 41, 3), level, np.uint8)) for level in (0, 100, 200)]


@pytest.fixture(autouse=True)
def _forget():
    for each in (film.find_ffmpeg, film.find_encoder):
        each.cache_clear()
    yield
    for each in (film.find_ffmpeg, film.find_encoder):
        each.cache_clear()


def fake_ffmpeg(monkeypatch, tmp_path, encoders, fails=False):
    """A program that lists encoders, and writes the number of the bytes that it was given."""
    program = tmp_path / "ffmpeg"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nif '-encoders' in sys.argv:\n"
        f"    print('\\n'.join(f' V..... {{name}} text' for name in {encoders!r}))\n"
        f"elif {fails!r}:\n    sys.exit('no space left')\n"
        "else:\n    open(sys.argv[-1], 'w').write(f'{len(sys.stdin.buffer.read())} ' + ' '.join(sys.argv[1:-1]))\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(film, "find_ffmpeg", lambda: str(program))
    return program


def test_without_ffmpeg_a_film_is_a_gif_and_others_are_errors_with_a_remedy(monkeypatch):
    monkeypatch.setattr(film, "find_ffmpeg", lambda: None)
    made = make_film(iter(FRAMES), 10.0)
    assert (made.format, made.media_type) == ("gif", "image/gif")
    with Image.open(io.BytesIO(made.content)) as gif:
        assert gif.n_frames == 3
    with pytest.raises(RunError, match=r'WEBM needs ffmpeg .*pip install "psyco\[film\]"'):
        resolve_format("webm")
    with pytest.raises(RunError, match="mp5"):
        resolve_format("mp5")


@pytest.mark.slow  # other processes
@pytest.mark.parametrize(
    ("encoders", "format", "chosen"),
    [
        (["libx264", "libvpx-vp9"], "auto", "mp4"),
        (["libvpx"], "auto", "webm"),
        (["mpeg4", "libvpx"], "webm", "webm"),
        (["png"], "auto", "gif"),
    ],
)
def test_the_format_is_one_that_ffmpeg_has_an_encoder_for(encoders, format, chosen, monkeypatch, tmp_path):
    fake_ffmpeg(monkeypatch, tmp_path, encoders)
    made = make_film(iter(FRAMES), 10.0, format)
    assert made.format == chosen
    if chosen != "gif":
        size, *words = made.content.decode().split()
        assert int(size) == 3 * 31 * 41 * 3
        assert words[words.index("-s") + 1] == "41x31"
        assert words[words.index("-c:v") + 1] in encoders


@pytest.mark.slow  # other processes
def test_a_failure_of_ffmpeg_is_an_error_with_its_words(monkeypatch, tmp_path):
    fake_ffmpeg(monkeypatch, tmp_path, ["libx264"], fails=True)
    with pytest.raises(RunError, match="ffmpeg cannot write the film: no space left"):
        make_film(iter(FRAMES), 10.0)


@pytest.mark.extra("imageio_ffmpeg")
@pytest.mark.parametrize("format", ["mp4", "webm"])
def test_a_real_film_has_all_frames_and_repeats_its_bytes(format, tmp_path):
    import imageio_ffmpeg

    made = make_film(iter(FRAMES), 10.0, format)
    assert made == make_film(iter(FRAMES), 10.0, format)
    (tmp_path / f"film.{format}").write_bytes(made.content)
    read = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", tmp_path / f"film.{format}", "-f", "rawvideo", "-pix_fmt", "gray", "-"],
        capture_output=True,
        check=True,
    )
    frames = np.frombuffer(read.stdout, np.uint8).reshape(-1, 32, 42)  # of even size
    assert frames[:, 15, 20].tolist() == pytest.approx([0, 100, 200], abs=12)
