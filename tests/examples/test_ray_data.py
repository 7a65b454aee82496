"""The example runs as its first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.photos import photo
from tests.helpers.slow_tests import RUN_SLOW_TESTS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="starts Ray: make test-all")
def test_a_folder_is_classified_by_two_actors(tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "photos").mkdir()
    for number in range(20):
        photo(number).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "20.png").write_bytes(b"no image")
    script, out = ROOT / "examples" / "ray_data.py", tmp_path / "labels"
    given = [tmp_path / "photos", out, "--classes", "cat,dog", "--actors", "2"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
    subprocess.run([sys.executable, script, *given], check=True, env=environment, timeout=900)
    rows = {Path(row["key"]).name: row for row in parquet.read_table(out).to_pylist()}
    assert rows.keys() == {f"{number}.png" for number in range(21)}
    assert rows["20.png"]["label"] is None
    assert "cannot be read as an image" in rows["20.png"]["error"]
    assert all(rows[f"{number}.png"]["label"] in ("cat", "dog") for number in range(20))
