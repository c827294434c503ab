"""Values of games with moves at the same time: closed forms, and the definition written out."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

import psyco
from psyco._src.envs.obstacle_run import MOVES
from psyco._src.exact.matrix_games import matrix_game_values, simultaneous_game_value

HORIZON = 4
GAME = psyco.make("obstacle-run", opponent=True, grid=3, horizon=HORIZON)
VIOLATED = psyco.parse_formula("!(G (!caught | collisions <= 1))")


def test_known_games_have_their_values():
    pennies, rock_paper_scissors = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    saddle = np.array([[3.0, 1.0], [5.0, 4.0]])
    assert matrix_game_values(np.stack([pennies, saddle])) == pytest.approx([0.0, 4.0], abs=1e-9)
    assert matrix_game_values(rock_paper_scissors[None] + 0.5) == pytest.approx([0.5], abs=1e-9)
    assert matrix_game_values(np.array([[[1.0, 2.0, 0.5]], [[4.0, 3.0, 9.0]]])) == pytest.approx([0.5, 3.0])


def test_games_of_two_actions_have_the_value_of_the_closed_form():
    """Without a saddle point it is (ad - bc) / (a + d - b - c)."""
    games = np.random.default_rng(0).normal(size=(1200, 2, 2))  # more than fit in one linear program
    (a, b), (c, d) = games.transpose(1, 2, 0)
    low, high = games.min(axis=2).max(axis=1), games.max(axis=1).min(axis=1)
    wanted = np.where(low == high, low, (a * d - b * c) / np.where(low == high, 1.0, a + d - b - c))
    assert (low < high).sum() > 300
    assert matrix_game_values(games) == pytest.approx(wanted, abs=1e-8)


def least_gain(gains):
    """The value of a matrix game as the side of the columns finds it: min v, gains y <= v."""
    rows, columns = gains.shape
    solved = linprog(
        [*[0.0] * columns, 1.0], A_ub=np.hstack([gains, -np.ones((rows, 1))]), b_ub=np.zeros(rows),
        A_eq=[[*[1.0] * columns, 0.0]], b_eq=[1.0], bounds=[*[(0, None)] * columns, (None, None)],
    )  # fmt: skip
    return solved.x[-1]


@pytest.mark.slow  # enumerates
def test_the_value_of_obstacle_run_is_that_of_value_iteration_by_definition():
    places = list(itertools.product(range(3), repeat=2))
    move = {(p, m): tuple(np.clip(np.add(p, MOVES[m]), 0, 2).tolist()) for p in places for m in range(5)}
    value = {(r, o, c): float(c >= 2) for r in places for o in places for c in range(3)}
    for _ in range(HORIZON):

        def after(runner, opponent, c, value=value):
            c = min(c + (runner == opponent), 2)
            return float(c >= 2) if runner == (0, 0) else value[runner, opponent, c]

        value = {
            (r, o, c): 1.0
            if c >= 2
            else least_gain(np.array([[after(move[r, i], move[o, j], c) for i in range(5)] for j in range(5)]))
            for r, o, c in value
        }
    wanted = np.mean([value[r, o, 0] for r in places for o in places])
    found = simultaneous_game_value(GAME, VIOLATED, 1)
    assert found == pytest.approx(wanted, abs=1e-8)
    assert 0 < found < 1


@pytest.mark.slow  # enumerates
def test_what_the_opponent_can_ensure_is_what_the_runner_cannot_prevent():
    """By the minimax theorem: the runner ensures the opposite with the rest of the probability."""
    opposite = psyco.parse_formula("G (!caught | collisions <= 1)")
    assert simultaneous_game_value(GAME, opposite, 0) == pytest.approx(
        1.0 - simultaneous_game_value(GAME, VIOLATED, 1), abs=1e-8
    )
