import csv
import io
import json
import sys

import pytest

from ramen.classify.output import COLUMNS, CsvRows, JsonRows, open_output, write_parquet
from tests.fakes.served_results import CLASSES, IDENTITY, answer, failure

NAMES = [
    "a.png",
    'with "quotes", and\nlines\r.png',
    "\N{SLICE OF PIZZA}.png",
    "caf\udce9.png",
    "=1+1.png",
    " ",
]
RESULTS = [answer(name, "dog", "cat") for name in NAMES] + [failure(name) for name in NAMES]
RESULTS += [answer("no support", support=None, adapted=False, probability=1.25e-9)]
FORMS = {"csv": CsvRows(len(CLASSES)), "jsonl": JsonRows()}


def written(form):
    return form.header() + b"".join(map(form.encode, RESULTS))


def test_csv_is_what_other_programs_read():
    """Python's reader as the other program: one table, plain cells, six digits."""
    text = written(FORMS["csv"]).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert list(rows[0]) == [*COLUMNS, "label_2", "probability_2", "label_3", "probability_3"]
    assert [row["file"] for row in rows[:3]] == NAMES[:3]
    assert rows[3]["file"] == "caf\\xe9.png"
    first = rows[0]
    assert (first["label"], first["zero_shot_label"], first["changed"]) == ("dog", "cat", "true")
    assert (first["label_2"], first["probability_2"], first["error"]) == ("cat", "0.25", "")
    failed = rows[len(NAMES)]
    assert (failed["error"], failed["label"], failed["changed"]) == ("a.png: it has no pixels", "", "false")
    assert rows[-1]["probability"] == "1.25e-09"


def test_json_lines_have_everything():
    lines = written(FORMS["jsonl"]).decode().splitlines()
    assert len(lines) == len(RESULTS)
    first = json.loads(lines[0])
    assert list(first) == [*COLUMNS, "top"]
    assert first["top"] == [["dog", 0.5], ["cat", 0.25], ["fire truck", 0.25]]
    assert "\N{SLICE OF PIZZA}" in lines[2]


def test_two_classes_have_no_third():
    form = CsvRows(2)
    assert form.columns[len(COLUMNS) :] == ("label_2", "probability_2")
    assert CsvRows(1).columns == COLUMNS
    assert len(CsvRows(1000).columns) == len(COLUMNS) + 8


def test_texts_that_a_spreadsheet_would_compute():
    """A name or a reason that begins like a formula has an apostrophe, unless it is to stay as it is."""
    for first in "=+-@\t\r":
        result = answer(f"{first}1+1", f"{first}cat", "dog", entropy=-0.0)
        cells = next(csv.reader(io.StringIO(CsvRows(3).encode(result).decode(), newline="")))
        assert cells[:2] == [f"'{first}1+1", f"'{first}cat"]
        assert cells[COLUMNS.index("entropy")] == "-0"  # numbers are numbers
        kept = next(csv.reader(io.StringIO(CsvRows(3, "keep").encode(result).decode(), newline="")))
        assert kept[:2] == [f"{first}1+1", f"{first}cat"]


def test_without_pyarrow_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        pytest.raises(ModuleNotFoundError, match=r"pip install 'ramen-tta\[parquet\]'"),
        open_output(tmp_path / "labels.parquet", IDENTITY),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_parquet_has_types_that_other_programs_understand(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet", reason="need pyarrow: pip install 'ramen-tta[parquet]'")
    results = [answer("a.png", "dog", "cat", probability=1 / 3), failure("b"), answer("c", support=None)]
    write_parquet(tmp_path / "labels.parquet", results)
    table = pyarrow.read_table(tmp_path / "labels.parquet")
    assert table.column_names == [*COLUMNS, "top"]
    assert table.column("probability").to_pylist() == [1 / 3, None, 0.5]
    assert table.column("changed").to_pylist() == [True, False, False]
    assert table.column("support").to_pylist() == [12, None, None]
    assert table.column("top").to_pylist()[0][0] == {"label": "dog", "probability": 1 / 3}
    write_parquet(tmp_path / "labels.parquet", [])
    assert pyarrow.read_table(tmp_path / "labels.parquet").num_rows == 0
