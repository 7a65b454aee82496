"""The examples of CONTRIBUTING.md and of the page for authors run, and keep the contract."""

import re
from pathlib import Path

import pytest

from ramen import testing

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "name"), [("CONTRIBUTING.md", "mine"), ("docs/start/method.md", "one_step")]
)
@pytest.mark.usefixtures("own_methods")
def test_the_example_keeps_the_contract(tower_kind: str, page: str, name: str) -> None:
    code, call = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    exec(code, {"__name__": "contributing"})
    assert f'check_method("{name}")' in call
    testing.check_method(name, testing.small_classifier(tower_kind))
