"""The run's folder as a sink."""

from typing import Any

import numpy as np

from psyco._src.learners.base import Generation, UpdateInfo
from psyco._src.learners.metrics import from_csv, tabulate
from psyco._src.rollout.episodes import Episodes
from psyco._src.runs.writer import RunWriter


def rows(first: int, checks: int) -> Any:
    ones = np.ones((2, 4), np.float32)
    episodes = Episodes(ones, ones[..., None], ones[..., None] > 0, ones.astype(np.int32))
    weighing = UpdateInfo(ones[:, 0], ones[:, :1])
    return tabulate(Generation(episodes, weighing), first=first, episodes_per_generation=4, checks=checks)


def test_a_table_that_was_begun_with_fewer_columns_goes_on_with_them(tmp_path) -> None:
    old = rows(0, checks=0).to_csv()
    (tmp_path / "metrics.csv").write_text(old)
    with RunWriter(tmp_path, {}, len(old), 1.0) as keeper:
        keeper.rows(None, rows(2, checks=1))  # type: ignore[arg-type]
    table = from_csv((tmp_path / "metrics.csv").read_text())
    assert table["generation"].tolist() == [0, 1, 2, 3]
    assert "deployed_return" not in table
