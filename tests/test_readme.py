"""The README's first screen is true: its program prints such a certificate."""

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_first_program_ends_in_the_certificate_that_is_shown():
    """Numbers may differ on another kind of processor, where compiled code rounds differently; the rest may not."""
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL).group(1)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "README.md", "exec"), {})

    def words(text):
        return re.sub(r"[0-9a-f]{16}|[0-9.,%-]+", "#", " ".join(text.split()))

    assert words(out.getvalue()) == words(shown)


def test_every_file_that_is_linked_to_is_there():
    root = Path(__file__).parents[1]
    pages = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
