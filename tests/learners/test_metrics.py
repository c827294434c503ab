"""The metrics table, against the same figures written out."""

import jax
import numpy as np
import pytest

from psyco._src.learners.base import Generation, UpdateInfo
from psyco._src.learners.metrics import concatenate, from_csv, tabulate
from psyco._src.rollout.episodes import Episodes


def generations(count=3, size=4, constraints=2, seed=0):
    rng = np.random.default_rng(seed)
    satisfied = rng.random((count, size, constraints)) < 0.6
    satisfied[0] = True  # a generation without violations
    cost = np.where(satisfied, 0.0, rng.integers(1, 5, satisfied.shape)).astype(np.float32)
    ret = rng.normal(size=(count, size)).astype(np.float32)
    length = rng.integers(1, 50, (count, size)).astype(np.int32)
    info = UpdateInfo(rng.random(count, np.float32), rng.random((count, constraints), np.float32))
    return Generation(Episodes(ret, cost, satisfied, length), info)


def test_a_row_summarizes_its_generation():
    seen = generations()
    table = tabulate(seen, first=7, episodes_per_generation=4)
    assert table["generation"].tolist() == [7, 8, 9]
    assert table["episodes"].tolist() == [32, 36, 40]
    for g in range(3):
        e = [x[g] for x in seen.episodes[:4]]
        good = [all(row) for row in e[2]]
        total = [float(sum(row)) for row in e[1]]
        expected = {
            "return": np.mean(e[0]),
            "length": np.mean(e[3]),
            "satisfied": np.mean(good),
            "lambda": seen.info.lam[g],
            "cost": np.mean(total),
            "c_sat": min(seen.info.c_sat[g]),
            "satisfied[1]": np.mean(e[2][:, 1]),
            "cost[0]": np.mean(e[1][:, 0]),
            "c_sat[1]": seen.info.c_sat[g][1],
        }
        for side, wanted in (("satisfying", True), ("violating", False)):
            mine = [i for i in range(4) if good[i] is wanted]
            expected[f"return_{side}"] = np.mean([e[0][i] for i in mine]) if mine else np.nan
            expected[f"cost_{side}"] = np.mean([total[i] for i in mine]) if mine else np.nan
        for name, value in expected.items():
            assert table[name][g] == pytest.approx(value, rel=1e-6, nan_ok=True), name
    assert np.isnan(table["return_violating"][0])
    assert table["verdict"].tolist() == ["", "", ""]


def test_the_deployed_policy_has_its_own_columns():
    seen = generations()
    table = tabulate(seen, first=0, episodes_per_generation=4, checks=2)
    np.testing.assert_allclose(table["deployed_return"], seen.episodes.returns[:, 2:].mean(axis=1), rtol=1e-6)
    share = seen.episodes.satisfied[:, 2:].all(axis=2).mean(axis=1)
    np.testing.assert_allclose(table["deployed_satisfied"], share)
    assert "deployed_return" not in tabulate(seen, first=0, episodes_per_generation=4)
    read = from_csv(table.to_csv())
    np.testing.assert_allclose(read["deployed_return"], table["deployed_return"], rtol=1e-6)
    with pytest.raises(ValueError, match="deployed_satisfied"):
        from_csv(table.to_csv().replace(",1,,", ",7,,"))


def test_expectations_come_last_and_have_a_value_instead_of_cost_and_share():
    seen = generations(constraints=3)
    episodes = seen.episodes._replace(
        cost=seen.episodes.cost[..., :1],
        satisfied=seen.episodes.satisfied[..., :1],
        value=np.arange(3 * 4 * 2, dtype=np.float32).reshape(3, 4, 2),
    )
    table = tabulate(Generation(episodes, seen.info), first=0, episodes_per_generation=4)
    own = {"satisfied[0]", "cost[0]", "c_sat[0]", "c_sat[1]", "c_sat[2]", "value[0]", "value[1]"}
    assert {name for name in table if "[" in name} == own
    assert table["value[1]"].tolist() == [4.0, 12.0, 20.0]
    assert table["c_sat[2]"].tolist() == seen.info.c_sat[:, 2].tolist()
    assert table["c_sat"].tolist() == seen.info.c_sat.min(axis=1).tolist()
    assert from_csv(table.to_csv())["value[0]"].tolist() == table["value[0]"].tolist()


def test_without_constraints_everything_is_satisfied_and_nothing_costs():
    table = tabulate(generations(constraints=0), first=0, episodes_per_generation=4)
    assert table["satisfied"].tolist() == [1.0] * 3
    assert table["cost"].tolist() == [0.0] * 3
    assert table["c_sat"].tolist() == [1.0] * 3
    assert np.isnan(table["return_violating"]).all()


def test_tables_below_each_other_are_one_table():
    seen = generations()
    whole = tabulate(seen, first=0, episodes_per_generation=4)
    parts = [
        tabulate(jax.tree.map(lambda x, s=s: x[s], seen), first=first, episodes_per_generation=4)
        for s, first in ((slice(0, 2), 0), (slice(2, 3), 2))
    ]
    assert concatenate(parts).to_csv() == whole.to_csv()
