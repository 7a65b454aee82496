import sys

import pytest

from ramen.serve.outputs import parquet
from ramen.serve.outputs.output import open_output
from tests.fakes.served_results import IDENTITY, answer, failure

RESULTS = [
    answer("a.png", "dog", "cat", probability=1 / 3),
    failure("b\n.png"),
    answer("c.png", support=None),
]


def test_without_pyarrow_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        pytest.raises(ModuleNotFoundError, match=r"pip install 'ramen-tta\[parquet\]'"),
        open_output(tmp_path / "labels.parquet", IDENTITY),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_results_survive_exactly(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="need pyarrow: pip install 'ramen-tta[parquet]'")
    monkeypatch.setattr(parquet, "_ROWS", 2)
    path = tmp_path / "labels.parquet"
    parquet.write_parquet(path, RESULTS)
    assert list(parquet.read_parquet(path)) == RESULTS
    parquet.write_parquet(path, [])
    assert list(parquet.read_parquet(path)) == []


def test_columns_have_types_that_other_programs_understand(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet", reason="need pyarrow: pip install 'ramen-tta[parquet]'")
    parquet.write_parquet(tmp_path / "labels.parquet", RESULTS)
    table = pyarrow.read_table(tmp_path / "labels.parquet")
    assert table.column("probability").to_pylist() == [1 / 3, None, 0.5]
    assert table.column("changed").to_pylist() == [True, False, False]
    assert table.column("support").to_pylist() == [12, None, None]
    assert table.column("top").to_pylist()[0][0] == {"label": "dog", "probability": 1 / 3}


def test_another_file_of_that_name(tmp_path):
    pytest.importorskip("pyarrow", reason="need pyarrow: pip install 'ramen-tta[parquet]'")
    path = tmp_path / "labels.parquet"
    path.write_text("nonsense")
    with pytest.raises(ValueError, match=r"labels.parquet cannot be read as results"):
        list(parquet.read_parquet(path))
