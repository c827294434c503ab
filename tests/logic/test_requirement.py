"""Requirements from user input."""

import pytest

import psyco
from psyco._src.logic.requirement import with_min_return


def test_a_least_return_is_a_constraint_on_half_of_the_episodes() -> None:
    stated = psyco.parse("Rmax=? [ C ]; P>=0.9 [ G x > 0 ]; P=? [ F x > 1 ]")
    wanted = with_min_return(stated, -2.5)
    assert wanted.constraints[:1] == stated.constraints and wanted.questions == stated.questions
    assert str(wanted.constraints[1]) == 'P>=0.5 [ F ("end" & return >= -2.5) ] & C>=0.95'
    assert psyco.parse(str(wanted)) == wanted


def test_a_least_return_does_not_fit_the_goal_to_minimise() -> None:
    with pytest.raises(psyco.RequirementError, match=r"return <= 3"):
        with_min_return(psyco.parse("Rmin=? [ C ]"), 3.0)


def test_a_least_return_is_finite() -> None:
    with pytest.raises(psyco.RequirementError, match="finite number, got nan"):
        with_min_return(psyco.parse("Rmax=? [ C ]"), float("nan"))
