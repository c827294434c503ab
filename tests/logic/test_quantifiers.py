"""`each`, `any` and `for each agent`: their meaning, their text, and their errors."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import psyco
from psyco._src.core.errors import PsycoError, RequirementError
from psyco._src.logic.ast import Aggregate, Compare, Group, Label, Number, Quantified, Signal, Temporal
from psyco._src.logic.c_monitor import c_monitor
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.logic.quantifiers import Team, is_quantified, make_team, team_of_signals, write_out
from psyco._src.logic.runtime_monitor import Monitor, Outlook
from psyco._src.logic.trace_check import check_path, path_value
from tests.logic import by_definition, strategies

AGENTS = ("agent_0", "agent_1", "agent_2")
TEAM = Team(AGENTS)
CHASE = make_team(
    ("pursuer_0", "pursuer_1", "evader_0"),
    {"pursuer": ("pursuer_0", "pursuer_1"), "evader": ("evader_0",), "ghost": ()},
)
KNOWN = ("x", "info.", *(f"{agent}.{name}" for agent in CHASE.agents for name in ("x", "caught")))


def own_atoms(running=True):
    """Atoms about `agent.x`, a number, and `agent.a`, a Boolean; with aggregates if `running`."""
    x, a = Signal("agent.x"), Signal("agent.a")
    numbers = st.sampled_from([x, *[Aggregate("sum", x), Aggregate("count", a), Aggregate("most", x)] * running])
    compared = st.builds(Compare, st.sampled_from(["<", ">=", "="]), numbers, strategies.values.map(Number))
    other = st.builds(Compare, st.just("<="), st.just(x), st.just(Signal("x")))
    return st.sampled_from([a, Label("agent.a")]) | compared | other


def own_formulas(bounds):
    return st.recursive(
        own_atoms(),
        lambda inner: st.one_of(*strategies._connected(inner), *strategies.bounded(inner, bounds)),
        max_leaves=3,
    )


@st.composite
def quantified(draw, around=True):
    """Formulas with each and any, also inside count and temporal operators, and inside each other."""
    inner = own_formulas(st.none())
    word = st.sampled_from(["each", "any"])
    outer = st.builds(Quantified, word, inner)
    state = st.builds(Quantified, word, own_atoms(running=False))
    counted = state.map(lambda body: Compare("<=", Aggregate("count", body), Number(1.0)))
    nested = st.builds(lambda w, a, b: Quantified(w, Temporal("U", (a, b))), word, own_atoms(), state)
    leaves = outer | counted | nested
    return draw(
        st.recursive(
            leaves | strategies.atoms(),
            lambda below: st.one_of(*strategies._connected(below), *strategies._temporal(below)),
            max_leaves=3,
        )
    )


@st.composite
def team_paths(draw):
    """A path with a signal x and a Boolean a of every agent."""
    path = draw(strategies.paths(min_size=2, max_size=4))
    length = len(path["x"])
    for agent in AGENTS:
        path[f"{agent}.x"] = np.array(draw(st.lists(strategies.values, min_size=length, max_size=length)))
        path[f"{agent}.a"] = np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    return path


@settings(max_examples=40)
@given(quantified(), team_paths())
def test_each_is_every_agent_and_any_is_some_agent_in_all_monitors(formula, path):
    """Satisfaction and cost are those of the definition: φ holds on the path in which `agent.x` is the agent's x."""
    satisfied, cost = by_definition.satisfied(formula, path), by_definition.cost(formula, path)
    checked = check_path(formula, path)
    assert (checked.satisfied, checked.cost) == (satisfied, pytest.approx(cost))
    requirement = psyco.Requirement(constraints=(psyco.Constraint(formula, ">=", 0.5, 1.0),))
    monitor = Monitor(requirement, horizon=len(path["x"]) - 1, agents=AGENTS)
    monitor.start()
    for i in range(len(path["x"])):
        status = monitor.update({name: values[i] for name, values in path.items()})
    assert status.outlook is (Outlook.SATISFIED if satisfied else Outlook.VIOLATED)


@settings(max_examples=60)
@given(quantified())
def test_what_is_printed_parses_to_the_same_formula(formula):
    assert parse_formula(str(formula)) == formula
    written = write_out(formula, TEAM, "test")
    assert parse_formula(str(written)) == written
    assert not is_quantified(written)


@settings(max_examples=40)
@given(strategies.requirements(), st.sampled_from([None, Group("agent"), Group("pursuer")]))
def test_a_property_for_each_agent_is_printed_and_parsed(requirement, group):
    from dataclasses import replace

    stated = replace(
        requirement,
        constraints=tuple(replace(each, for_each=group) for each in requirement.constraints),
        questions=tuple(replace(each, for_each=group) for each in requirement.questions),
    )
    assert parse(str(stated)) == stated


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("P>=0.9 [ G each(pursuer.x > 1) ]", ["P>=0.9 [ G (pursuer_0.x > 1 & pursuer_1.x > 1) ] & C>=0.95"]),
        ("P>=0.9 [ F any(pursuer.caught) ]", ["P>=0.9 [ F (pursuer_0.caught | pursuer_1.caught) ] & C>=0.95"]),
        ("P>=0.9 [ G !any(evader.caught) ]", ["P>=0.9 [ G !evader_0.caught ] & C>=0.95"]),
        (
            "P>=0.9 [ G (count(any(pursuer.caught)) <= 2) ]",
            ["P>=0.9 [ G (count(pursuer_0.caught | pursuer_1.caught) <= 2) ] & C>=0.95"],
        ),
        (
            "P>=0.9 [ G each(pursuer.x > 0 => any(evader.x > pursuer.x)) ]",
            [
                "P>=0.9 [ G ((pursuer_0.x > 0 => evader_0.x > pursuer_0.x) & "
                "(pursuer_1.x > 0 => evader_0.x > pursuer_1.x)) ] & C>=0.95"
            ],
        ),
        (
            '"far": for each pursuer: P>=0.9 in 95% of environments [ G (pursuer.x > x) ] & C>=0.98',
            [
                f'"far (pursuer_{i})": P>=0.9 in 95% of environments [ G (pursuer_{i}.x > x) ] & C>=0.98'
                for i in range(2)
            ],
        ),
        (
            "for each agent: R{agent.x}<=3 [ F any(agent.caught) ] within [0,5]; "
            "for each evader: P=? [ F evader.caught ]",
            [
                *(
                    f"R{{{agent}.x}}<=3 [ F (pursuer_0.caught | pursuer_1.caught | evader_0.caught) ] within [0,5] "
                    "& C>=0.95"
                    for agent in CHASE.agents
                ),
                "P=? [ F evader_0.caught ] & C>=0.95",
            ],
        ),
    ],
)
def test_a_requirement_is_written_out_for_the_agents_of_a_group(text, written):
    found = write_out(parse(text), CHASE, "chase", KNOWN)
    assert [str(each) for each in (*found.constraints, *found.questions)] == written
    assert found.text.startswith(f"// {text}\n")
    assert parse(found.text) == found
    assert write_out(found, CHASE, "chase", KNOWN) is found


def test_a_requirement_without_quantifiers_stays_the_same_object():
    stated = parse("P>=0.9 [ G (pursuer_0.x > 0 & info.agent.x > 1) ]")
    assert write_out(stated, CHASE, "chase", KNOWN) is stated
    assert write_out(stated, Team(), "chase") is stated


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("P>=0.9 [ G each(pursuers.x > 0) ]", 17, "unknown group 'pursuers'"),
        ("P>=0.9 [ G each(pursuers.x > 0) ]", 17, "did you mean 'pursuer'?"),
        ("for each evadr: P>=0.9 [ F evader.caught ]", 10, "unknown group 'evadr'"),
        ("P>=0.9 [ G pursuer_7.x > 0 ]", 12, "unknown agent 'pursuer_7'"),
        ("P>=0.9 [ G pursuer.x > 0 ]", 12, "pursuer.x is a signal of every agent in the group 'pursuer'"),
        ('P>=0.9 [ F "evader.caught" ]', 12, "write each(evader.caught ...)"),
        ("P>=0.9 [ G each(ghost.x > 0) ]", 12, "the group 'ghost' has no agents"),
        ("P>=0.9 [ G each(x > 0) ]", 12, "each(...) names no group of agents"),
        ("P>=0.9 [ G any(pursuer.x > evader.x) ]", 12, "about one group of agents, and names pursuer and evader"),
        ("for each pursuer: P>=0.9 [ F x > 0 ]", 10, "this property is the same for each pursuer"),
        ("for each agent: Rmax=? [ C ]", 10, "a goal for each agent"),
        ("P>=0.9 [ each(agent.x + 1) ]", 15, "each needs something that is true or false"),
        ("P>=0.9 [ count(each(F agent.caught)) < 1 ]", 16, "count looks at one state at a time"),
    ],
)
def test_errors_about_agents_have_a_caret_and_a_remedy(text, column, says):
    with pytest.raises(RequirementError) as caught:
        write_out(parse(text), CHASE, "chase", KNOWN)
    assert says in str(caught.value)
    assert (caught.value.line, caught.value.column) == (1, column)


@pytest.mark.parametrize("text", ["P>=0.9 [ G each(agent.x > 0) ]", "for each agent: P>=0.9 [ F agent.x > 0 ]"])
def test_where_agents_have_no_names_each_is_refused(text):
    stated = parse(text)
    for refuses in (
        lambda: Monitor(stated),
        lambda: c_monitor(stated),
        lambda: psyco.explain(text, domain="particle-dance"),
        lambda: psyco.synthesize("particle-dance", text, episodes=100),
    ):
        with pytest.raises(RequirementError, match=r"about several agents, and .* names none"):
            refuses()


def test_a_requirement_that_is_too_large_for_its_agents_is_refused():
    team = Team(tuple(f"agent_{i}" for i in range(100)))
    with pytest.raises(
        RequirementError, match="written out for 100 agents, the requirement has more than 60 operators"
    ):
        write_out(parse("P>=0.9 [ each(F agent.a) ]"), team, "test")


@pytest.mark.parametrize(
    ("agents", "groups", "says"),
    [
        ("agent_0", None, "agents must be a list of names"),
        (("a", "b"), {"p": ["c"]}, "'c' of group 'p' is no agent"),
        ((), {"p": "ab"}, "groups must map names to lists"),
    ],
)
def test_arguments_that_name_no_team_are_refused(agents, groups, says):
    with pytest.raises(RequirementError, match=says):
        Monitor("P>=0.9 [ F any(p.x > 0) ]", agents=agents, groups=groups)


def test_agents_of_recorded_signals_are_known_by_their_numbers():
    team = team_of_signals(["step", "info.x_1", "obs.arm_0.x", "red_0.x", "red_1.x", "blue_0.x", "alice.x"])
    assert team.agents == ("red_0", "red_1", "blue_0")
    assert team.groups == {"agent": team.agents, "red": ("red_0", "red_1"), "blue": ("blue_0",)}


PATH = {"red_0.x": [0, 1, 2], "red_1.x": [2, 0, 0], "blue_0.x": [1, 1, 1]}


def test_recorded_paths_take_groups_from_names_or_from_an_argument():
    assert check_path("G any(red.x >= blue_0.x)", PATH).satisfied
    assert not check_path("G each(red.x >= 1)", PATH).satisfied
    assert check_path("G each(team.x >= 1)", PATH, groups={"team": ["blue_0"]}).satisfied
    assert path_value("R{any(agent.x > 1)}=? [ C ]", PATH) == 1.0
    with pytest.raises(RequirementError, match="for each red asks for several values"):
        path_value("for each red: R{red.x}=? [ C ]", PATH)


def trace(episodes):
    """CSV of episodes of 2 states, with the signal x of red_0, red_1 and blue_0."""
    rng = np.random.default_rng(0)
    rows = ["episode,red_0.x,red_1.x,blue_0.x"]
    for episode in range(episodes):
        rows += [",".join(map(str, [episode, *rng.integers(0, 10, 3)])) for _ in range(2)]
    return "\n".join(rows)


def test_recorded_traces_are_judged_for_each_agent_with_one_error_for_all(tmp_path, cli):
    file = tmp_path / "traces.csv"
    file.write_text(trace(400))
    text = "for each red: P>=0.5 [ F red.x >= 5 ] & C>=0.9; P>=0.5 [ F any(pair.x >= 5) ] & C>=0.9"
    groups = {"pair": ["red_0", "blue_0"]}
    found = psyco.verify_outcomes(file, text, traces=True, groups={"red": ["red_0", "red_1"], **groups}, issued="now")
    same = psyco.verify_outcomes(
        file,
        "P>=0.5 [ F red_0.x >= 5 ] & C>=0.9; P>=0.5 [ F red_1.x >= 5 ] & C>=0.9; "
        "P>=0.5 [ F (red_0.x >= 5 | blue_0.x >= 5) ] & C>=0.9",
        traces=True,
        issued="now",
    )
    assert json.loads(found.to_json()) == json.loads(same.to_json())
    assert len(found.findings) == 3 and found.verdict.name == "SATISFIED"
    assert found.guarantee.false_accept == pytest.approx(0.1)
    shown = cli(
        "verify", "--traces", file, "--require", "P>=0.5 [ F any(pair.x >= 5) ] & C>=0.9",
        "--group", "pair=red_0,blue_0",
    )  # fmt: skip
    assert "red_0.x >= 5 | blue_0.x >= 5" in shown.out
    refused = cli("verify", "--traces", file, "--require", "P>=0.5 [ F any(pair.x >= 5) ]", "--group", "pair")
    assert refused.status == 2 and "write a name and agents" in refused.err


def test_outcomes_without_signals_refuse_a_property_for_each_agent():
    with pytest.raises(PsycoError, match="write a property for every agent"):
        psyco.verify_outcomes([1, 1], "for each agent: P>=0.5 & C>=0.9")


@pytest.mark.parametrize(
    ("text", "sentence", "words"),
    [
        (
            "for each agent: P>=0.9 [ G (agent.x >= 1) ]",
            "for each agent: agent.x shall always be at least 1 with probability at least 0.9, 95% sure",
            "For each agent by itself: an episode has this property with probability at least 0.9: in every state, "
            "agent.x is at least 1.",
        ),
        (
            "P>=0.9 [ F any(pursuer.caught) ]",
            "the system shall eventually satisfy any(pursuer.caught) with probability at least 0.9, 95% sure",
            "in some state, (for some pursuer, pursuer.caught holds)",
        ),
    ],
)
def test_structured_english_knows_each_any_and_for_each(text, sentence, words):
    (_, found) = psyco.explain(text)
    assert found.sentence == sentence and parse(sentence).constraints == parse(text).constraints
    assert words in found.words
