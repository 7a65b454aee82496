"""The figures of the pages are drawn from what the program does."""

from pathlib import Path

import pytest

from tools.documentation.figures import five_steps, stream_orders

DOCS = Path(__file__).resolve().parents[3] / "docs"


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
