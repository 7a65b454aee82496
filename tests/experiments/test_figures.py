"""Figures: what they show, and that the same data give the same bytes."""

from pathlib import Path
from typing import IO
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from ramen.experiments import figures
from ramen.experiments.paper import Value
from ramen.experiments.style import INK, page_svg
from ramen.experiments.tables import Point, Sweep

DOMAINS = tuple(f"domain_{number}" for number in range(5))
EN_DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
METHODS = tuple(f"method {number}" for number in range(13))


def sweep(values: tuple[object, ...] = (5, 10, 20), reported: float | None = 61.5) -> Sweep:
    printed = None if reported is None else Value(reported)
    points = [Point(value, str(value), 60.0 + n, 0.3, 3, printed) for n, value in enumerate(values)]
    return Sweep("topk", "ramen", "cifar10c", "ViT-B-32/openai", "mixed", points, {"CLIP": 55.0})


def words(figure: Figure) -> list[str]:
    """All letters in the figure, as a browser would find them."""
    root = ElementTree.fromstring(page_svg(figure))
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def all_figures() -> dict[str, Figure]:
    bars = {name: {"single": (60.0, 0.5), "mixed": (59.0, None)} for name in METHODS[:4]}
    table = np.arange(25).reshape(5, 5)
    return {
        "curve": figures.sweep_figure(sweep()),
        "words": figures.sweep_figure(sweep(("w/o PB", "w/o DC"))),
        "bars": figures.grouped_bars(bars, {"CLIP": 55.0}, title="t"),
        "changes": figures.change_bars(dict.fromkeys(METHODS[:4], (5.0, 2.0)), title="t"),
        "reliability": figures.reliability_diagram({"Tent": [(40.0, 35.0), (90.0, 80.0)]}, title="t"),
        "stages": figures.stage_bars(
            {name: {"read": 1.0, "predict": 2.0} for name in METHODS[:4]}, title="t"
        ),
        "cost": figures.cost_dots({name: (n + 1.0, 60.0) for n, name in enumerate(METHODS[:4])}, title="t"),
        "composition": figures.composition_map(DOMAINS, table.tolist(), chance=6.7, title="t"),
        "gains": figures.gain_map(DOMAINS, {name: [1.0] * 5 for name in METHODS[:4]}, title="t"),
    }


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: page_svg(figure) for name, figure in all_figures().items()}


def test_the_same_data_give_the_same_bytes(pages: dict[str, str]) -> None:
    for name, figure in all_figures().items():
        assert page_svg(figure) == pages[name], name


def test_a_figure_on_a_page_is_transparent_and_its_letters_follow_the_page(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        assert INK not in text.replace(f"--ink:{INK}", ""), name
        assert "prefers-color-scheme:dark" in text
        assert "<dc:date>" not in text
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_figure_as_a_file_is_the_same_each_time(tmp_path: Path, ending: str) -> None:
    figures.draw_sweep(tmp_path / "new" / f"one.{ending}", sweep())
    figures.draw_sweep(tmp_path / f"two.{ending}", sweep())
    assert (tmp_path / "new" / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_a_full_disk_leaves_the_old_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures.draw_sweep(tmp_path / "curve.png", sweep())
    before = (tmp_path / "curve.png").read_bytes()

    def full(self: Figure, file: IO[bytes], **_: object) -> None:
        file.write(before[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        figures.draw_sweep(tmp_path / "curve.png", sweep())
    assert (tmp_path / "curve.png").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_curve_tells_its_numbers_and_the_papers() -> None:
    figure = figures.sweep_figure(sweep())
    axes = figure.axes[0]
    measured = axes.containers[0].lines[0]
    assert measured.get_ydata().tolist() == pytest.approx([60.0, 61.0, 62.0])
    low, high = axes.containers[0].lines[2][0].get_segments()[1][:, 1]
    assert (low, high) == pytest.approx((60.7, 61.3))
    dashed = next(line for line in axes.lines if line.get_label() == "reported")
    assert dashed.get_linestyle() == "--"
    assert dashed.get_ydata().tolist() == [61.5] * 3
    assert {"5", "10", "20", "62.0", "CLIP 55.0", "measured", "reported"} <= set(words(figure))


def test_bars_that_do_not_start_at_zero_say_so() -> None:
    alike = figures.grouped_bars({"a": {"x": (60.0, None)}, "b": {"x": (62.0, None)}}, title="t")
    assert "accuracy, % (the axis starts at 55)" in words(alike)
    assert alike.axes[0].get_ylim()[0] == 55
    far = figures.grouped_bars({"a": {"x": (5.0, None)}, "b": {"x": (62.0, None)}}, title="t")
    assert "accuracy, %" in words(far)
    assert far.axes[0].get_ylim()[0] == 0


def test_bars_leave_room_for_what_was_not_run() -> None:
    groups = {
        "a": {"single": (60.0, 1.0), "mixed": (50.0, 1.0)},
        "b": {"mixed": (40.0, 1.0)},
    }
    figure = figures.grouped_bars(groups, title="t")
    centres = [patch.get_x() + patch.get_width() / 2 for patch in figure.axes[0].patches]
    assert centres == pytest.approx([-0.2, 0.2, 1.2])


def test_a_composition_is_shares_of_rows_with_the_mean_of_the_diagonal() -> None:
    """By hand: 30 of 40 and 5 of 10, so (75 + 50) / 2; a domain without images has no shares."""
    figure = figures.composition_map(
        ["a", "b", "c"], [[30, 10, 0], [5, 5, 0], [0, 0, 0]], chance=33.3, title="Support"
    )
    shown = words(figure)
    assert [shown.count(text) for text in ("75.0", "25.0", "50.0", EN_DASH)] == [1, 1, 2, 3]
    assert any("same domain: 62.5 % on average, 33.3 % by chance" in line for line in shown)


def test_the_numbers_of_eighteen_domains_fit_into_their_cells() -> None:
    names = [f"domain_{number}" for number in range(18)]
    figure = figures.composition_map(names, np.full((18, 18), 100.0).tolist(), chance=5.6, title="t")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (left, _), (right, _) = axes.transData.transform([(0, 0), (1, 0)])
    widest = max(text.get_window_extent().width for text in axes.texts)
    assert widest < 0.9 * (right - left)
    assert axes.texts[0].get_fontsize() >= 8


def test_gains_have_signs_and_gaps() -> None:
    rows = {"Tent": [1.25, None], "SAR": [-2.0, -0.01]}
    shown = words(figures.gain_map(["a", "b"], rows, title="t"))
    numbers = [text for text in shown if text not in ("a", "b", "t", "Tent", "SAR")]
    assert numbers == ["+1.2", EN_DASH, f"{MINUS}2.0", "+0.0"]
