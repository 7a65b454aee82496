"""How ``ramen study`` runs each study: from planned experiments and options to the study's function."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramen.data.dataset import Dataset, Domain
    from ramen.experiments.plan.experiment import Experiment
    from ramen.experiments.run.resources import Resources
    from ramen.experiments.studies.study_result import ReportProgress

_OTHER_DRAWINGS = 1000  # added to the seed of the tiny drawings for those of an attacker


def run_one(
    name: str,
    classifier: Any,
    stream: Any,
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    progress: "ReportProgress",
) -> dict[str, Any]:
    """The studies of similarity, of the cache and of cost."""
    from ramen.experiments.studies.cost import cost_study
    from ramen.experiments.studies.no_cache import no_cache_study
    from ramen.experiments.studies.similarity import similarity_study

    first = planned[0]
    shared: dict[str, Any] = {"batch": first.batch, "progress": progress}
    if name == "similarity":
        return similarity_study(classifier, stream, pairs=own["pairs"], seed=first.seed, **shared)
    if name == "no-cache":
        return no_cache_study(
            classifier,
            stream,
            first.parameters,
            queries=own["queries"],
            after=own["after"],
            seed=first.seed,
            **shared,
        )
    return cost_study(
        classifier,
        stream,
        [experiment.method for experiment in planned],
        {experiment.method: experiment.parameters for experiment in planned},
        warm_up=own["warm_up"],
        batches=own["batches"],
        **shared,
    )


def run_harm(
    classifier: Any,
    stream: Any,
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    clean: "Domain | str | None",
    progress: "ReportProgress",
) -> dict[str, Any]:
    """The named methods with the preset's parameters, or variants of Ramen."""
    from ramen.experiments.studies.harm import StudiedMethod, harm_study

    first = planned[0]
    methods: list[StudiedMethod] | None = None
    if own["method"]:
        methods = [StudiedMethod(one.method, one.method, one.parameters) for one in planned]
    return harm_study(
        classifier,
        stream,
        methods,
        clean=clean,
        seeds=range(first.seed, first.seed + own["seeds"]),
        images=own["images"],
        batch=first.batch,
        progress=progress,
    )


def run_poison(
    classifier: Any,
    resources: "Resources",
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    progress: "ReportProgress",
) -> dict[str, Any]:
    """Ramen's rows start from its own choices, not from the preset; other methods have the preset's."""
    from ramen.experiments.studies.attacks import ATTACKS, Budget
    from ramen.experiments.studies.poison import SHARES, method_rows, poison_study

    first = planned[0]
    rows = method_rows(
        classifier.num_classes,
        {e.method: e.overrides if e.method == "ramen" else e.parameters for e in planned},
        seeds=own["seeds"],
        baseline_seeds=own["baseline_seeds"],
    )
    seeded = [replace(first, seed=first.seed + n) for n in range(max(row.seeds for row in rows))]
    attackers = None
    if first.data == "tiny":
        drawings = {"picture_seed": first.data_options.get("picture_seed", 0) + _OTHER_DRAWINGS}
        others = [replace(e, data_options={**e.data_options, **drawings}) for e in seeded]
        attackers = [resources.stream(e) for e in others]
    return poison_study(
        classifier,
        [resources.stream(e) for e in seeded],
        rows,
        attackers=attackers,
        attacks=own["attack"] or tuple(ATTACKS),
        shares=own["share"] or SHARES,
        images=own["images"],
        attacker_images=own["attacker_images"],
        budget=Budget(own["eps"]),
        batch=first.batch,
        progress=progress,
    )


def clean_images(
    resources: Any, dataset: "Dataset", first: "Experiment", own: Mapping[str, Any]
) -> "Domain | str | None":
    """The clean domain, which some data sets leave out unless it is requested; None if there is none."""
    from ramen.experiments.studies.harm_streams import CLEAN

    name = own["clean"] or CLEAN
    if name in [domain.name for domain in dataset.domains]:
        return str(name)
    chosen: dict[str, Any] = {**first.data_options, "domains": [name]}
    if first.data == "tiny":  # as many drawings as needed can be made
        chosen["pictures"] = own["images"] * own["seeds"]
    try:
        found: Dataset = resources.stream(replace(first, data_options=chosen, protocol_parameters={})).dataset
    except ValueError:
        if own["clean"] is not None:
            raise
        return None
    if found.classes != dataset.classes:
        raise ValueError(f"--clean: the domain {name!r} must have the classes of the other domains")
    return found.domains[0]
