"""Runs that the processes of a group share: the results of one process, written by the first."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch.distributed import ProcessGroup

from ramen.experiments.experiment import Experiment
from ramen.experiments.group import Team
from ramen.experiments.run import Run
from ramen.experiments.store import read_result
from ramen.experiments.workers import run_all
from tests.experiments.tiny_runs import FIXED, IMAGES, planned
from tests.helpers.process_team import ProcessTeam

METHODS = ("ramen", "tent", "tda")
SHORT = {"limit": 16}


def parts_of(group: ProcessGroup, batch: slice) -> tuple[slice, slice]:
    team = Team(group)
    return team.part(batch), team.readable(batch)


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_parts_are_consecutive_and_equal(team: ProcessTeam, count: int) -> None:
    batch = slice(20, 20 + count)
    parts, readable = zip(*team.run(parts_of, batch, processes=3), strict=True)
    numbers = [number for part in parts for number in range(part.start, part.stop)]
    assert numbers == list(range(20, 20 + count))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(part.stop > part.start and part.stop <= batch.stop for part in readable)


def run_in_group(group: ProcessGroup, experiments: list[Experiment], out: str) -> tuple[Any, str]:
    console = Console(record=True, file=io.StringIO())
    results = run_all(experiments, Path(out), console=console, group=group)
    return results, console.export_text()


def interrupted_run(group: ProcessGroup, experiment: Experiment, out: str, after: int) -> int:
    """A run that one process wants to end, after so many batches."""
    step, seen = Run.step, []

    def counted(self: Run, batch: slice, images: Any) -> Any:
        seen.append(batch)
        if len(seen) == after and group.rank() == 1:
            os.kill(os.getpid(), 2)
        return step(self, batch, images)

    Run.step = counted
    try:
        run_all([experiment], Path(out), console=Console(quiet=True), group=group)
    except KeyboardInterrupt:
        return len(seen)
    finally:
        Run.step = step
    return 0


def numbers(scores: Any, name: str = "") -> dict[str, Any]:
    """Nested scores by their full names."""
    if isinstance(scores, list):
        scores = {str(place): one for place, one in enumerate(scores)}
    if isinstance(scores, dict):
        parts = [numbers(scores[part], f"{name}.{part}") for part in scores]
        return {key: one for part in parts for key, one in part.items()}
    return {name: scores}


def nearly(scores: Any) -> dict[str, Any]:
    """What equals scores up to the rounding of passes with batches of another size."""
    return {
        name: pytest.approx(score, rel=1e-5) if isinstance(score, float) else score
        for name, score in numbers(scores).items()
    }


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["experiment"] == expected["experiment"]
    assert found["composition"] == expected["composition"]
    assert numbers(found["scores"]) == nearly(expected["scores"])
    methods = [result["provenance"]["method"] for result in (found, expected)]
    assert methods[0]["parameters"] == methods[1]["parameters"]
    chosen = [{name: one["value"] for name, one in method["chosen"].items()} for method in methods]
    assert chosen[0] == chosen[1]


def test_results_are_those_of_one_process(team: ProcessTeam, tmp_path: Path) -> None:
    experiments = planned(*METHODS, protocol_parameters=SHORT, **FIXED)
    expected = run_all(experiments, tmp_path / "one", console=Console(quiet=True))
    outcomes = team.run(run_in_group, experiments, str(tmp_path / "group"), processes=3)
    for results, _ in outcomes:
        for found, wanted in zip(results, expected, strict=True):
            same(found, wanted)
            assert found["cost"]["processes"] == 3
    assert read_result(experiments[0].path(tmp_path / "group")) == outcomes[0][0][0]
    texts = [text for _, text in outcomes]
    assert "method     ramen" in texts[0]
    assert texts[1:] == ["", ""]
    # A finished run is read by one of them, and known to all.
    again = team.run(run_in_group, experiments, str(tmp_path / "group"), processes=2)
    assert [results for results, _ in again] == [outcomes[0][0]] * 2


@pytest.mark.parametrize("method", ["ramen", "tent"])
def test_an_interrupted_run_resumes_in_any_number_of_processes(
    team: ProcessTeam, tmp_path: Path, method: str
) -> None:
    (experiment,) = planned(method, **(FIXED if method == "ramen" else {}))
    (expected,) = run_all([experiment], tmp_path / "one", console=Console(quiet=True))
    for processes in (1, 2):
        out = str(tmp_path / f"to-{processes}")
        stopped = team.run(interrupted_run, experiment, out, 2, processes=3)
        assert stopped == [2, 2, 2]
        if processes == 1:
            (found,) = run_all([experiment], Path(out), console=Console(quiet=True))
        else:
            found = team.run(run_in_group, [experiment], out, processes=processes)[0][0][0]
        same(found, expected)
        assert found["provenance"]["resumed"] == 1
        assert found["cost"]["images"] == IMAGES
        assert not list(experiment.path(Path(out)).parent.glob(".*"))
