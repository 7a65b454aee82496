"""Records read from source files against those that the classes register with."""

import subprocess
import sys

import pytest

import ramen
from ramen.methods import _own_records, _registry


def test_they_are_all_there() -> None:
    _registry._load_own_methods()
    own = {name for name, cls in _registry._METHODS.items() if cls.__module__.startswith("ramen.methods.")}
    assert set(_own_records.own_records()) == own


@pytest.mark.parametrize("name", _own_records.own_records())
def test_a_record_is_the_same_as_the_registered_one(name: str) -> None:
    registered = _registry.get_method(name).info
    assert _own_records.own_records()[name] == registered
    assert list(_own_records.own_records()[name].defaults) == list(registered.defaults)


def test_without_source_files_the_methods_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that is shipped as compiled code."""
    expected = ramen.list_methods()
    monkeypatch.setattr(_own_records._Source, "of", lambda module: None)
    _own_records.own_records.cache_clear()
    try:
        assert _own_records.own_records() is None
        assert ramen.list_methods() == expected
        assert ramen.describe("ramen").title.startswith("Ramen:")
    finally:
        _own_records.own_records.cache_clear()


def test_records_need_no_torch() -> None:
    code = (
        "import sys, ramen; names = ramen.list_methods(); "
        "print(ramen.describe('tent').venue, len(names), 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.split() == ["ICLR", "2021", str(len(_own_records.own_records())), "False"]
