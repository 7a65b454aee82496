"""Pickles of which nothing is imported or called."""

import os
import pickle
from typing import Any

import pytest

from ramen.utils.pickles import Function, Sealed, read_pickle


def nothing(name: str) -> Any:
    raise ValueError(f"it asks for {name}")


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "value", [{"a": [1, 2, (3, None)], "b": {}}, [True, False, -5, 2**40, 1.5, "text"], (), [[1], [1]]]
)
def test_builds_what_was_written(value: object, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol), nothing) == value


class Evil:
    def __reduce__(self) -> object:
        return os.system, ("touch executed",)


def test_nothing_is_called(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ValueError, match=r"it asks for \w+\.system"):
            read_pickle(pickle.dumps(Evil(), protocol), nothing)
    assert not list(tmp_path.iterdir())


def count(*arguments: Any) -> int:
    return len(arguments)


STAND_INS = {"other.count": Function(count), "other.value": Sealed([1])}


@pytest.mark.parametrize(
    "content",
    [
        b"cother\ncount\n}b.",  # sets the state of a function
        b"cother\ncount\nN}U\x08__name__U\x01xs\x86b.",  # and its attributes
        b"cother\nvalue\nK\x01a.",  # appends to what is sealed
        b"cother\nvalue\nK\x01K\x01s.",
        b"cother\nvalue\n)R.",  # calls it
        b"cother\ncount\n)\x81.",  # makes an object of it
        b"K\x01)R.",
        b"K\x01K\x01a.",
        b"}}b.",
        b"K\x01Q.",  # what is stored elsewhere
        b"\x82\x01.",  # an extension
        b"\x85.",
        b"",
    ],
)
def test_stand_ins_stay_what_they_are(content: bytes) -> None:
    with pytest.raises(Exception, match=r".+"):
        read_pickle(b"\x80\x02" + content, STAND_INS.__getitem__)
    assert count.__name__ == "count"
    assert STAND_INS["other.value"].value == [1]


def test_stand_ins_and_what_is_stored_elsewhere() -> None:
    assert read_pickle(b"\x80\x02cother\ncount\nK\x05K\x06\x86R.", STAND_INS.__getitem__) == 2
    assert read_pickle(b"\x80\x02K\x07Q.", nothing, lambda identity: [identity]) == [7]
