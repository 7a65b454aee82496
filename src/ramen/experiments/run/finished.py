"""Results of earlier commands: read, if they are of the same experiment and the same data."""

from pathlib import Path
from typing import Any

from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.run import provenance
from ramen.experiments.run.resources import Resources
from ramen.experiments.run.results import DamagedResultError, read_result


def finished_result(experiment: Experiment, path: Path, resources: Resources) -> dict[str, Any] | None:
    """The result in the file, if it is of this experiment; None if there is no file.

    Args:
        experiment: What may have been run.
        path: The file of its result.
        resources: Where its data is loaded, if that must be compared.
    """
    try:
        result = read_result(path)
    except FileNotFoundError:
        return None
    try:
        recorded = result["provenance"]["method"]["parameters"]
        same = {**result["experiment"], "parameters": recorded} == {
            **experiment.identity(),
            "parameters": experiment.all_parameters(),
        }
        data = {"root": None, **result["provenance"]["dataset"]}
    except (KeyError, TypeError) as error:
        raise DamagedResultError(f"{path} is not the result of a run: it has no {error}; remove it") from None
    if not same:
        raise ValueError(f"{path} is the result of another experiment; remove it, or choose another folder")
    _check_data(experiment, path, data, resources)
    return result


def _check_data(experiment: Experiment, path: Path, recorded: dict[str, Any], resources: Resources) -> None:
    """Data in another folder may be the same or not: a result of other data must not be returned."""
    root = None if experiment.root is None else str(Path(experiment.root).expanduser().resolve())
    if recorded["root"] == root:
        return
    found = provenance.dataset_block(resources.stream(experiment).dataset, None)
    differing = [key for key in found if key != "root" and found[key] != recorded.get(key)]
    if differing:
        raise ValueError(
            f"{path} is the result of other data, in {recorded['root']}: {root} differs in "
            f"{', '.join(differing)}; choose another folder for results"
        )
