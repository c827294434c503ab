"""Films from frames: MP4 or WebM where ffmpeg is installed, else animated GIF.

ffmpeg comes with the package imageio-ffmpeg (`psyco[film]`) or is a program of the system.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from psyco._src.core.errors import RunError, check_known

GIF, MP4, WEBM, AUTO = "gif", "mp4", "webm", "auto"
FORMATS = (AUTO, MP4, WEBM, GIF)
# Encoders in the order of preference; those of some systems are without H.264.
ENCODERS = {
    MP4: (("libx264", ("-crf", "23")), ("libopenh264", ("-b:v", "1M")), ("mpeg4", ("-q:v", "4"))),
    WEBM: (("libvpx-vp9", ("-crf", "32", "-b:v", "0")), ("libvpx", ("-b:v", "1M"))),
}
# Equal frames give equal bytes.
REPRODUCIBLE = ("-threads", "1", "-fflags", "+bitexact", "-flags:v", "+bitexact", "-map_metadata", "-1")
HOW = 'pip install "psyco[film]", or ffmpeg of the system'
MISSING = f"the film is a GIF: MP4 and WebM need ffmpeg, {HOW}"
TIMEOUT = 300.0  # seconds for a film


class Film(NamedTuple):
    """A film as a file."""

    content: bytes
    format: str  # "gif", "mp4" or "webm"

    @property
    def media_type(self) -> str:
        """Its type on the web."""
        return "image/gif" if self.format == GIF else f"video/{self.format}"


def make_film(frames: Iterator[Image.Image], per_second: float, format: str = AUTO) -> Film:
    """Return a film that repeats forever where it is shown.

    Args:
        frames: pictures of one size.
        per_second: of the frames.
        format: "mp4", "webm", "gif", or "auto": the first of these that can be written here.
    """
    chosen = resolve_format(format)
    if chosen == GIF:
        return Film(make_gif(frames, per_second), GIF)
    return Film(_encode(list(frames), per_second, chosen), chosen)


def resolve_format(format: str) -> str:
    """Return the format of a film; raise RunError for one that cannot be written here."""
    check_known("film format", format, FORMATS)
    if format == GIF:
        return GIF
    possible = [name for name in (MP4, WEBM) if find_encoder(name) is not None]
    if format == AUTO:
        return possible[0] if possible else GIF
    if format not in possible:
        raise RunError(
            f"a film as {format.upper()} needs ffmpeg with an encoder for it: {HOW}; or choose gif (--film-format gif)"
        )
    return format


def make_gif(frames: Iterator[Image.Image], per_second: float) -> bytes:
    """Return an animated GIF that repeats forever."""
    first, *rest = map(quantized, frames)
    drawn = io.BytesIO()
    first.save(drawn, "gif", save_all=True, append_images=rest, duration=1000 / per_second, loop=0)
    return drawn.getvalue()


def quantized(frame: Image.Image) -> Image.Image:
    """Reduce a frame to the 256 colours of a GIF; Pillow's default method takes longer than the drawing."""
    return frame.quantize(method=Image.Quantize.FASTOCTREE)


@cache
def find_ffmpeg() -> str | None:
    """Return the program ffmpeg, of the package imageio-ffmpeg or of the system; None if there is none."""
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):  # RuntimeError: the package is there, its program is not
        return shutil.which("ffmpeg")


@cache
def find_encoder(format: str) -> tuple[str, ...] | None:
    """Return the arguments of ffmpeg for the best encoder of a format that it has; None if it has none."""
    program = find_ffmpeg()
    if program is None:
        return None
    try:
        listed = subprocess.run(
            [program, "-hide_banner", "-encoders"], capture_output=True, text=True, timeout=TIMEOUT, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    known = {words[1] for line in listed.splitlines() if len(words := line.split()) > 1}
    return next((("-c:v", name, *quality) for name, quality in ENCODERS[format] if name in known), None)


def _encode(frames: list[Image.Image], per_second: float, format: str) -> bytes:
    """Return the film of frames, encoded by ffmpeg."""
    encoder, program = find_encoder(format), find_ffmpeg()
    assert encoder is not None, "`resolve_format` has found it"
    assert program is not None, "it has the encoder"
    first = frames[0]
    # Players want even sizes: a row or column of white is added.
    even = "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white,format=yuv420p"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"film.{format}"
        command = [
            program, "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{first.width}x{first.height}",
            "-r", f"{per_second:g}", "-i", "-", "-an", "-vf", even, *encoder, *REPRODUCIBLE,
            *(("-movflags", "+faststart") if format == MP4 else ()), str(file),
        ]  # fmt: skip
        try:
            raw = b"".join(frame.convert("RGB").tobytes() for frame in frames)
            subprocess.run(command, input=raw, capture_output=True, timeout=TIMEOUT, check=True)
            return file.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", b"") or b""
            why = said.decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
            raise RunError(
                f"ffmpeg cannot write the film: {why[0]}; gif (--film-format gif) needs no ffmpeg"
            ) from error
