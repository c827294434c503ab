"""Models that are too large to build: steps evaluate their commands. Storm's built models are the oracle."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import DomainError
from psyco._src.envs.model_file import ModelFile
from psyco._src.envs.model_program import evaluate
from psyco._src.envs.program_file import ProgramFile
from psyco._src.exact.model_explore import _choices, _outcomes

EXAMPLES = Path(__file__).parents[2] / "examples"
CONVOY = str(EXAMPLES / "convoy.prism")
pytestmark = [
    pytest.mark.extra("stormpy"),
    pytest.mark.filterwarnings("ignore:.*is not built"),
]

# Synchronised and single actions, several enabled commands of one action, rewards of states and of actions.
WORKSHOP = """mdp
formula busy = x>0;
module a
  x : [0..3] init 0;
  ok : bool init true;
  [] x=0 -> 0.5 : (x'=1) + 0.5 : (x'=2);
  [go] busy -> (x'=0);
  [go] x>1 -> (x'=3) & (ok'=!ok);
  [solo] x=3 & ok -> true;
  [] x=2 -> (x'=mod(x+2,4)) & (ok'=y=floor(x/2));
endmodule
module b
  y : [-1..2] init 0;
  [go] y<2 -> 0.3 : (y'=min(y+1,2)) + 0.7 : true;
  [go] true -> (y'=-1);
endmodule
label "ok" = ok;
label "late" = x=3 & y>=1 | !busy & y=2;
rewards "r"
  [go] x=1 : 2;
  [] true : 3;
  [solo] true : 7;
  x=2 : 5*y;
endrewards
"""
# Both commands of the first state are enabled: a chain takes each with probability 1/2. State 3 is a deadlock.
CHAIN = """dtmc
module m
  s : [0..3] init 0;
  [] s=0 -> 0.2 : (s'=1) + 0.8 : (s'=2);
  [] s=0 -> (s'=3);
  [] s>=1 & s<3 -> 1/s : (s'=0) + 1-1/s : true;
endmodule
rewards "n"
  true : 1;
endrewards
"""


def jani() -> str:
    """An automaton with two locations: up from the first one, until 3 is reached, then down for ever."""

    def edge(place: str, guard: Any, to: str, value: Any, reward: int) -> dict[str, Any]:
        made = [{"ref": "n", "value": value}, {"ref": "cost", "value": reward}]
        return {
            "location": place, "guard": {"exp": guard}, "destinations": [{"location": to, "assignments": made}]
        }  # fmt: skip

    plus, minus = ({"op": op, "left": "n", "right": 1} for op in "+-")
    low, high = ({"op": op, "left": "n", "right": 3} for op in ("<", "="))
    edges = [edge("up", low, "up", plus, 1), edge("up", high, "down", minus, 2), edge("down", True, "down", 0, 0)]
    places = [{"name": "up"}, {"name": "down", "transient-values": [{"ref": "falls", "value": True}]}]
    automaton = {"name": "A", "locations": places, "initial-locations": ["up"], "variables": [], "edges": edges}
    bounded = {"kind": "bounded", "base": "int", "lower-bound": 0, "upper-bound": 3}
    content = {
        "jani-version": 1, "name": "m", "type": "mdp", "actions": [], "constants": [], "properties": [],
        "variables": [
            {"name": "n", "type": bounded, "initial-value": 0},
            {"name": "cost", "type": "real", "transient": True, "initial-value": 0},
            {"name": "falls", "type": "bool", "transient": True, "initial-value": False},
        ],
        "automata": [automaton], "system": {"elements": [{"automaton": "A"}], "syncs": []},
    }  # fmt: skip
    return json.dumps(content)


MODELS = {"workshop.prism": WORKSHOP, "chain.prism": CHAIN, "lift.jani": jani()}


def both(folder: Path, name: str, text: str, most: int = 2, **parameters: Any) -> tuple[ModelFile, ProgramFile]:
    """Return a model as it is built, and as a program."""
    file = folder / name
    file.write_text(text)
    built, program = psyco.make(str(file), **parameters), psyco.make(str(file), max_states=most, **parameters)
    assert isinstance(built, ModelFile)
    assert isinstance(program, ProgramFile)
    return built, program


@pytest.mark.parametrize("name", MODELS)
def test_a_program_has_the_choices_transitions_rewards_and_labels_of_the_built_model(name: str, tmp_path: Path) -> None:
    built, domain = both(tmp_path, name, MODELS[name])
    tables, program = built.tables, domain.program
    assert [v.name for v in program.variables] == list(tables.variables)
    values = np.stack([column.astype(np.int32) for column in tables.variables.values()], axis=1)
    number = {bytes(row): state for state, row in enumerate(values)}
    offered = np.where(tables.labels["deadlock"], 0, np.diff(tables.choices))
    if not domain.is_chain:
        np.testing.assert_array_equal(program.enabled(np, values)[1].prod(-1).sum(-1), offered)
    for choice in range(int(offered.max())):
        rows = np.flatnonzero(offered > choice)
        matrix, gained = np.zeros((2, tables.states, tables.states)), np.zeros((tables.states, len(program.rewards)))
        found = _choices(domain, lambda obs, c=choice: np.full(len(obs), c), values, rows)
        for steps in (each for part in found for each in _outcomes(domain, values, *part)):
            to = [number[bytes(row)] for row in steps.values]
            np.add.at(matrix[0], (steps.source, to), steps.probability)
            np.add.at(gained, steps.source, steps.probability[:, None] * steps.gained)
        for row in rows:
            branches = slice(*tables.branches[tables.choices[row] + choice + np.arange(2)])
            np.add.at(matrix[1][row], tables.successor[branches], tables.probability[branches])
        np.testing.assert_allclose(matrix[0], matrix[1], atol=1e-12)
        for k, reward in enumerate(program.rewards):
            np.testing.assert_allclose(gained[rows, k], tables.rewards[reward][tables.choices[rows] + choice])
    signals = domain.state_signals(np, values)
    assert {*signals} == {*tables.signals}
    for signal, column in tables.signals.items():
        np.testing.assert_array_equal(signals[signal], column)
    np.testing.assert_array_equal(domain.ends(np, values), built.ends)


def test_operators_have_the_values_of_the_language() -> None:
    environment = {"x": np.array([-3, 0, 4]), "b": np.array([True, False, True])}
    expected = {
        ("%", "x", 3): [0, 0, 1],
        ("//", "x", 2): [-2, 0, 2],
        ("-//", "x", 2): [-1, 0, 2],
        ("⇒", "b", (">", "x", 0)): [False, True, True],
        ("ite", "b", "x", 7): [-3, 7, 4],
        ("pow", "x", 2): [9, 0, 16],
        ("max", ("abs", "x"), 1): [3, 1, 4],
        ("≠", "b", True): [False, True, False],
    }
    for expression, values in expected.items():
        np.testing.assert_array_equal(evaluate(np, expression, environment), values)


def remainder_jani() -> str:
    """As `REMAINDERS`, with one label."""
    equal = {"op": "=", "left": {"op": "%", "left": "x", "right": 3}, "right": 2}
    place = {"name": "at", "transient-values": [{"ref": "r2", "value": equal}]}
    bounded = {"kind": "bounded", "base": "int", "lower-bound": -4, "upper-bound": 4}
    up = {"op": "min", "left": {"op": "+", "left": "x", "right": 1}, "right": 4}
    edge = {"location": "at", "destinations": [{"location": "at", "assignments": [{"ref": "x", "value": up}]}]}
    automaton = {"name": "A", "locations": [place], "initial-locations": ["at"], "variables": [], "edges": [edge]}
    content = {
        "jani-version": 1, "name": "m", "type": "dtmc", "actions": [], "constants": [], "properties": [],
        "variables": [
            {"name": "x", "type": bounded, "initial-value": -4},
            {"name": "r2", "type": "bool", "transient": True, "initial-value": False},
        ],
        "automata": [automaton], "system": {"elements": [{"automaton": "A"}], "syncs": []},
    }  # fmt: skip
    return json.dumps(content)


REMAINDERS = """dtmc
module m // mod(
  x : [-4..4] init -4;
  [] true -> (x'=min(x+1,4));
endmodule
""" + "".join(f'label "r{r}" = mod(mod(x+max(0,3),100),3)={r};\n' for r in range(3))


@pytest.mark.parametrize("name", ["mod.prism", "mod.jani"])
def test_remainders_of_negative_numbers_are_not_negative(name: str, tmp_path: Path) -> None:
    """Storm alone has mod(-3, 3) = 3; and a program took the remainder that Storm writes for another one."""
    for domain in both(tmp_path, name, REMAINDERS if name == "mod.prism" else remainder_jani()):
        if isinstance(domain, ModelFile):
            order = np.argsort(domain.tables.variables["x"])
            found = {label: column[order] for label, column in domain.tables.labels.items()}
        else:
            columns = [np.arange(-4, 5) * (variable.name == "x") for variable in domain.program.variables]
            found = domain.state_signals(np, np.stack(columns, axis=1).astype(np.int32))
        for r in range(3) if name == "mod.prism" else [2]:
            wanted = [(x + 3) % 100 % 3 == r if name == "mod.prism" else x % 3 == r for x in range(-4, 5)]
            np.testing.assert_array_equal(found[f"r{r}"], wanted)


def test_episodes_of_a_program_are_those_of_the_built_model(tmp_path: Path) -> None:
    """Each interval misses with probability 1e-6 or less, at a fixed seed."""
    built, program = both(tmp_path, "workshop.prism", WORKSHOP, 8, horizon=12)
    asked = 'P=? [ F<=12 "late" ] & C>=0.999999; P=? [ G<=12 y>=0 ] & C>=0.999999; R{ok}=? [ I=9 ] & C>=0.999999'

    def policy(obs: Any) -> int:
        return int(obs[0] > 0.5)

    exact = psyco.exact(policy, built, asked)
    again = psyco.exact(policy, replace(program, max_states=1000), asked)
    assert again.answers == pytest.approx(exact.answers)
    assert again.value.expected_return == pytest.approx(exact.value.expected_return)
    certificate = psyco.verify(policy, program, asked, max_episodes=1000)
    for answer, value in zip(certificate.answers, exact.answers, strict=True):
        assert answer.lower <= value <= answer.upper
        assert answer.upper - answer.lower < 0.3


@pytest.mark.parametrize("first", ["p", "1-p"])
def test_rare_branches_have_their_probability(first: str, tmp_path: Path) -> None:
    """A failure of probability 1e-8 in a step has some draw that leads to it, and few: the others lead on."""
    lost, on = ("(x'=9)", "(x'=x+1)")
    branches = f"p : {lost} + 1-p : {on}" if first == "p" else f"1-p : {on} + p : {lost}"
    file = tmp_path / "rare.prism"
    file.write_text(
        "dtmc\nconst double p = 1e-8;\nmodule m\n x : [0..9] init 0;\n"
        f" [] x<8 -> {branches};\n [] x>=8 -> true;\nendmodule"
    )
    domain = psyco.make(str(file), max_states=3, horizon=9)
    state = domain.reset(None)

    def fails(u: float) -> bool:
        drawn = np.array([0.0, u], np.float32)
        return int(domain.step(drawn, state, np.int32(0))[0].values[0]) == 9

    assert [fails(u) for u in (0.0, 0.9e-8, 1.1e-8, 0.5, 1 - 2.0**-24)] == [True, True, False, False, False]
    numbers = np.asarray(domain.draw(jax.random.key(0)))
    big = jax.vmap(replace(domain, given_horizon=1000).draw)(jax.random.split(jax.random.key(0), 300))
    near = np.sort(np.asarray(big).ravel())[:2000]  # below 2^-8, numbers that 24 bits do not have
    assert numbers.dtype == np.float32 and (near * 2.0**24 % 1 != 0).mean() > 0.9


def test_a_policy_is_answered_exactly_on_a_model_of_200_million_states() -> None:
    domain = psyco.make(CONVOY, N=100, max_states=5000)
    answer = psyco.exact(lambda obs: 0, domain, 'P=? [ F "arrived" ]; R{"time"}=? [ F ("arrived" | "broken") ]')
    p = 0.999**400
    assert answer.answers == pytest.approx((p, (1 - p) / 0.001))  # a geometric series
    assert answer.nodes == 801  # 401 on the way, and one breakdown at each of the first 400
    short = psyco.exact(lambda obs: 0, psyco.make(CONVOY, N=100, max_states=5000, horizon=10), "P=? [ G !broken ]")
    assert (short.answers[0], short.nodes) == (pytest.approx(0.999**10), 21)
    with pytest.raises(psyco.RunError, match=r"reaches more than 700 states .*give a shorter horizon"):
        psyco.exact(lambda obs: 0, psyco.make(CONVOY, N=100, max_states=700), 'P=? [ F "arrived" ]')


def test_a_large_model_says_so_and_refuses_what_needs_all_states() -> None:
    with pytest.warns(UserWarning, match=r"has more than 50 states \(max_states\) and is not built"):
        domain = psyco.make(CONVOY, N=9, max_states=50)
    assert psyco.make(domain.name, **domain.parameters) == domain
    listed = {each.name: each.message for each in psyco.check(domain)}
    assert "too large to build" in listed["model"]
    assert "label.broken" not in domain.signal_types()  # the label and the variable are the same
    for arguments, words in (
        ({"observe": "index"}, "have no numbers to observe"),
        ({"start": "a=0"}, "start selects one of built models only"),
        ({"until": "F a=1"}, "about one state"),
    ):
        with pytest.raises(DomainError, match=words):
            psyco.make(CONVOY, N=9, max_states=50, **arguments)
    with pytest.raises(DomainError, match=r"give a horizon \(--horizon N\)"):
        psyco.verify(lambda obs: 0, domain, 'P=? [ F "arrived" ]')
    with pytest.raises(DomainError, match="a table needs all of them"):
        psyco.synthesize(domain, 'P>=0.9 [ F<=60 "arrived" ] & C>=0.9', learner="table", episodes=20)
    with pytest.raises(psyco.RunError, match="an optimum over all policies needs all of them"):
        psyco.optimum(domain, 'P=? [ F "arrived" ]')
    with pytest.raises(psyco.RunError, match="an optimum"):
        psyco.exact(lambda obs: 0, domain, 'Pmax=? [ F "arrived" ]')


REFUSED = {
    "computes with real numbers in a guard": "x : [0..90] init 0;\n [] x*0.1<7 -> (x'=x+1);",
    "its variable x is no integer with a range": "x : int init 0;\n [] true -> (x'=x+1);",
    "several initial states, since y has no initial value": "x : [0..9];\n y : [0..90];\n [] true -> (y'=min(y+1,90));",
    "computes with integers of 2^31 and more: (x * x)": "x : [0..90000] init 1;\n [] x*x>0 -> (x'=min(2*x,65536));",
    "has the number 99999999, above 2^24": "x : [0..90] init 0;\n [] x<99999999 -> (x'=min(x+1,90));",
}


@pytest.mark.parametrize("words", REFUSED)
def test_programs_that_cannot_be_simulated_are_refused_with_the_reason(words: str, tmp_path: Path) -> None:
    file = tmp_path / "model.prism"
    initial = "init true endinit" if "no initial value" in words else ""
    file.write_text(f"dtmc\nmodule m\n {REFUSED[words]}\nendmodule\n{initial}")
    with pytest.raises(DomainError) as caught:
        psyco.make(str(file), max_states=5)
    own = any(part in words for part in (" in a guard", "number", "2^31"))
    assert f"it is too large to build, and {'it ' if own else ''}" in str(caught.value)
    assert words in str(caught.value)


def test_a_step_that_the_model_does_not_allow_is_an_error_never_a_satisfied_episode(tmp_path: Path) -> None:
    """The first seven states are explored before Storm stops; the eighth is wrong."""
    for name, command, words in (
        ("sum", "[] x=7 -> 0.5 : (x'=0) + 0.4 : (x'=1);", "sum to 0.9, not to 1, in the state x=7"),
        ("below", "[] x=7 -> (6-x)/4 : (x'=8) + (x-2)/4 : (x'=0);", "the probability -0.25, below 0, in the state x=7"),
        ("range", "[] x=7 -> (x'=x+5);", "leaves its range, from the state x=7 to the state x=12"),
    ):
        file = tmp_path / f"{name}.prism"
        file.write_text(f"dtmc\nmodule m\n x : [0..9] init 0;\n [] x<7 -> (x'=x+1);\n {command}\nendmodule")
        domain = replace(psyco.make(str(file), max_states=3, horizon=9), max_states=100)
        with pytest.raises(psyco.RunError, match=words):
            psyco.exact(lambda obs: 0, domain, "P=? [ G x<9 ]")
        with pytest.raises(psyco.EpisodeError, match="obs is"):
            psyco.verify(lambda obs: 0, domain, "P=? [ G x<9 ]", max_episodes=5)
