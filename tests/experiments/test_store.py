"""Result files: what goes in comes out, writing is all or nothing, damage is reported."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen.experiments.experiment import plan
from ramen.experiments.store import DamagedResultError, Store, read_result, write_result

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(result=st.dictionaries(st.text().filter(lambda key: key != "schema"), plain, max_size=4))
def test_what_goes_in_comes_out(tmp_path_factory, result):
    path = tmp_path_factory.mktemp("results") / "one.json"
    try:
        json.dumps(result, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair is no text that a file could hold
        with pytest.raises(UnicodeEncodeError):
            write_result(path, result)
        assert not list(path.parent.iterdir())
        return
    write_result(path, result)
    assert read_result(path) == result


def test_the_file(tmp_path):
    path = tmp_path / "deep" / "er" / "one.json"
    write_result(path, {"accuracy": 71.25, "name": "Küche"})
    assert path.read_text(encoding="utf-8") == (
        '{\n  "schema": 1,\n  "accuracy": 71.25,\n  "name": "Küche"\n}\n'
    )
    assert os.listdir(path.parent) == ["one.json"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask  # others may read it as any other file


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "one.json"
    write_result(path, {"run": 1})

    def fail(*_):
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match="no space left"):
            write_result(path, {"run": 2})
    assert read_result(path) == {"run": 1}
    assert os.listdir(tmp_path) == ["one.json"]
    write_result(path, {"run": 3})
    assert read_result(path) == {"run": 3}


def test_the_name_appears_when_the_file_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "one.json"
    seen = []
    replace = os.replace

    def watch(source, target):
        seen.append((target.exists(), json.loads(source.read_text())))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    write_result(path, {"run": 1})
    assert seen == [(False, {"schema": 1, "run": 1})]


def test_every_truncation_is_reported(tmp_path):
    path = tmp_path / "one.json"
    write_result(path, {"accuracy": [1, 2], "name": "Küche"})
    whole = path.read_bytes()
    for length in range(len(whole) - 2):  # without the last line feed it is still whole
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedResultError, match=r"one\.json is damaged .*run the experiment again"):
            read_result(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "one.json is damaged"),
        (b"\x00" * 50, "one.json is damaged"),
        (b'{"schema": 1, "a": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "one.json is damaged"),
        (b"[1]", "is not a result: it has no schema number"),
        (b"{}", "is not a result: it has no schema number"),
        (b'{"schema": 2}', "has schema 2, expected 1: it was written by another version"),
        (b'{"schema": true}', "has schema True, expected 1"),
        (b'{"schema": "1"}', "has schema '1', expected 1"),
    ],
)
def test_damaged_files(tmp_path, content, message):
    path = tmp_path / "one.json"
    path.write_bytes(content)
    with pytest.raises(DamagedResultError, match=message):
        read_result(path)


def test_every_truncation_of_the_answers_is_reported(tmp_path):
    store, (one,) = Store(tmp_path), plan(["ensemble"])
    assert store.answers(one) == {}  # of an earlier version
    store.write(one, {"kind": "run"}, {"predicted": np.arange(3, dtype=np.int16)})
    assert store.answers(one)["predicted"].tolist() == [0, 1, 2]
    path = store.path(one).with_suffix(".npz")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedResultError, match=r"\.npz is damaged"):
            store.answers(one)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no result .*none\.json"):
        read_result(tmp_path / "none.json")
