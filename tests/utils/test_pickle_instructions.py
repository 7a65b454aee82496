"""Pickles that are followed and not executed."""

import pickle

import pytest

from ramen.utils.pickle_instructions import PickleInterpreter


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "value", [{"a": [1, 2, (3, None)], "b": {}}, [True, False, -5, 2**40, "text", b"bytes"], (), [[1], [1]]]
)
def test_builds_what_was_written(value: object, protocol: int) -> None:
    if protocol == 2 and b"bytes" in (value if isinstance(value, list) else []):
        pytest.skip("protocol 2 calls a function for bytes")
    assert PickleInterpreter().read(pickle.dumps(value, protocol)) == value


class Thing:
    pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(len, 2), "it asks for .*len, which no file does"),
        (pickle.dumps(1.5, 2), "it has the instruction BINFLOAT, which no file has"),
        (b"(lp0\n.", "it has the instruction LIST, which no file has"),
        (b"\x80\x02\x85.", "it takes more from the stack than there is"),
        (b"\x80\x02K\x01K\x01a.", "it appends to something that is not a list"),
        (b"\x80\x02K\x01K\x01K\x01s.", "it sets items of something that is not a dictionary"),
        (b"\x80\x02K\x01)R.", "it calls something that is not a function"),
        (b"\x80\x02}}b.", "it sets the state of something that has none"),
        (b"\x80\x02K\x01Q.", "it has the instruction BINPERSID"),
    ],
)
def test_all_else_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PickleInterpreter().read(content)


def test_further_instructions_are_still_refused_without_a_meaning() -> None:
    class Further(PickleInterpreter):
        further = frozenset({"NEWOBJ", "BINPERSID", "BINFLOAT"})

        def named(self, module: str, name: str) -> object:
            return None

    assert Further().read(pickle.dumps(1.5, 2)) == 1.5
    with pytest.raises(ValueError, match="it creates an object of something that is not a class"):
        Further().read(pickle.dumps(Thing(), 2))
    with pytest.raises(ValueError, match="it refers to 1, outside of it"):
        Further().read(b"\x80\x02K\x01Q.")
