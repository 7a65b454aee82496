"""``ramen classify`` under torchrun, killed at random instants: the output is that of a run that was not."""

from pathlib import Path

from tests.helpers.kill_grid import KillGrid
from tests.helpers.slow_tests import full


def test_kills_at_random_instants(tmp_path: Path) -> None:
    kills = full(200, 2)
    report = KillGrid(tmp_path, drawings=full(4, 1), most=full(4, 2)).run(kills)
    assert report.kills == kills
    assert report.rows_compared == report.chains * (18 * full(4, 1) + 2)
