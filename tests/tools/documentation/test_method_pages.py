"""Pages of methods: from the record, the source and the committed measurements; nothing is listed by hand."""

import json
from pathlib import Path

import pytest

import ramen
from tools.documentation import method_pages

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def test_page_of_a_method() -> None:
    page = method_pages.page("tent")
    info = ramen.describe("tent")
    assert page.startswith("# tent: ")
    for text in (info.updates, info.predicts_with, "1 forward, 1 backward", info.paper, *info.defaults):
        assert text in page
    assert "def adapt(self, images: Tensor, usable: Tensor) -> Steps:" in page
    cost = json.loads((RESULTS / "cost_vit_b_16_h200_fp16.json").read_text())["methods"]["tent"]["forwards"]
    assert f"| {cost:.1f} | [cost_vit_b_16_h200_fp16.json]" in page


def test_a_method_without_measurements_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_pages, "measured", dict)
    page = method_pages.page("ramen")
    assert page.rstrip().endswith(
        "Neither cost nor accuracy has been measured for the committed results yet."
    )
    assert "cost_vit" not in page


def test_the_page_of_methods_links_to_each() -> None:
    filled = method_pages.fill_in("methods.md", "| `tent` | x |\n| `nothing` | y |\nthe `tent`")
    assert filled == "| [`tent`](methods/tent.md) | x |\n| `nothing` | y |\nthe `tent`"


def test_a_place_for_the_table_is_filled() -> None:
    page = "before\n<!-- made: all methods with what was measured -->\nelsewhere\n<!-- end -->\nafter"
    filled = method_pages.fill_in("choosing.md", page)
    assert filled.startswith("before\n| method |")
    assert filled.endswith("|\nafter")
    assert "elsewhere" not in filled
    assert all(f"[`{name}`](methods/{name}.md)" in filled for name in method_pages.own_methods())


def test_marks_of_docstrings() -> None:
    assert method_pages._markdown("``a*b`` times C*K") == r"`a*b` times C\*K"
