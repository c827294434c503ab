"""Export of a policy, and of the monitor of its requirement, as C99 without dependencies."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.envs.variants import observed_parameters
from psyco._src.logic.ast import Requirement
from psyco._src.logic.c_monitor import MonitorSource, c_array, c_comment, c_literal, c_monitor
from psyco._src.policies.image_network import ImageNetwork
from psyco._src.policies.joint_network import several_agents
from psyco._src.policies.network import NOT_OFFERED
from psyco._src.policies.serialization import Policy
from psyco.version import __version__

NO_SHIELD = "a policy with a shield is not exported: psyco.runtime runs it, by policy.begin().act(observation)"
HEADER, SOURCE, TEST = "psyco_policy.h", "psyco_policy.c", "psyco_test.c"


def c_files(
    policy: Policy,
    requirement: Requirement | None = None,
    *,
    horizon: int | None = None,
    counters: Collection[str] = (),
) -> dict[str, str]:
    """Return header, source and a small test program, by file name.

    Args:
        policy: one of PSyCo's own policies.
        requirement: the requirement of the exported monitor; None: no monitor.
        horizon: maximum steps of an episode.
        counters: signals that never decrease.
    """
    if policy.shield is not None:
        raise RunError(NO_SHIELD)
    if policy.network.recurrent:
        raise RunError(
            "a policy with a memory is not exported as C: psyco.runtime runs it, by policy.begin().act(observation), "
            "and an ONNX file has its memory as input and output (psyco export RUN --onnx FILE)"
        )
    if isinstance(policy.network, ImageNetwork):
        raise RunError(
            "a policy that observes images is not exported as C: psyco.runtime runs it, and an ONNX file has its "
            "convolutions (psyco export RUN --onnx FILE)"
        )
    if policy.agents:
        raise RunError(several_agents(policy.agents))
    monitor = None
    if requirement is not None and requirement.probability_constraints:
        monitor = c_monitor(requirement, horizon=horizon, counters=counters)
    about = f"A policy for {c_comment(policy.domain)}, sha256:{policy.digest}. Written by PSyCo {__version__}."
    return {
        HEADER: _header(policy, about, monitor),
        SOURCE: _source(policy, about, monitor),
        TEST: _test(policy, monitor),
    }


def _header(policy: Policy, about: str, monitor: MonitorSource | None) -> str:
    c_type = _c_type(policy.actions)
    return f"""\
/* {about}

   C99; no allocation, no global state, and of the mathematical library tanhf and fabsf alone. */

#ifndef PSYCO_POLICY_H
#define PSYCO_POLICY_H

#include <stdint.h>

/* ---- the policy ---- */

#define PSYCO_INPUTS {policy.network.inputs} /* numbers of an observation{_observed(policy)}{_mask_comment(policy)} */
#define PSYCO_ACTIONS {policy.actions.size or 1} /* numbers of an action */

/* The action for an observation: {_action_comment(policy.actions)}. */
void psyco_act(const float observation[PSYCO_INPUTS], {c_type} action[PSYCO_ACTIONS]);
{monitor.header if monitor else ""}
#endif
"""


def _observed(policy: Policy) -> str:
    """Return the comment on parameters of the environment that the policy observes; empty: none."""
    names = observed_parameters(policy.parameters)
    return f"; the last ones are parameters of the environment: {c_comment(', '.join(names))}" if names else ""


def _source(policy: Policy, about: str, monitor: MonitorSource | None) -> str:
    network = policy.network
    arrays: dict[str, NDArray[Any]] = {}
    for k, (weight, bias) in enumerate(network.weights_and_biases(policy.theta), 1):
        arrays |= {f"w{k}": weight, f"b{k}": bias}
    x = "observation[i]"
    if network.scale:
        arrays |= {"shift": np.array(network.shift), "scale": np.array(network.scale)}
        x = "((observation[i] - shift[i]) / scale[i])"
    elif network.indexed:
        x = "(float)((int)observation[0] == i)"
    elif len(network.one_hot) > 1:
        strides = [math.prod(network.one_hot[k + 1 :]) for k in range(len(network.one_hot))]
        firsts = accumulate((0, *network.one_hot[:-1]))
        x = " * ".join(
            f"observation[{first} + i / {stride} % {size}]"
            for first, stride, size in zip(firsts, strides, network.one_hot, strict=True)
        )
    if isinstance(policy.actions, Continuous):
        low, high = np.array(policy.actions.low, np.float32), np.array(policy.actions.high, np.float32)
        arrays |= {"low": low, "width": high - low}
    numbers = "\n".join(_array(name, values) for name, values in arrays.items())
    widths = [*network.layers, network.outputs]
    names = [*(f"hidden{k}" for k in range(1, len(widths))), "y"]
    sources = [(x, network.features), *((f"{name}[i]", n) for name, n in zip(names, widths, strict=False))]
    declared = ", ".join(f"{name}[{n}]" for name, n in zip(names, widths, strict=True))
    layers = "\n".join(
        _layer(k, *source, name, n) for k, (source, name, n) in enumerate(zip(sources, names, widths, strict=False), 1)
    )
    return f"""\
/* {about} */

#include "{HEADER}"

#include <math.h>

/* ---- the policy ---- */

#define OUTPUTS {network.outputs}

{numbers}
void psyco_act(const float observation[PSYCO_INPUTS], {_c_type(policy.actions)} action[PSYCO_ACTIONS])
{{
    float {declared};
    int i, j;

{layers}
{_mask_code(policy)}{_decode_code(policy.actions)}
}}

{monitor.source if monitor else ""}"""


def _mask_comment(policy: Policy) -> str:
    if not policy.network.masked:
        return ""
    return f"; the last {policy.network.outputs} are the action mask, 1 for actions that are offered"


def _mask_code(policy: Policy) -> str:
    """Return the code that gives actions that the mask excludes a score below all others."""
    if not policy.network.masked:
        return ""
    return f"""\
    for (j = 0; j < OUTPUTS; j++)
        if (!(observation[{policy.network.observed} + j] > 0.5f))
            y[j] = {NOT_OFFERED:g}f;
"""


def _layer(k: int, x: str, inputs: int, to: str, width: int) -> str:
    """Return the code of layer k: weighted sums of x, the bias, and relu unless it is the last layer."""
    relu = "" if to == "y" else f"\n        if ({to}[j] < 0.0f)\n            {to}[j] = 0.0f;"
    return f"""\
    for (j = 0; j < {width}; j++)
        {to}[j] = 0.0f;
    for (i = 0; i < {inputs}; i++) {{
        const float x = {x};
        for (j = 0; j < {width}; j++)
            {to}[j] += x * w{k}[i * {width} + j];
    }}
    for (j = 0; j < {width}; j++) {{
        {to}[j] += b{k}[j];{relu}
    }}"""


def _array(name: str, values: NDArray[Any]) -> str:
    texts = [c_literal(float(each), "float").strip("()") for each in np.asarray(values, np.float32).ravel()]
    return c_array("float", f"{name}[{len(texts)}]", texts)


def _c_type(actions: Actions) -> str:
    return "float" if isinstance(actions, Continuous) else "int32_t"


def _action_comment(actions: Actions) -> str:
    match actions:
        case Continuous():
            return "numbers within their range"
        case Discrete(n):
            return f"0 to {n - 1}"
        case MultiDiscrete(n):
            return f"the i-th below {', '.join(map(str, n))}"
        case MultiBinary():
            return "0 or 1 each"


def _decode_code(actions: Actions) -> str:
    """Return the code of the action space's `decode`."""
    match actions:
        case Continuous():
            return """\
    for (i = 0; i < OUTPUTS; i++)
        action[i] = low[i] + (tanhf(y[i]) + 1.0f) * 0.5f * width[i];"""
        case MultiBinary():
            return """\
    for (i = 0; i < OUTPUTS; i++)
        action[i] = y[i] > 0.0f;"""
        case Discrete(n):
            sizes: tuple[int, ...] = (n,)
        case MultiDiscrete(n):
            sizes = n
    choices = [
        _argmax_code(k, end - size, end) for k, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True))
    ]
    return "\n".join(choices)


def _argmax_code(k: int, first: int, end: int) -> str:
    """Return the code of action k: the index of the first maximum among scores first to end-1."""
    return f"""\
    for (i = j = {first}; i < {end}; i++)
        if (y[i] > y[j])
            j = i;
    action[{k}] = j - {first};"""


def _test(policy: Policy, monitor: MonitorSource | None) -> str:
    """Return a program that reads states and prints actions and outlooks, to compare them with Python."""
    number, cast = ("%.9g", "double") if isinstance(policy.actions, Continuous) else ("%ld", "long")
    columns, output = ["1 for the last state of an episode or else 0", "the observation"], "the action"
    begin, watch = "", "        (void)end;"
    if monitor is not None:
        columns += [name for name, _ in monitor.signals]
        output += "; then for every constraint the outlook, and the step at which it was decided"
        begin = "    psyco_monitor monitor;\n    psyco_signals signals;\n\n    psyco_start(&monitor);"
        watch = "\n".join([*(_read(signal, f"signals.{name}") for signal, name in monitor.signals), WATCH])
    return f"""\
/* Reads states, one per line: {c_comment(", ".join(columns))}.
   Prints for each {output}.

   cc -std=c99 {SOURCE} {TEST} -lm -o psyco_test */

#include "{HEADER}"

#include <stdio.h>

/* The input, from `state` on, is not as described above. */
static int wrong(long state, const char *expected)
{{
    fprintf(stderr, "state %ld of the input: %s is missing or is no number\\n", state, expected);
    return 1;
}}

int main(void)
{{
    float observation[PSYCO_INPUTS];
    {_c_type(policy.actions)} action[PSYCO_ACTIONS];
    long state = 0;
    int read, end, i;
{begin}
    while ((read = scanf("%d", &end)) == 1) {{
        state++;
        for (i = 0; i < PSYCO_INPUTS; i++)
            if (scanf("%f", &observation[i]) != 1)
                return wrong(state, "a number of the observation");
        psyco_act(observation, action);
        for (i = 0; i < PSYCO_ACTIONS; i++)
            printf("{number} ", ({cast})action[i]);
{watch}
        printf("\\n");
    }}
    return read == EOF ? 0 : wrong(state + 1, "0 or 1 for the last state");
}}
"""


def _read(signal: str, place: str) -> str:
    name = re.sub(r"[^\w.\[\]]", "_", signal, flags=re.ASCII)  # nothing that C would interpret in a text
    return f"""\
        if (scanf("%f", &{place}) != 1)
            return wrong(state, "the signal {name}");"""


WATCH = """\
        if (psyco_update(&monitor, &signals, end) != 0) {
            fprintf(stderr, "state %ld of the input: a signal is not a finite number\\n", state);
            return 1;
        }
        for (i = 0; i < PSYCO_CONSTRAINTS; i++)
            printf("%d %ld ", (int)monitor.outlook[i], (long)monitor.decided[i]);
        if (monitor.over)
            psyco_start(&monitor);"""
