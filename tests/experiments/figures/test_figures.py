"""Figures: what they show, and that the same data give the same bytes."""

import itertools
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.spread import Spread
from ramen.experiments.analysis.sweep_curve import Point, Sweep
from ramen.experiments.figures import cost, heatmaps, results
from ramen.experiments.figures.style import INK, page_svg

DOMAINS = tuple(f"domain_{number}" for number in range(5))
EN_DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
METHODS = tuple(f"method {number}" for number in range(13))


def group(mean: float) -> Group:
    """Three seeds with that mean and a deviation of 0.3."""
    return Group(tuple({"scores": {"average": mean + offset}} for offset in (-0.3, 0.0, 0.3)))


def sweep(values: tuple[object, ...] = (5, 10, 20), reported: float | None = 61.5) -> Sweep:
    points = [Point(value, str(value), group(60.0 + n), reported) for n, value in enumerate(values)]
    return Sweep("topk", "ramen", "cifar10c", "ViT-B-32/openai", "mixed", points, {"CLIP": 55.0})


def words(figure: Figure) -> list[str]:
    """All letters in the figure, as a browser would find them."""
    root = ElementTree.fromstring(page_svg(figure))
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def all_figures() -> dict[str, Figure]:
    bars = {name: {"single": Spread(60.0, 0.5, 3), "mixed": Spread(59.0, None, 1)} for name in METHODS[:4]}
    table = np.arange(25).reshape(5, 5)
    return {
        "curve": results.sweep_figure(sweep()),
        "words": results.sweep_figure(sweep(("w/o PB", "w/o DC"))),
        "bars": results.grouped_bars(bars, {"CLIP": 55.0}, title="t"),
        "dots": results.domain_dots(
            DOMAINS, {name: [50.0] * 5 for name in METHODS[:4]}, METHODS[:3], title="t"
        ),
        "changes": results.change_bars(dict.fromkeys(METHODS[:4], (5.0, 2.0)), title="t"),
        "bins": results.bin_bars(["1", "2"], {"all": [3.0, 1.0]}, title="t", ylabel="%"),
        "stages": cost.stage_bars({name: {"read": 1.0, "predict": 2.0} for name in METHODS[:4]}, title="t"),
        "cost": cost.cost_dots({name: (n + 1.0, 60.0) for n, name in enumerate(METHODS[:4])}, title="t"),
        "composition": heatmaps.composition_map(DOMAINS, table.tolist(), chance=6.7, title="t"),
        "gains": heatmaps.gain_map(DOMAINS, {name: [1.0] * 5 for name in METHODS[:4]}, title="t"),
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
    results.draw_sweep(tmp_path / "new" / f"one.{ending}", sweep())
    results.draw_sweep(tmp_path / f"two.{ending}", sweep())
    assert (tmp_path / "new" / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_a_png_is_on_white(tmp_path: Path) -> None:
    results.draw_sweep(tmp_path / "curve.png", sweep())
    assert Image.open(tmp_path / "curve.png").convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)


def test_a_full_disk_leaves_the_old_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.draw_sweep(tmp_path / "curve.png", sweep())
    before = (tmp_path / "curve.png").read_bytes()

    def full(self: Figure, file: IO[bytes], **_: object) -> None:
        file.write(before[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        results.draw_sweep(tmp_path / "curve.png", sweep())
    assert (tmp_path / "curve.png").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must end with one of \.svg, \.png, \.pdf, got .*curve\.bmp"):
        results.draw_sweep(tmp_path / "curve.bmp", sweep())


def test_a_curve_tells_its_numbers_and_the_papers() -> None:
    figure = results.sweep_figure(sweep())
    axes = figure.axes[0]
    measured = axes.containers[0].lines[0]
    assert measured.get_ydata().tolist() == pytest.approx([60.0, 61.0, 62.0])
    low, high = axes.containers[0].lines[2][0].get_segments()[1][:, 1]
    assert (low, high) == pytest.approx((60.7, 61.3))
    dashed = next(line for line in axes.lines if line.get_label() == "reported")
    assert dashed.get_linestyle() == "--"
    assert dashed.get_ydata().tolist() == [61.5] * 3
    assert {"5", "10", "20", "62.0", "CLIP 55.0", "measured", "reported"} <= set(words(figure))


def test_a_curve_without_the_papers_has_no_dashes() -> None:
    assert "reported" not in words(results.sweep_figure(sweep(reported=None)))


def test_words_that_were_varied_become_bars() -> None:
    figure = results.sweep_figure(sweep(("w/o PB", "w/o DC")))
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    assert heights == pytest.approx([60.0, 61.0, 61.5, 61.5])


def test_a_sweep_without_points_is_refused() -> None:
    with pytest.raises(ValueError, match="sweep must have points, got none"):
        results.sweep_figure(sweep(()))


def test_bars_that_do_not_start_at_zero_say_so() -> None:
    alike = results.grouped_bars(
        {"a": {"x": Spread(60.0, None, 1)}, "b": {"x": Spread(62.0, None, 1)}}, title="t"
    )
    assert "accuracy, % (the axis starts at 55)" in words(alike)
    assert alike.axes[0].get_ylim()[0] == 55
    far = results.grouped_bars(
        {"a": {"x": Spread(5.0, None, 1)}, "b": {"x": Spread(62.0, None, 1)}}, title="t"
    )
    assert "accuracy, %" in words(far)
    assert far.axes[0].get_ylim()[0] == 0


def test_bars_leave_room_for_what_was_not_run() -> None:
    groups = {
        "a": {"single": Spread(60.0, 1.0, 3), "mixed": Spread(50.0, 1.0, 3)},
        "b": {"mixed": Spread(40.0, 1.0, 3)},
    }
    figure = results.grouped_bars(groups, title="t")
    centres = [patch.get_x() + patch.get_width() / 2 for patch in figure.axes[0].patches]
    assert centres == pytest.approx([-0.2, 0.2, 1.2])


def test_a_composition_is_shares_of_rows_with_the_mean_of_the_diagonal() -> None:
    """By hand: 30 of 40 and 5 of 10, so (75 + 50) / 2; a domain without images has no shares."""
    figure = heatmaps.composition_map(
        ["a", "b", "c"], [[30, 10, 0], [5, 5, 0], [0, 0, 0]], chance=33.3, title="Support"
    )
    shown = words(figure)
    assert [shown.count(text) for text in ("75.0", "25.0", "50.0", EN_DASH)] == [1, 1, 2, 3]
    assert any("same domain: 62.5 % on average, 33.3 % by chance" in line for line in shown)


def test_a_composition_must_be_square() -> None:
    with pytest.raises(ValueError, match=r"counts must be 2 x 2, got shape \(1, 2\)"):
        heatmaps.composition_map(["a", "b"], [[1, 2]], chance=50.0, title="t")


def test_the_numbers_of_eighteen_domains_fit_into_their_cells() -> None:
    names = [f"domain_{number}" for number in range(18)]
    figure = heatmaps.composition_map(names, np.full((18, 18), 100.0).tolist(), chance=5.6, title="t")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (left, _), (right, _) = axes.transData.transform([(0, 0), (1, 0)])
    widest = max(text.get_window_extent().width for text in axes.texts)
    assert widest < 0.9 * (right - left)
    assert axes.texts[0].get_fontsize() >= 8


def test_gains_have_signs_and_gaps() -> None:
    rows = {"Tent": [1.25, None], "SAR": [-2.0, -0.01]}
    shown = words(heatmaps.gain_map(["a", "b"], rows, title="t"))
    numbers = [text for text in shown if text not in ("a", "b", "t", "Tent", "SAR")]
    assert numbers == ["+1.2", EN_DASH, f"{MINUS}2.0", "+0.0"]


def test_very_long_times_run_out_of_the_axis_and_say_how_long_they_are() -> None:
    stages = {"a": {"predict": 2.0}, "b": {"predict": 3.0}, "c": {"predict": 450.0}}
    figure = cost.stage_bars(stages, title="t")
    assert figure.axes[0].get_xlim()[1] < 5
    assert "450 →" in words(figure)


def test_names_beside_dots_do_not_hide_each_other() -> None:
    points = {name: (5.0 + 0.05 * n, 60.0 + 0.3 * n) for n, name in enumerate(METHODS)}
    figure = cost.cost_dots(points, title="t")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == len(METHODS)
    hidden = sum(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])
    assert hidden == 0


def test_dots_that_tie_do_not_hide_each_other() -> None:
    """Four methods that tie on some domains and almost tie on others: no two markers are on one spot."""
    domains = [f"domain {n}" for n in range(6)]
    accuracies = {
        "a": [50.0, 60.0, 90.0, 20.0, None, 70.0],
        "b": [50.0, 60.1, 80.0, 20.0, 30.0, 70.0],
        "c": [50.0, 60.2, 70.0, 90.0, 30.0, 70.5],
        "d": [50.0, 99.0, 60.0, 20.0, 30.0, 71.0],
    }
    figure = results.domain_dots(domains, accuracies, list(accuracies), title="t")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    points = np.array([axes.transData.transform(line.get_xydata()) for line in axes.lines]) * 72 / figure.dpi
    for row in range(len(domains)):
        for one, other in itertools.combinations(points[:, row], 2):
            if not np.isnan([one, other]).any():
                assert np.hypot(*(one - other)) > 6  # of the 7 points of a marker
        heights = [line.get_ydata()[row] for line in axes.lines]
        assert max(abs(height - row) for height in heights) < 0.5  # within its own row


def test_dots_that_do_not_tie_stay_on_their_line() -> None:
    figure = results.domain_dots(["x", "y"], {"a": [10.0, 20.0], "b": [80.0, 90.0]}, ["a", "b"], title="t")
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[0.0, 1.0], [0.0, 1.0]]
