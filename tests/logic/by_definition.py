"""A reference implementation of the semantics, state by state from the appendices; it shares no code with the monitor.

A path is a dict of arrays; position i stands for state min(i, n), because the last state repeats.
"""

import functools
import math
import operator

from psyco._src.logic import ast as f

COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def value(term, path, i):
    match term:
        case f.Number(x):
            return x
        case f.Signal("step"):
            return float(i)
        case f.Signal(name, None):
            return float(path[name][i])
        case f.Signal(name, index):
            return float(path[name][i][index])
        case f.Minus(body):
            return -value(body, path, i)
        case f.Arith("/", left, right):
            x, y = value(left, path, i), value(right, path, i)
            if y == 0:
                return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, x)
            return x / y
        case f.Arith(op, left, right):
            x, y = value(left, path, i), value(right, path, i)
            return {"+": operator.add, "-": operator.sub, "*": operator.mul}[op](x, y)
        case f.Call(function, arguments):
            numbers = [value(each, path, i) for each in arguments]
            if any(map(math.isnan, numbers)):
                return math.nan
            return {"abs": lambda x: abs(x[0]), "min": min, "max": max}[function](numbers)
        case f.Aggregate("count", body):
            return float(len([k for k in range(i + 1) if satisfied(body, path, k)]))
        case f.Aggregate(function, body):
            numbers = [value(body, path, k) for k in range(i + 1)]
            total = functools.reduce(operator.add, numbers)  # `sum` of Python 3.12 rounds in another way
            if any(map(math.isnan, numbers)):
                return math.nan
            return {"sum": total, "mean": total / (i + 1), "least": min(numbers), "most": max(numbers)}[function]


def seen_by_agents(path):
    """The paths in which `agent.x` is the x of agent_0, of agent_1, and so on."""
    agents = {name.partition(".")[0] for name in path if name.startswith("agent_")}
    for agent in agents:
        own = {name.replace(agent, "agent"): values for name, values in path.items() if name.startswith(f"{agent}.")}
        yield path | own


def satisfied(formula, path, i=0):
    """Appendix A, with quantifiers over positions of the infinite path that stays in its last state."""
    n = len(path["x"]) - 1
    i = min(i, n)

    def until(left, right, bound, sign=True):
        lower, upper = (bound.lower, bound.upper) if bound else (0, n - i)
        return any(
            satisfied(right, path, j) == sign and all(satisfied(left, path, k) == sign for k in range(i, j))
            for j in range(i + lower, i + upper + 1)
        )

    match formula:
        case f.Bool(truth):
            return truth
        case f.Label("end"):
            return i == n
        case f.Label(name) | f.Signal(name):
            return bool(path[name][i])
        case f.Compare(op, left, right):
            return COMPARE[op](value(left, path, i), value(right, path, i))
        case f.Not(body):
            return not satisfied(body, path, i)
        case f.Connective("&", operands):
            return all(satisfied(each, path, i) for each in operands)
        case f.Connective("|", operands):
            return any(satisfied(each, path, i) for each in operands)
        case f.Connective("=>", (left, right)):
            return not satisfied(left, path, i) or satisfied(right, path, i)
        case f.Connective("<=>", (left, right)):
            return satisfied(left, path, i) == satisfied(right, path, i)
        case f.Quantified(quantifier, body):
            return {"each": all, "any": any}[quantifier](satisfied(body, own, i) for own in seen_by_agents(path))
        case f.Temporal("X", (body,)):
            return satisfied(body, path, i + 1)
        case f.Temporal("F", (body,), bound):
            return until(f.Bool(True), body, bound)
        case f.Temporal("G", (body,), bound):
            return not until(f.Bool(False), body, bound, sign=False)
        case f.Temporal("U", (left, right), bound):
            return until(left, right, bound)
        case f.Temporal("W", (left, right), bound):
            last = i + bound.upper if bound else n
            return until(left, right, bound) or all(satisfied(left, path, k) for k in range(i, last + 1))
        case f.Temporal("R", (left, right), bound):
            return not until(left, right, bound, sign=False)


def measured(quantity, path):
    """The value of a quantity by docs/language.md, and whether its target state was reached."""
    n = len(path["x"]) - 1

    def reward(i):
        body = quantity.body
        if isinstance(body, f.Label) and body.name != "end":
            body = f.Signal(body.name)  # a name in quotes may be a number here
        return value(body, path, i) if f.is_term(body) else float(satisfied(body, path, i))

    match quantity.over:
        case f.Instant(k):
            return reward(min(k, n)), True
        case f.Total(None) | f.LongRun():
            last = n
        case f.Total(k):
            last = min(k, n)
        case f.Reaching(body):
            last = next((i for i in range(n + 1) if satisfied(body, path, i)), None)
            if last is None:
                return sum(reward(i) for i in range(1, n + 1)), False
    return sum(reward(i) for i in range(1, last + 1)), True


def cost(formula, path, i=0, negated=False):
    """Appendix B, extended by: a state formula costs 0 or 1, ∧ adds, ∨ multiplies, temporal operators unroll."""
    n = len(path["x"]) - 1
    i = min(i, n)

    def c(each, j=i, flip=False):
        return cost(each, path, j, negated != flip)

    if f.is_state_formula(formula):
        return float(satisfied(formula, path, i) == negated)
    match formula:
        case f.Not(body):
            return c(body, flip=True)
        case f.Connective("&" | "|" as operator, operands):
            adds = (operator == "&") != negated
            return (sum if adds else math.prod)(c(each) for each in operands)
        case f.Connective("=>", (left, right)):
            return c(f.Connective("|", (f.Not(left), right)))
        case f.Connective("<=>", (left, right)):
            other = f.Not(right) if negated else right
            one, two = f.Connective("&", (left, other)), f.Connective("&", (f.Not(left), f.Not(other)))
            return cost(one, path, i) * cost(two, path, i)
        case f.Quantified(quantifier, body):
            adds = (quantifier == "each") != negated
            return (sum if adds else math.prod)(cost(body, own, i, negated) for own in seen_by_agents(path))
        case f.Temporal("X", (body,)):
            return c(body, i + 1)
        case f.Temporal("F", (body,), bound):
            return c(f.Temporal("U", (f.Bool(True), body), bound))
        case f.Temporal("G", (body,), bound):
            return c(f.Temporal("R", (f.Bool(False), body), bound))
    left, right = formula.operands
    weak = (formula.operator in "WR") != negated
    like_until = (formula.operator in "UW") != negated

    def unrolled(j, wait, left_steps):
        def later():
            return unrolled(j + 1, max(wait - 1, 0), left_steps - 1) if left_steps else float(not weak)

        if wait:
            return c(left, j) + later() if like_until else c(left, j) * later()
        if like_until:
            return c(right, j) * (c(left, j) + later())
        return c(right, j) + c(left, j) * later()

    return unrolled(i, *((formula.bound.lower, formula.bound.upper) if formula.bound else (0, n - i)))
