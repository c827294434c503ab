def test_the_claims_are_printed_with_what_was_measured(cli, tmp_path):
    done = cli("reproduce", "belief", "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert "The belief (section 2.4)" in done.out
    assert "200 to 1,000 pulls: 0.451" in " ".join(done.out.split())
    assert "1 holds, 0 does not hold, 0 cannot be decided" in done.out
    assert (tmp_path / "out" / "reproduction.html").exists()


def test_an_unknown_part_ends_with_status_2_and_the_known_ones(cli):
    done = cli("reproduce", "obstacle-rum")
    assert done.status == 2
    assert "did you mean 'obstacle-run'?" in done.err


def test_the_help_names_every_part(cli):
    from psyco._src.cli.reproduce import NAMES
    from psyco._src.paper import experiments

    assert experiments.NAMES == NAMES
