"""How ``ramen study`` runs each study: from planned experiments and options to the study's function."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramen.data.dataset import Dataset, Domain
    from ramen.data.streams.stream import Stream
    from ramen.experiments.plan.experiment import Experiment
    from ramen.experiments.run.resources import Resources
    from ramen.experiments.studies.combinations import DivideCombinations
    from ramen.experiments.studies.harm import DivideHarm, StudiedMethod
    from ramen.experiments.studies.harm_gains import GainRow
    from ramen.experiments.studies.poison import AttackPlan, DividePoison, PoisonedMethod
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
    divide: "DivideHarm | None" = None,
) -> dict[str, Any]:
    """The named methods with the preset's parameters, or variants of Ramen."""
    from ramen.experiments.studies.harm import harm_study

    first = planned[0]
    return harm_study(
        classifier,
        stream,
        _harm_columns(classifier, planned, own),
        clean=clean,
        seeds=range(first.seed, first.seed + own["seeds"]),
        images=own["images"],
        batch=first.batch,
        progress=progress,
        divide=divide,
    )


def harm_part(
    resources: "Resources",
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    part: tuple[str, int],
    progress: "ReportProgress",
) -> "dict[str, GainRow]":
    """One column and one seed of the study of harm."""
    from ramen.experiments.studies.harm import gain_rows
    from ramen.experiments.studies.harm_streams import HarmImages

    first, (title, seed) = planned[0], part
    stream = resources.stream(first)
    classifier = resources.classifier(first, stream.dataset.classes)
    clean = clean_images(resources, stream.dataset, first, own)
    column = next(one for one in _harm_columns(classifier, planned, own) if one.title == title)
    images = HarmImages.of(stream, clean)
    return gain_rows(
        classifier, images, [column], [seed], images=own["images"], batch=first.batch, progress=progress
    )


def _harm_columns(
    classifier: Any, planned: "list[Experiment]", own: Mapping[str, Any]
) -> "list[StudiedMethod]":
    from ramen.experiments.studies.harm import StudiedMethod, ramen_variants

    if own["method"]:
        return [StudiedMethod(one.method, one.method, one.parameters) for one in planned]
    return ramen_variants(classifier.num_classes)


def run_poison(
    classifier: Any,
    resources: "Resources",
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    progress: "ReportProgress",
    divide: "DividePoison | None" = None,
) -> dict[str, Any]:
    """Ramen's rows start from its own choices, not from the preset; other methods have the preset's."""
    from ramen.experiments.studies.poison import poison_study

    rows = _poison_rows(classifier, planned, own)
    count = max(row.seeds for row in rows)
    streams, attackers = zip(*(_scene_streams(resources, planned[0], n) for n in range(count)), strict=True)
    attack_plan = _attack_plan(planned[0], own)
    return poison_study(
        classifier,
        streams,
        rows,
        attackers=None if attackers[0] is None else attackers,
        attacks=attack_plan.attacks,
        shares=attack_plan.shares,
        images=own["images"],
        attacker_images=own["attacker_images"],
        budget=attack_plan.budget,
        batch=attack_plan.batch,
        progress=progress,
        divide=divide,
    )


def poison_part(
    resources: "Resources",
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    part: tuple[str, int],
    progress: "ReportProgress",
) -> dict[str, Any]:
    """One row and one seed of the study of attackers."""
    from ramen.experiments.studies.poison import PoisonedScene, poisoned_accuracies

    first, (label, number) = planned[0], part
    stream, attacker = _scene_streams(resources, first, number)
    classifier = resources.classifier(first, stream.dataset.classes)
    row = next(one for one in _poison_rows(classifier, planned, own) if one.label == label)
    scene = PoisonedScene.of(classifier, stream, attacker, own["images"], own["attacker_images"])
    attack_plan = _attack_plan(first, own)
    return poisoned_accuracies(scene, row, attack_plan, lambda done: progress("runs", done, attack_plan.runs))


def _poison_rows(
    classifier: Any, planned: "list[Experiment]", own: Mapping[str, Any]
) -> "list[PoisonedMethod]":
    from ramen.experiments.studies.poison import method_rows

    return method_rows(
        classifier.num_classes,
        {e.method: e.overrides if e.method == "ramen" else e.parameters for e in planned},
        seeds=own["seeds"],
        baseline_seeds=own["baseline_seeds"],
        defences=own["defences"],
    )


def _scene_streams(
    resources: "Resources", first: "Experiment", number: int
) -> "tuple[Stream, Stream | None]":
    """The stream of a seed, and one with an attacker's own images if as many as needed can be drawn."""
    seeded = replace(first, seed=first.seed + number)
    if first.data != "tiny":
        return resources.stream(seeded), None
    drawings = {"picture_seed": first.data_options.get("picture_seed", 0) + _OTHER_DRAWINGS}
    other = replace(seeded, data_options={**seeded.data_options, **drawings})
    return resources.stream(seeded), resources.stream(other)


def run_combinations(
    classifier: Any,
    resources: "Resources",
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    progress: "ReportProgress",
    divide: "DivideCombinations | None" = None,
) -> dict[str, Any]:
    """All variants with the parameters that are planned for Ramen."""
    from ramen.experiments.studies.combinations import chosen_variants, combinations_study

    first, rows = planned[0], chosen_variants(own["variant"])
    streams = [resources.stream(replace(first, seed=first.seed + number)) for number in range(own["seeds"])]
    return combinations_study(
        classifier, streams, first.parameters, rows, batch=first.batch, progress=progress, divide=divide
    )


def combinations_part(
    resources: "Resources",
    planned: "list[Experiment]",
    own: Mapping[str, Any],
    part: tuple[str, int],
    progress: "ReportProgress",
) -> Any:
    """One variant and one seed of the study of combinations."""
    from ramen.experiments.studies.combinations import NAME, right_answers, variants
    from ramen.experiments.studies.harm_gains import ShownImages
    from ramen.experiments.studies.harm_streams import HarmStream

    first, (title, number) = planned[0], part
    stream = resources.stream(replace(first, seed=first.seed + number))
    classifier = resources.classifier(first, stream.dataset.classes)
    variant = next(one for one in variants() if one.title == title)
    shown = ShownImages.of(classifier, HarmStream(NAME, stream), first.batch)
    return right_answers(classifier, shown, variant, first.parameters, first.batch)


def _attack_plan(first: "Experiment", own: Mapping[str, Any]) -> "AttackPlan":
    from ramen.experiments.studies.attacks import ATTACKS, Budget
    from ramen.experiments.studies.poison import SHARES, AttackPlan

    return AttackPlan(
        own["attack"] or tuple(ATTACKS), own["share"] or SHARES, Budget(own["eps"]), first.batch
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
