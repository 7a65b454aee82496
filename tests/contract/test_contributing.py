"""The examples of CONTRIBUTING.md and of the page for authors run, and keep the contract."""

import re
from pathlib import Path

import pytest

import ramen
from ramen import testing
from ramen.methods import _registry

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "name"), [("CONTRIBUTING.md", "mine"), ("docs/start/method.md", "one_step")]
)
def test_the_example_keeps_the_contract(
    monkeypatch: pytest.MonkeyPatch, tower_kind: str, page: str, name: str
) -> None:
    ramen.list_methods()  # so that all others are there before
    _registry._load_own_methods()  # into the registry that stays
    monkeypatch.setattr(_registry, "_METHODS", dict(_registry._METHODS))
    code, call = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    exec(code, {"__name__": "contributing"})
    assert f'check_method("{name}")' in call
    testing.check_method(name, testing.small_classifier(tower_kind))
