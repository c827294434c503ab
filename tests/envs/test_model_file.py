"""PRISM and JANI files as domains; Storm builds them, so all but the alias tables need stormpy."""

import json
from pathlib import Path

import numpy as np
import pytest

import psyco
from psyco._src.core.errors import DomainError, RequirementError
from psyco._src.envs import model_file
from psyco._src.envs.model_alias import alias_tables
from psyco._src.envs.registry import DomainDescription, make_from_description, required_trust
from psyco._src.exact.model_properties import model_properties
from psyco._src.logic.parser import parse

EXAMPLES = Path(__file__).parents[2] / "examples"
DICE, COURIER = str(EXAMPLES / "dice.prism"), str(EXAMPLES / "courier.prism")


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 300])
def test_alias_tables_have_the_probabilities_of_the_branches(count: int) -> None:
    rng = np.random.default_rng(count)
    branches, p = np.array([0, count, 2 * count]), rng.dirichlet(np.ones(count), 2).ravel()
    tables = alias_tables(branches, p)
    found, size = np.zeros(2 * count), 1 << (32 - int(tables.shift[0]))
    share = tables.threshold / 2.0**32 / size
    np.add.at(found, tables.first, share)
    np.add.at(found, tables.second, 1.0 / size - share)
    np.testing.assert_allclose(found, p, atol=2.0**-32)
    assert tables.words == (2 if count > 256 else 1)


def write(folder: Path, text: str, name: str = "model.prism") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


MODULE = "module m\n s : [0..3] init 0;\n {}\nendmodule\n"
BAD = {
    "line 3, column": "dtmc\nmodule m\n s : [0..3 init 0;\nendmodule",
    "its constants N, p have no values; give them, as in --set N=3 --set p=0.5": "dtmc\nconst int N;\nconst double p;\n"
    + MODULE.format("[] s<N -> p : (s'=1) + (1-p) : (s'=2);"),
    "sum to 0.9, not to 1, in the state s=0": "dtmc\n" + MODULE.format("[] s=0 -> 0.5 : (s'=1) + 0.4 : (s'=2);"),
    "a probability is -0.5, not between 0 and 1, in the state s=2": "dtmc\n"
    + MODULE.format("[] s<3 -> (1-s)/2 : (s'=0) + (1+s)/2 : (s'=s+1);\n [] s=3 -> true;"),
    "has 2 initial states; choose one by a formula, as in --set start='s=1'": "dtmc\nmodule m\n s : [0..3];\n"
    "[] s<2 -> (s'=3);\n[] s>1 -> true;\nendmodule\ninit s<2 endinit",
    "its initial state is a deadlock": "dtmc\n" + MODULE.format("[] s=1 -> (s'=2);"),
    "it is a continuous-time Markov chain": "ctmc\n" + MODULE.format("[] s=0 -> 2 : (s'=1);"),
    "it is partially observable": "pomdp\nobservables s endobservables\n" + MODULE.format("[a] s=0 -> 1 : (s'=1);"),
    "line 1, column 1: it does not begin with the type of a model, dtmc or mdp": "this is no model",
    "line 5, column 13: Unknown variable 'z'": "dtmc\n" + MODULE.format("// z\n [] s=0 -> (z'=1);"),
    "line 4: expression for guard must evaluate to type 'bool'": "dtmc\n" + MODULE.format("[] s -> (s'=1);"),
    "a probability is inf, not between 0 and 1, in the state s=0": "dtmc\n"
    + MODULE.format("[] s<2 -> 1/s : (s'=1) + 1-1/s : (s'=2);"),
    "a probability is -0.5, not between 0 and 1, in the state s=0": "dtmc\n"
    + MODULE.format("[] s<2 -> s-0.5 : (s'=1) + 1.5-s : (s'=2);"),
    "several commands are enabled in 1 states of this chain, and rewards are given to commands (r)": "dtmc\n"
    + MODULE.format("[a] s=0 -> (s'=1);\n [b] s=0 -> (s'=2);\n [] s>0 -> true;")
    + 'rewards "r"\n [a] true : 8;\nendrewards',
    "its reward structure 'return' has the name of a built-in signal": "dtmc\n"
    + MODULE.format("[] s=0 -> (s'=1);\n [] s>0 -> true;")
    + 'rewards "return"\n s=0 : 1;\nendrewards',
    "its reward 'r' is not finite": "dtmc\n"
    + MODULE.format("[] s=0 -> (s'=1);\n [] s>0 -> true;")
    + 'rewards "r"\n s=0 : 1/s;\nendrewards',
    "its constant 'horizon' has no value, and --set horizon is a parameter": "dtmc\nconst int horizon;\n"
    + MODULE.format("[] s<horizon -> (s'=3);"),
}


@pytest.mark.extra("stormpy")
@pytest.mark.parametrize("words", BAD)
def test_a_bad_model_is_an_error_in_words(words: str, tmp_path: Path) -> None:
    with pytest.raises(DomainError) as caught:
        psyco.make(write(tmp_path, BAD[words]))
    assert words in str(caught.value)


@pytest.mark.extra("stormpy")
def test_bad_jani_and_bad_parameters_are_errors_in_words(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="line 2, column 1"):
        psyco.make(write(tmp_path, '{"jani-version":\n}', "model.jani"))
    with pytest.raises(DomainError, match=r"model\.jani: ") as listed:
        psyco.make(write(tmp_path, "[]", "model.jani"))
    assert "Storm ended" not in str(listed.value)
    with pytest.raises(psyco.PsycoError, match="max_states must be a whole number of at least 1, got 0"):
        psyco.make(DICE, max_states=0)
    with pytest.raises(DomainError, match="timed automaton"):
        psyco.make(write(tmp_path, json.dumps({"jani-version": 1, "name": "m", "type": "pta"}), "model.jani"))
    with pytest.raises(DomainError, match="which is a JSON object"):
        psyco.make(write(tmp_path, "[1, 2]", "model.jani"))
    with pytest.raises(DomainError, match=r"line 1, column 1: no JSON.* the ending .prism"):
        psyco.make(write(tmp_path, "mdp\nmodule m", "model.jani"))
    for name in ("model.jani", "model.prism"):
        (tmp_path / name).write_bytes(bytes(range(128, 256)))
        with pytest.raises(DomainError, match="it is no text in UTF-8"):
            psyco.make(str(tmp_path / name))
    with pytest.raises(DomainError, match=r"is a file, and no model by its ending: PRISM models end in .prism"):
        psyco.make(write(tmp_path, "mdp", "model.txt"))
    with pytest.raises(DomainError, match="'M' is unknown; its undefined constants are: N"):
        psyco.make(COURIER, M=3)
    with pytest.raises(DomainError, match=r"has no reward structure 'tim' .did you mean 'time'"):
        psyco.make(COURIER, N=3, reward="tim")
    with pytest.raises(DomainError, match="has changed"):
        psyco.make(COURIER, N=3, sha256="0" * 64)
    with pytest.raises(psyco.RunError, match="no file of that name"):
        psyco.make(str(tmp_path / "missing.prism"))


@pytest.mark.extra("stormpy")
def test_a_model_that_takes_too_much_time_or_memory_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "mdp\n" + MODULE.format("[] s<3 -> (s'=s+1);") + "// of this test alone")
    monkeypatch.setattr(model_file, "MAX_BYTES", 100 << 20)  # Storm itself needs more
    with pytest.raises(DomainError, match=r"too much memory|failed to map"):
        psyco.make(file)
    monkeypatch.setattr(model_file, "MAX_SECONDS", 0.01)
    with pytest.raises(DomainError, match=r"not built by Storm within 0.01 seconds"):
        psyco.make(file)


@pytest.mark.extra("stormpy")
def test_a_byte_order_mark_is_no_part_of_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.prism"
    file.write_bytes(b"\xef\xbb\xbf" + Path(DICE).read_bytes())
    file.with_suffix(".props").write_text("P=? [ F d=6 ]")
    marked = psyco.make(str(file))
    assert marked.tables.states == 13
    assert len(model_properties(marked)) == 1  # of the file beside it


@pytest.mark.extra("stormpy")
def test_a_file_must_not_choose_which_model_is_read() -> None:
    described = DomainDescription(COURIER, {"N": 3})
    assert required_trust(described) == [COURIER]
    with pytest.raises(DomainError, match="--trust"):
        make_from_description(described)
    assert make_from_description(described, [COURIER]).name == COURIER


@pytest.mark.extra("stormpy")
def test_a_domain_has_the_variables_labels_and_rewards_of_its_model() -> None:
    domain = psyco.make(COURIER, N=4, horizon=8)
    assert domain.actions == psyco.Discrete(2)
    assert domain.observation_size == 2
    assert domain.observed == {"at": (0.0, 4.0), "wet": (0.0, 1.0)}
    assert domain.ranges["time"] == (0.0, 1.0)
    assert psyco.make(domain.name, **domain.parameters) == domain
    assert psyco.make(COURIER, N=4, horizon=9) != domain
    delivered = domain.tables.signals["delivered"]
    assert list(domain.tables.variables["at"][delivered]) == [4]


@pytest.mark.extra("stormpy")
def test_every_action_is_one_of_the_offered_choices() -> None:
    domain = psyco.make(COURIER, N=4, horizon=8)
    tables = domain.tables
    (ended,) = np.flatnonzero(tables.signals["delivered"])
    state = domain.reset(None)._replace(number=np.int32(ended))
    for action in range(domain.actions.n):
        after, reward, done = domain.step(np.array([123], np.uint32), state, np.int32(action))
        assert (int(after.number), float(reward), bool(done)) == (ended, 0.0, True)
    # The second choice is the road: one street further, whatever is drawn.
    for word in (0, 2**31, 2**32 - 1):
        after, reward, _ = domain.step(np.array([word], np.uint32), domain.reset(None), np.int32(1))
        assert tables.variables["at"][int(after.number)] == 1
        assert float(reward) == 1.0


@pytest.mark.extra("stormpy")
def test_episodes_without_horizon_end_when_the_requirement_is_decided() -> None:
    chain = psyco.make(DICE)
    bound = chain.for_requirement(parse("P=? [ F d=6 ]"))
    s, d = chain.tables.variables["s"], chain.tables.variables["d"]
    never = bound.decided.states.astype(bool)
    np.testing.assert_array_equal(never, (s == 7) | np.isin(s, [1, 3, 4, 5]))  # no six from there, or thrown
    assert d[never].max() == 6
    assert chain.for_requirement(parse('P=? [ F<=4 "done" ]')).horizon == 4
    loop = psyco.make(COURIER, N=3)
    with pytest.raises(DomainError, match=r"needs a horizon.*--horizon"):
        loop.for_learning(parse('P>=0.9 [ F "delivered" ]'))
    assert loop.for_learning(parse('P>=0.9 [ F<=9 "delivered" ]')).horizon == 9


@pytest.mark.extra("stormpy")
def test_a_model_that_may_run_for_ever_needs_a_horizon(tmp_path: Path) -> None:
    text = "mdp\n" + MODULE.format("[] s=0 -> true;\n [] s=0 -> (s'=1);\n [] s>0 -> true;")
    domain = psyco.make(write(tmp_path, text))
    with pytest.raises(DomainError, match=r"Give a horizon \(--horizon N\)"):
        domain.for_requirement(parse("P=? [ F s=1 ]"))


STEP = "[] s=0 -> 0.5 : (s'=1) + 0.5 : (s'=2);\n [] s=1 -> (s'=3);\n [] s>1 -> true;"  # 3 or 2 at the end


@pytest.mark.extra("stormpy")
def test_branches_with_different_rewards_are_refused(tmp_path: Path) -> None:
    """Storm averages them, and statements about the distribution of the return would be wrong."""

    def jani(*rewards: object, index: int = 0) -> str:
        branches = [
            {
                "location": "end",
                "probability": {"exp": 0.5},
                "assignments": [{"ref": "r", "value": reward, "index": index}],
            }
            for reward in rewards
        ]
        edges = [
            {"location": "start", "destinations": branches},
            {"location": "end", "destinations": [{"location": "end"}]},
        ]
        where = [{"name": "start"}, {"name": "end"}]
        automaton = {"name": "A", "locations": where, "initial-locations": ["start"], "variables": [], "edges": edges}
        content = {
            "jani-version": 1, "name": "m", "type": "dtmc", "actions": [], "constants": [], "properties": [],
            "variables": [{"name": "r", "type": "real", "transient": True, "initial-value": 0}],
            "automata": [automaton], "system": {"elements": [{"automaton": "A"}], "syncs": []},
        }  # fmt: skip
        return write(tmp_path, json.dumps(content), "model.jani")

    assert list(psyco.make(jani(4, 4)).tables.rewards) == ["r"]
    with pytest.raises(DomainError, match=r"of an edge of 'A', from 'start', differ in their rewards"):
        psyco.make(jani(8, 4))
    # The reward of one state in which several commands are enabled is no average.
    text = "dtmc\n" + MODULE.format("[] s=0 -> (s'=1);\n [] s=0 -> (s'=2);\n [] s>0 -> true;")
    chain = psyco.make(write(tmp_path, text + 'rewards "r"\n s=0 : 8;\nendrewards'))
    assert chain.tables.rewards["r"].max() == 8
    assert "overlap_guards" not in chain.tables.labels


@pytest.mark.extra("stormpy")
def test_an_expected_value_until_a_state_that_may_be_missed_is_refused(tmp_path: Path) -> None:
    text = "dtmc\n" + MODULE.format(STEP) + 'rewards "r"\n s<2 : 1;\nendrewards'
    chain = psyco.make(write(tmp_path, text))
    with pytest.raises(DomainError, match="is infinite: s = 3 is missed with positive probability"):
        chain.for_requirement(parse('R{"r"}=? [ F s=3 ]'))
    with pytest.raises(DomainError, match="variables and labels"):
        chain.for_requirement(parse('R{"r"}=? [ F return>=2 ]'))
    assert chain.for_requirement(parse('R{"r"}=? [ F s>=2 ]')).decided is not None
    ended = psyco.make(chain.name, until="s=1")
    with pytest.raises(DomainError, match="is infinite"):
        ended.for_requirement(parse('R{"r"}=? [ F s>=2 ]'))


@pytest.mark.extra("stormpy")
def test_a_reward_at_an_instant_is_refused(tmp_path: Path) -> None:
    text = "dtmc\n" + MODULE.format(STEP) + 'rewards "r"\n s<2 : 1;\nendrewards'
    for horizon in (None, 5):
        chain = psyco.make(write(tmp_path, text), horizon=horizon)
        for body in ('"r"', "reward"):
            with pytest.raises(RequirementError, match="at one instant"):
                chain.for_requirement(parse(f"R{{{body}}}=? [ I=1 ]"))
        chain.for_requirement(parse("R{s}=? [ I=1 ]"))


@pytest.mark.extra("stormpy")
def test_integers_that_float32_lacks_are_refused_in_compiled_episodes(tmp_path: Path) -> None:
    text = "dtmc\nmodule m\n s : [0..20000000] init 16777217;\n [] s>0 -> (s'=0);\n [] s=0 -> true;\nendmodule"
    chain = psyco.make(write(tmp_path, text))
    chain.for_requirement(parse("P=? [ G s!=16777216 ]"))
    with pytest.raises(DomainError, match=r"variable s .* above 2\^24"):
        psyco.make(chain.name, horizon=3)
    with pytest.raises(DomainError, match=r"above 2\^24"):
        chain.for_learning(parse("P>=0.5 [ F<=2 s=0 ]"))


@pytest.mark.extra("stormpy")
def test_properties_with_other_filters_or_that_storm_cannot_read_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "dtmc\n" + MODULE.format(STEP))
    lines = {
        "plain": "P=? [ F s=3 ]",
        "first": 'filter(max, P=? [ F s=3 ], "init")',
        "least": 'filter(min, P=? [ F s=3 ], "init")',
        "all": "filter(min, P=? [ F s=3 ], s=1)",
    }
    write(tmp_path, ";\n".join(f'"{name}": {text}' for name, text in lines.items()), "model.props")
    assert {each.name: bool(each.refused) for each in model_properties(psyco.make(file))} == {
        "plain": False, "first": False, "least": False, "all": True
    }  # fmt: skip
    write(tmp_path, "P=? [ F s=3 ];\nthis is no property", "model.props")
    psyco._src.envs.model_file._built.cache_clear()
    (unread,) = model_properties(psyco.make(file))
    assert (unread.name, bool(unread.refused)) == ("model.props", True)
    assert "Storm cannot read this file" in unread.text


@pytest.mark.extra("stormpy")
def test_constants_have_the_types_of_the_model(tmp_path: Path) -> None:
    text = "// ctmc version\ndtmc\nconst double p;\nconst int N;\nmodule m\n csg : [0..3] init 0;\n"
    file = write(
        tmp_path, text + " [] csg=0 ->\n p : (csg'=1) + (1-p) : (csg'=2);\n [] csg>0 & N>0 -> true;\nendmodule"
    )
    assert psyco.make(file, p=1, N=1).tables.states == 2
    with pytest.raises(DomainError, match="'N' is a 64-bit integer, got 1000000000000000000000"):
        psyco.make(file, p=0.5, N=10**21)
    with pytest.raises(DomainError, match=r"'N' is a 64-bit integer, got 0.5"):
        psyco.make(file, p=0.5, N=0.5)
    with pytest.raises(DomainError, match="'p' is a number, got True"):
        psyco.make(file, p=True, N=1)


@pytest.mark.extra("stormpy")
def test_start_and_until_are_checked_and_init_is_a_label(tmp_path: Path) -> None:
    file = write(tmp_path, "dtmc\n" + MODULE.format(STEP))
    assert np.flatnonzero(psyco.make(file).tables.signals["init"]).tolist() == [psyco.make(file).initial_state]
    for parameter in ("start", "until"):
        for text, words in {
            "x=1": "unknown signal 'x'",
            "F s=1": "about one state",
            "reward=0": "unknown",
            "s": "s",
        }.items():
            with pytest.raises(psyco.PsycoError, match=words):
                psyco.make(file, **{parameter: text})
