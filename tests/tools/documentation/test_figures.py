"""The figures of the pages show what the program does."""

import re
from pathlib import Path

import pytest

from tools.documentation.figures import five_steps, memory_sizes, stream_orders
from tools.documentation.figures.__main__ import FIGURES

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_figure_is_committed_and_shown() -> None:
    shown = "".join(page.read_text() for page in DOCS.glob("*.md"))
    for name in FIGURES:
        assert (DOCS / "images" / name).is_file()
        assert f"(images/{name})" in shown


def test_sizes_of_the_memory_are_those_of_the_page_of_performance(tmp_path: Path) -> None:
    page = (DOCS / "performance.md").read_text()
    stated = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) MiB \|", page, re.MULTILINE))
    assert len(stated) == 5
    for codec, mib in stated.items():
        assert f"{sum(memory_sizes.shares(codec).values()):,.0f}" == mib
    memory_sizes.draw(tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    committed = (DOCS / "images" / "memory_sizes.svg").read_text()
    for mib in stated.values():
        assert f"{mib} MiB" in drawn
        assert f"{mib} MiB" in committed


def test_streams_are_cut_as_the_page_says(tmp_path: Path) -> None:
    mean = stream_orders.domains_per_batch()
    assert mean["mixed"] > 3.5
    assert mean["single"] == mean["continual"] == 1
    assert 1 < mean["bursty"] < mean["mixed"]
    drawn = stream_orders.streams()
    assert drawn["single"].resets == (0, 60, 120, 180)
    assert {len(stream) for stream in drawn.values()} == {240}
    stream_orders.draw(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


@pytest.fixture(scope="module")
def example() -> five_steps.Example:
    return five_steps.find_example()


def test_the_example_was_repaired_by_what_it_retrieved(example: five_steps.Example) -> None:
    before, after = (example.classes[int(p.argmax())] for p in (example.before, example.after))
    assert after == example.truth != before
    weights = [weight for _, _, weight in example.entries]
    assert len(weights) == five_steps.SHOWN_ENTRIES
    assert weights == sorted(weights, reverse=True)
    assert min(weights) > 0
    assert example.sums.any()
    committed = (DOCS / "images" / "five_steps.svg").read_text()
    assert f"a drawing of: {example.truth}" in committed
    assert f"the model alone: {before}" in committed
