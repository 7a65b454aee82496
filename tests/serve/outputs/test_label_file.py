import os
import time

import pytest

from ramen.serve.outputs.label_file import LabelFile, Tally, in_parts
from ramen.serve.outputs.row_formats import CsvRows, JsonRows
from tests.fakes.served_results import CLASSES, answer, failure

FORMS = {"csv": CsvRows(len(CLASSES)), "jsonl": JsonRows()}
RESULTS = [answer("a"), answer("b\nb", "dog", "cat"), failure("c"), answer("d", adapted=False), answer("e")]


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def form(request):
    return request.param


def test_rows_are_on_disk_as_soon_as_they_are_appended(tmp_path, form):
    path = tmp_path / "labels"
    file = LabelFile(path, form)
    assert path.read_bytes() == form.header()
    file.append(RESULTS[:2])
    assert path.read_bytes() == form.header() + form.encode(RESULTS[0]) + form.encode(RESULTS[1])
    assert list(file.results()) == RESULTS[:2]
    file.close()


def test_a_file_cut_at_any_byte_is_continued(tmp_path, form):
    """Whatever a kill leaves: complete rows stay, the rest goes, and the file ends as if nothing happened."""
    path = tmp_path / "labels"
    rows = [form.header(), *map(form.encode, RESULTS)]
    whole = b"".join(rows)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        file = LabelFile(path, form)
        done = file.tally.files
        assert done == max(0, sum(len(b"".join(rows[: n + 1])) <= length for n in range(len(rows))) - 1)
        assert file.keys == {result.key for result in RESULTS[:done]}
        file.append(RESULTS[done:])
        file.close()
        assert path.read_bytes() == whole, length


def test_the_cut_is_reported(tmp_path, form):
    path = tmp_path / "labels"
    path.write_bytes(form.header() + form.encode(RESULTS[0]) + b"half a row")
    assert LabelFile(path, form).cut == len("half a row")


def test_the_tally(tmp_path, form):
    file = LabelFile(tmp_path / "labels", form)
    file.append(RESULTS)
    expected = Tally(5, errors=1, changed=1, fallbacks=1)
    expected.labels.update({"cat": 3, "dog": 1})
    assert file.tally == expected
    assert file.tally.answers == 4
    file.close()
    assert LabelFile(tmp_path / "labels", form).tally == expected


def test_rows_can_be_removed_first(tmp_path, form):
    path = tmp_path / "labels"
    LabelFile(path, form).append(RESULTS)
    file = LabelFile(path, form, keep=lambda result: result.error is None)
    assert "c" not in file.keys
    assert (file.tally.files, file.tally.errors) == (4, 0)
    file.append([answer("c")])
    assert [result.key for result in file.results()] == ["a", "b\nb", "d", "e", "c"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["labels"]


def test_a_damaged_row_in_the_middle_is_named(tmp_path, form):
    path = tmp_path / "labels"
    path.write_bytes(form.header() + form.encode(RESULTS[0]) + b"nonsense\n" + form.encode(RESULTS[3]))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"labels is damaged: result 2 cannot be read"):
        LabelFile(path, form)
    assert path.read_bytes() == before


def test_something_else_is_left_alone(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(b"name,price\nsoup,12\n")
    with pytest.raises(ValueError, match="was not written by this command"):
        LabelFile(path, FORMS["csv"])
    assert path.read_bytes() == b"name,price\nsoup,12\n"


@pytest.mark.parametrize("count", range(6))
def test_the_last_rows_can_be_removed(tmp_path, form, count):
    path = tmp_path / "labels"
    file = LabelFile(path, form)
    file.append(RESULTS)
    file.remove_last(count)
    left = RESULTS[: len(RESULTS) - count]
    assert path.read_bytes() == form.header() + b"".join(map(form.encode, left))
    assert file.keys == {result.key for result in left}
    assert (file.tally.files, file.tally.errors) == (len(left), sum(r.error is not None for r in left))
    file.append([answer("f")])
    assert list(file.results()) == [*left, answer("f")]


def test_durable_rows_are_on_the_disk_before_the_next_ones_are_written(tmp_path, form, monkeypatch):
    sizes = []
    sync = os.fsync

    def slow_sync(handle):
        time.sleep(0.02)
        sizes.append(os.fstat(handle).st_size)
        sync(handle)

    monkeypatch.setattr(os, "fsync", slow_sync)
    file = LabelFile(tmp_path / "labels", form, durable=True)
    ends = [len(form.header())] if form.header() else []
    for result in RESULTS:
        file.append([result])
        ends.append((tmp_path / "labels").stat().st_size)
    file.close()
    assert sizes[-len(ends) :] == ends


def test_a_disk_that_fails_is_reported(tmp_path, form, monkeypatch):
    def fail(handle):
        raise OSError(5, "Input/output error")

    file = LabelFile(tmp_path / "labels", form, durable=True)
    file.append(RESULTS[:1])
    monkeypatch.setattr(os, "fsync", fail)
    file.append(RESULTS[1:2])
    with pytest.raises(OSError, match="Input/output error"):
        file.close()


def test_parts():
    assert [len(part) for part in in_parts(RESULTS, 2)] == [2, 2, 1]
    assert list(in_parts([], 2)) == []
