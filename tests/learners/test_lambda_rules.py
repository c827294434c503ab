"""From belief to λ: the paper's rules, number by number."""

import jax.numpy as jnp
import numpy as np
import pytest

from psyco._src.learners.lagrangian import CALIBRATIONS, Evidence


def lam(rule, c_sat=0.99, c_req=0.98, p_req=0.85, share=0.9, share_all=0.88):
    return float(CALIBRATIONS[rule](Evidence(*(jnp.array([x]) for x in (c_sat, c_req, p_req, share, share_all))))[0])


@pytest.mark.parametrize(
    ("rule", "given", "expected"),
    [
        ("soft", {"c_sat": 0.99}, 0.5),
        ("soft", {"c_sat": 0.97}, 0.0),
        ("soft", {"c_sat": 1.0}, 1.0),
        ("soft", {"c_sat": 1.0, "c_req": 1.0}, 0.0),
        ("hard", {"c_sat": 0.981}, 1.0),
        ("hard", {"c_sat": 0.979}, 0.0),
        ("direct", {"c_sat": 0.4}, 0.4),
        ("naive", {"share": 0.925}, 0.5),
        ("naive", {"share": 0.8}, 0.0),
        ("naive", {"share": 0.8, "share_all": 1.0}, 0.0),
        ("naive-all", {"share_all": 0.925, "share": 0.0}, 0.5),
        ("none", {"c_sat": 0.0}, 1.0),
    ],
)
def test_rules(rule, given, expected):
    assert lam(rule, **given) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("rule", CALIBRATIONS)
def test_every_rule_gives_a_weight_for_each_constraint(rule):
    rng = np.random.default_rng(0)
    values = jnp.asarray(rng.uniform(size=(5, 200)), jnp.float32)
    weights = np.asarray(CALIBRATIONS[rule](Evidence(*values)))
    assert weights.shape == (200,) and (weights >= 0).all() and (weights <= 1).all()
