"""Exact answers: backward induction, Storm, Monte Carlo and a plain linear program agree."""

import jax
import numpy as np
import pytest
from scipy import optimize, stats

import psyco
from psyco._src.core.errors import DomainError, RequirementError, RunError
from psyco._src.exact.model_export import write_unfolding
from psyco._src.exact.solver import constrained_optimum, evaluate
from psyco._src.exact.unfold import unfold
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.episode_stream import sample_episodes

pytestmark = pytest.mark.slow  # enumerates, and asks Storm

exact = psyco.exact
SMALL = psyco.make("obstacle-run", grid=3, horizon=7)
BOUNDED = "G (!caught | collisions <= 1)"


def random_policy(seed, domain=SMALL):
    network = network_for(domain)
    return policy_for(domain, network, network.init(jax.random.key(seed)))


def chain(text, policy, domain=SMALL):
    return unfold(domain, [psyco.parse_formula(text)], policy)


FORMULAS = [
    "X caught",
    "F caught",
    "G !caught",
    "!caught U target",
    "!caught W target",
    "target R !caught",
    "F<=4 caught",
    "F[2,4] caught",
    "G<=5 !caught",
    "G[1,3] !caught",
    "!target U<=3 caught",
    "!target U[1,4] caught",
    "!target W[2,4] caught",
    "caught R[1,3] !target",
    "!(X caught) | (F<=3 target)",
    "(F caught) <=> (F<=3 target)",
    "(F caught) => (F target)",
    "G (caught => F<=2 !caught)",
    "F (caught & X caught)",
    "F (caught & (X (!caught U<=2 target)))",
    'F ("end" & return >= -4)',
    'G F "end"',
    "G (step <= 3 | agent[0] <= 1)",
    "G (abs(agent[0] - obstacle[0]) + collisions * 2 <= 4)",
    "F (action = 1 & X (action != 1))",
    "G (X (reward < 0))",
    "G (count(caught) <= 1)",
    "F (count(distance <= 1) - 2 * count(caught) >= 3)",
    'F ("end" & sum(distance) <= 9 & mean(agent[0]) < 1)',
    "G (least(target_distance) > 0 | most(distance - 1) <= 2)",
    "(count(caught) <= 1) U (sum(reward) <= -3)",
    BOUNDED,
]


@pytest.mark.more
def test_backward_induction_is_the_sum_over_all_paths_that_monte_carlo_estimates():
    """5000 episodes; each value lies in its Clopper-Pearson interval but for a chance of 2e-8, all but for 1e-6."""
    policy = random_policy(3)
    require = "; ".join(f"P>=0 [ {text} ]" for text in FORMULAS)
    own = evaluate(unfold(SMALL, [c.formula for c in psyco.parse(require).constraints], policy))
    sampler = make_sampler(SMALL, policy.network, psyco.parse(require))
    batches = sample_episodes(sampler, policy.theta, stream_key(0, Stream.RECORD), 5000)
    satisfied = np.concatenate([batch.satisfied for batch in batches]).sum(axis=0)
    for text, p, count in zip(FORMULAS, own.probabilities, satisfied.tolist(), strict=True):
        interval = stats.binomtest(count, 5000).proportion_ci(1 - 2e-8, method="exact")
        assert interval.low <= p <= interval.high, text


@pytest.mark.extra("stormpy")
@pytest.mark.parametrize("seed", [0, 3])
def test_storm_agrees_to_1e_9_on_all_operators(seed):
    from psyco._src.exact.storm import storm_value

    policy = random_policy(seed)
    for text in FORMULAS:
        own, other = evaluate(chain(text, policy)), storm_value(policy, SMALL, f"P>=0.5 [ {text} ]")
        assert own.probabilities[0] == pytest.approx(other.probabilities[0], abs=1e-9), text
        assert own.expected_return == pytest.approx(other.expected_return, abs=1e-9), text


@pytest.mark.extra("stormpy")
@pytest.mark.full
def test_monte_carlo_backward_induction_and_storm_agree_on_the_paper_s_obstacle_run():
    """10^6 episodes; fails by chance with probability 1e-6."""
    from psyco._src.exact.storm import storm_value

    domain = psyco.make("obstacle-run")
    policy = random_policy(3, domain)
    own = evaluate(unfold(domain, [psyco.parse_formula(BOUNDED)], policy))
    other = storm_value(policy, domain, domain.requirement)
    assert own.probabilities[0] == pytest.approx(other.probabilities[0], abs=1e-9)
    assert own.expected_return == pytest.approx(other.expected_return, abs=1e-9)
    sampled = psyco.verify(policy, domain, domain.requirement, method="fixed", max_episodes=10**6).findings[0]
    interval = stats.binomtest(sampled.satisfied, sampled.episodes).proportion_ci(1 - 1e-6, method="exact")
    assert interval.low <= own.probabilities[0] <= interval.high
    assert interval.high - interval.low < 0.01


def test_counters_stop_where_the_formula_cannot_tell():
    policy = random_policy(3)
    by_counter = chain("G collisions <= 1", policy)
    spelt_out = chain("G (collisions - 0 * step <= 1)", policy)  # arithmetic: every value is kept
    assert by_counter.nodes <= spelt_out.nodes
    assert evaluate(by_counter).probabilities == pytest.approx(evaluate(spelt_out).probabilities, abs=1e-12)
    assert chain("G !caught", policy).nodes < by_counter.nodes


def test_a_count_from_the_first_step_on_is_the_counter_of_the_domain():
    policy = random_policy(3)
    own, counted = chain(BOUNDED, policy), chain("G (!caught | count(step > 0 & caught) <= 1)", policy)
    assert counted.nodes == own.nodes
    assert evaluate(counted) == evaluate(own)


def test_counts_stop_where_the_formula_cannot_tell():
    policy = random_policy(3)
    few, more, all_of_them = (
        chain(f'F ("end" & count(distance <= 1) {comparison})', policy).nodes
        for comparison in ("<= 1", "<= 3", "- 0 * step <= 1")
    )
    assert few < more < all_of_them


def test_sums_of_fractions_have_no_exact_answer():
    says = r"sum\(1 / \(obs\[0\] \+ 1\)\) has the value 0.5(.|\n)*sum whole numbers"
    with pytest.raises(RequirementError, match=says) as caught:
        chain("F (sum(1 / (obs[0] + 1)) > 3)", random_policy(3))
    assert caught.value.column == 4
    halves, whole = (
        evaluate(chain(text, random_policy(3))) for text in ("F (sum(distance / 2) > 3)", "F (sum(distance) > 6)")
    )
    assert halves == whole  # a constant factor makes no fractions


def test_the_return_is_the_same_whatever_is_asked():
    policy = random_policy(3)
    values = {round(evaluate(chain(text, policy)).expected_return, 10) for text in FORMULAS[:4]}
    assert len(values) == 1


def occupation_measures(graph, p_req):
    """Solve the linear program directly: flow through every node and action, with the constraint as one more row."""
    first = np.cumsum([0, *(len(layer.state) for layer in graph.layers)])
    actions, variables = graph.actions, first[-1] * graph.actions
    flow, right = np.zeros((first[-1], variables)), np.zeros(first[-1])
    right[: len(graph.start)] = graph.start
    reward, satisfied = np.zeros(variables), np.zeros(variables)
    for offset, below, layer in zip(first[:-1], first[1:], graph.layers, strict=True):
        for node in range(len(layer.state)):
            for a in range(actions):
                column = (offset + node) * actions + a
                flow[offset + node, column] = 1.0
                if layer.final[node]:
                    satisfied[column] = layer.satisfied[node, 0]
                else:
                    reward[column] = layer.reward[node, a] @ graph.draw_probabilities
                    for chance, to in zip(graph.draw_probabilities, layer.successor[node, a], strict=True):
                        flow[below + to, column] -= chance
    found = optimize.linprog(-reward, A_ub=[-satisfied], b_ub=[-p_req], A_eq=flow, b_eq=right, method="highs")
    return -found.fun if found.success else None


@pytest.mark.parametrize("p_req", [0.5, 0.96, 0.97, 0.985, 0.99, 0.9999])
def test_the_optimum_is_that_of_the_linear_program_over_occupation_measures(p_req):
    domain = psyco.make("obstacle-run", grid=3, horizon=4)
    plain = occupation_measures(unfold(domain, [psyco.parse_formula(BOUNDED)]), p_req)
    found = constrained_optimum(domain, f"P>={p_req} [ {BOUNDED} ]")
    if plain is None:
        assert found is None
    else:
        assert found.expected_return == pytest.approx(plain, abs=1e-7)
        assert found.probabilities[0] >= p_req - 1e-9


def test_the_optimum_binds_where_safety_costs_return():
    free = constrained_optimum(SMALL, "Rmax=? [ C ]").expected_return
    bound = constrained_optimum(SMALL, f"P>=0.99 [ {BOUNDED} ]")
    assert bound.expected_return < free - 0.01
    assert bound.probabilities[0] == pytest.approx(0.99, abs=1e-9)
    two = constrained_optimum(SMALL, f"P>=0.99 [ {BOUNDED} ]; P<=0.5 [ F<=2 target ]")
    assert two.expected_return < bound.expected_return
    assert two.probabilities == pytest.approx((0.99, 0.5), abs=1e-9)
    worst = constrained_optimum(SMALL, "Rmin=? [ C ]").expected_return
    assert worst == pytest.approx(-7, abs=1e-9)  # stay away from the target all the time; the start is not the end


@pytest.mark.more
def test_the_optimum_of_the_paper_s_obstacle_run_is_the_shortest_path():
    """Its distance to the target is 4 on average, and 1/25 of the starts stand on it and need one step more."""
    domain = psyco.make("obstacle-run")
    found = constrained_optimum(domain, domain.requirement)
    assert found.expected_return == pytest.approx(-4.04, abs=1e-9)
    assert found.probabilities[0] > 0.97


def test_an_exact_answer_says_verdict_value_optimum_and_gap():
    policy = random_policy(3)
    low = exact(policy, SMALL, f"P>=0.5 [ {BOUNDED} ]")
    assert low.verdict.name == "SATISFIED" and low.guarantee.kind == "exact"
    assert low.gap == pytest.approx(low.optimum.expected_return - low.value.expected_return)
    high = exact(policy, SMALL, f"P>=1 [ {BOUNDED} ]")
    assert high.verdict.name == "VIOLATED" and high.optimum is None and high.gap is None


def test_a_policy_is_given_in_any_way_that_verify_takes(tmp_path):
    policy, require = random_policy(3), f"P>=0.5 [ {BOUNDED} ]"
    policy.save(tmp_path / "p.safetensors")
    expected = exact(policy, SMALL, require)
    assert exact(str(tmp_path / "p.safetensors"), SMALL, require) == expected
    assert exact(lambda observation: int(policy(observation)), SMALL, require) == expected
    assert exact(lambda observation: 0, SMALL, require) != expected


@pytest.mark.extra("stormpy")
def test_storm_takes_a_policy_in_any_way_that_verify_takes(tmp_path):
    from psyco._src.exact.storm import storm_value

    policy, require = random_policy(3), f"P>=0.5 [ {BOUNDED} ]"
    assert storm_value(lambda x: int(policy(x)), SMALL, require) == storm_value(policy, SMALL, require)


def test_a_policy_that_fails_says_how():
    with pytest.raises(RunError, match="the policy failed: ZeroDivisionError"):
        exact(lambda observation: 1 // 0, SMALL, "P>=0.5 [ F caught ]")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    policy = random_policy(3)
    write_unfolding(chain(BOUNDED, policy), folder / "chain")
    write_unfolding(unfold(SMALL, [psyco.parse_formula(BOUNDED)]), folder / "mdp")
    return folder


@pytest.mark.extra("stormpy")
def test_storm_reads_the_exported_chain_back_to_the_same_numbers(exported):
    import stormpy

    own = evaluate(chain(BOUNDED, random_policy(3)))
    files = [str(exported / f"chain.{suffix}") for suffix in ("prism", "drn", "tra", "lab", "rew")]
    models = [
        stormpy.build_model(stormpy.parse_prism_program(files[0])),
        stormpy.build_model_from_drn(files[1]),
        stormpy.build_model_from_explicit(files[2], files[3], transition_rewards=files[4]),
    ]
    for model, name in zip(models, ('{"total"}', '{"total"}', ""), strict=True):
        values = []
        for text in ('P=? [ F "satisfied" ]', f'R{name}=? [ F "end" ]'):
            (asked,) = stormpy.parse_properties(text)
            values.append(stormpy.model_checking(model, asked).get_value(model.initial_states[0]))
        assert values == pytest.approx([own.probabilities[0], own.expected_return], abs=1e-9)


@pytest.mark.extra("stormpy")
def test_storm_reads_the_exported_decision_process_back_and_finds_the_same_optimum(exported):
    import stormpy

    own = constrained_optimum(SMALL, f"P>=0.99 [ {BOUNDED} ]").expected_return
    free = constrained_optimum(SMALL, "Rmax=? [ C ]").expected_return

    def ask(model, text):
        (asked,) = stormpy.parse_properties(text)
        return stormpy.model_checking(model, asked).get_value(model.initial_states[0])

    multi = 'multi(R{"total"}max=? [ F "end" ], P>=0.99 [ F "satisfied" ])'
    program = stormpy.parse_prism_program(str(exported / "mdp.prism"))
    for model in (stormpy.build_model(program), stormpy.build_model_from_drn(str(exported / "mdp.drn"))):
        assert ask(model, 'R{"total"}max=? [ F "end" ]') == pytest.approx(free, abs=1e-6)
        assert ask(model, multi) == pytest.approx(own, abs=1e-4)  # Storm's default precision for several objectives
    tra, lab, rew = (str(exported / f"mdp.{suffix}") for suffix in ("tra", "lab", "rew"))
    costs = stormpy.build_model_from_explicit(tra, lab, transition_rewards=rew)
    assert ask(costs, 'Rmin=? [ F "end" ]') == pytest.approx(-free, abs=1e-6)


def test_the_list_of_states_fits_the_transitions(exported):
    states = (exported / "chain.sta").read_text().splitlines()
    assert states[0] == "(step,state)" and states[1] == "0:(-1,-1)"
    sources = {int(line.split()[0]) for line in (exported / "chain.tra").read_text().splitlines()[1:]}
    assert sources == set(range(len(states) - 1))


def test_a_domain_that_cannot_be_enumerated_is_refused():
    with pytest.raises(DomainError, match="no exact answers"):
        unfold(psyco.make("particle-dance"), [])


def test_a_requirement_that_does_not_fit_is_refused():
    with pytest.raises(RequirementError, match="unknown signal 'caugth'"):
        exact(random_policy(0), SMALL, "P>=0.5 [ G !caugth ]")
    with pytest.raises(RequirementError, match="horizon"):
        exact(random_policy(0), SMALL, "P>=0.5 [ G<=9 !caught ]")


def test_only_a_chain_has_a_value():
    with pytest.raises(RunError, match="decision process"):
        evaluate(unfold(SMALL, [psyco.parse_formula(BOUNDED)]))
