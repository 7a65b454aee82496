import csv
import io
import json

import pytest

from ramen.serve.outputs.row_formats import COLUMNS, CsvRows, JsonRows
from tests.fakes.served_results import CLASSES, answer, failure

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


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_results_survive(form):
    read = [form.decode(row) for row in form.rows(io.BytesIO(written(form)))]
    assert [result.key for result in read] == [result.key for result in RESULTS]
    named = [result for result in RESULTS if "\udce9" not in (result.error or "")]
    assert [result for result in read if "\\xe9" not in (result.error or "")] == named


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_file_cut_at_any_byte_gives_the_rows_before_it(form):
    whole = written(form)
    ends = [len(form.header())]
    for result in RESULTS:
        ends.append(ends[-1] + len(form.encode(result)))
    for length in range(ends[0], len(whole) + 1):
        complete = sum(end <= length for end in ends) - 1
        assert len(list(form.rows(io.BytesIO(whole[:length])))) == complete, length


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


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"a,b\n", "16 columns, got 2"),
        (b"a,cat,half" + b"," * 13 + b"\n", "could not convert"),
        (FORMS["csv"].encode(RESULTS[0]).replace(b"true,true", b"true,yes"), "adapted must be true or false"),
        (b"\xff" + b"," * 15 + b"\n", "codec can't decode"),
    ],
)
def test_damaged_csv_rows(row, message):
    with pytest.raises(ValueError, match=message):
        FORMS["csv"].decode(row)


@pytest.mark.parametrize("row", [b"{}\n", b"[1]\n", b"nonsense\n", b'{"file": "a"}\n'])
def test_damaged_json_rows(row):
    with pytest.raises(ValueError, match="no result of this command"):
        FORMS["jsonl"].decode(row)


def test_another_header_is_refused_and_a_spreadsheets_is_not():
    with pytest.raises(ValueError, match="its first line must be file,label"):
        list(FORMS["csv"].rows(io.BytesIO(b"name,price\n1,2\n")))
    resaved = b"\xef\xbb\xbf" + written(FORMS["csv"])
    assert len(list(FORMS["csv"].rows(io.BytesIO(resaved)))) == len(RESULTS)
