"""The example of CONTRIBUTING.md runs, and keeps the contract."""

import re
from pathlib import Path

import pytest

import ramen
from ramen import testing
from ramen.methods import _registry

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


def test_the_example_keeps_the_contract(monkeypatch: pytest.MonkeyPatch, tower_kind: str) -> None:
    ramen.list_methods()  # so that all others are there before
    _registry._load_own_methods()  # into the registry that stays
    monkeypatch.setattr(_registry, "_METHODS", dict(_registry._METHODS))
    code, call = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code, {"__name__": "contributing"})
    assert 'check_method("mine")' in call
    testing.check_method("mine", testing.small_classifier(tower_kind))
