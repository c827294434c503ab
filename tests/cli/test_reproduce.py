import pytest
from typer.testing import CliRunner

from psyco._src.cli import app, main


def test_the_claims_are_printed_with_what_was_measured(tmp_path):
    result = CliRunner().invoke(
        app, ["--no-compile-cache", "reproduce", "belief", "--out", str(tmp_path / "out")]
    )
    assert result.exit_code == 0, result.output
    assert "The belief (section 2.4)" in result.output
    assert "200 to 1,000 pulls: 0.451" in " ".join(result.output.split())
    assert "1 holds, 0 does not hold, 0 cannot be decided" in result.output
    assert (tmp_path / "out" / "reproduction.html").exists()


def test_an_unknown_part_ends_with_status_2_and_the_known_ones(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["psyco", "--no-compile-cache", "reproduce", "obstacle-rum"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "did you mean 'obstacle-run'?" in capsys.readouterr().err
