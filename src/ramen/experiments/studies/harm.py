"""Whether adaptation does harm: gains over zero-shot, also on streams on which there is nothing to gain.

All methods and zero-shot answer the same images. Harm is an accuracy below that of zero-shot.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramen.data.dataset import Dataset, Domain
from ramen.data.streams.stream import Stream
from ramen.experiments.plan.values import plain
from ramen.experiments.studies.harm_gains import GainRow, ShownImages
from ramen.experiments.studies.harm_streams import BEGINNINGS, HarmImages, beginning_title
from ramen.experiments.studies.harm_tables import gain_table, worst_table
from ramen.experiments.studies.study_result import ReportProgress, no_progress, study
from ramen.methods._choices import paper_values
from ramen.methods._registry import create, describe
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks

NAME = "harm"
# From the title of a column and a seed, for each part, to the rows of each part
DivideHarm = Callable[[Sequence[tuple[str, int]]], Sequence[Mapping[str, GainRow]]]


@dataclass(frozen=True)
class StudiedMethod:
    """A column of the table: a registered method with some of its parameters."""

    title: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def ramen_variants(classes: int) -> list[StudiedMethod]:
    """Ramen with the paper's values for this number of classes, without its guard, and as it is."""
    return [
        StudiedMethod("Ramen: paper", "ramen", paper_values(classes)),
        StudiedMethod("Ramen: no guard", "ramen", {"guard": 0.0}),
        StudiedMethod("Ramen", "ramen"),
    ]


def harm_study(
    classifier: ZeroShotClassifier,
    source: Dataset | Stream,
    methods: Sequence[StudiedMethod] | None = None,
    *,
    clean: Domain | str | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    images: int = 1000,
    batch: int = 100,
    progress: ReportProgress = no_progress,
    divide: DivideHarm | None = None,
) -> dict[str, Any]:
    """Accuracy minus that of zero-shot, for streams in which adaptation may help or harm.

    The preprocessed images of one stream at a time are held in memory, on the classifier's device.

    Args:
        classifier: What is adapted; it must have preprocessing.
        source: Where the images are from. Of a stream only the images matter: the study orders them itself.
        methods: The columns of the table; by default ``ramen_variants``.
        clean: Images as the model knows them: a domain, or the name of one of ``source``. Without it, the
            domain called "clean" if there is one. These images come in no other stream.
        seeds: Each draws images and orders anew.
        images: Per stream, if there are as many; the mixed stream has twice as many.
        batch: Images per batch.
        progress: Called with the step's name, how much of it is done, and how much there is.
        divide: Runs parts of the study elsewhere: it gets the title of a column and a seed for each, and
            returns what ``gain_rows`` returns for each.
    """
    checks.integer("images", images, 1)
    checks.integer("batch", batch, 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be at least one, each once, got {list(seeds)}")
    parts = HarmImages.of(source, clean)
    known = parts.pool.dataset.classes
    if len(known) != classifier.num_classes:
        raise ValueError(
            f"classifier must have the {len(known)} classes of {parts.pool.dataset.name}, "
            f"got {classifier.num_classes}"
        )
    columns = ramen_variants(classifier.num_classes) if methods is None else list(methods)
    titles = [column.title for column in columns]
    if not columns or len(set(titles)) < len(titles):
        raise ValueError(f"methods must be at least one, each with a title of its own, got {titles}")
    given = {column.title: _parameters(column, batch) for column in columns}
    described = {}
    for column in columns:  # raises for a bad name or parameter before anything starts
        values = create(column.method, classifier, **given[column.title]).parameters
        described[column.title] = {
            "method": column.method,
            "parameters": plain(given[column.title]),
            "runs_with": plain({name: value for name, value in values.items() if name != "seed"}),
        }
    if divide is None:
        rows = gain_rows(classifier, parts, columns, seeds, images=images, batch=batch, progress=progress)
    else:
        rows = {}
        for part in divide([(title, seed) for seed in seeds for title in titles]):
            for title, row in part.items():
                rows.setdefault(title, GainRow()).extend(row)
    data = {
        "dataset": parts.pool.dataset.name,
        "classes": classifier.num_classes,
        "seeds": list(seeds),
        "images": images,
        "batch": batch,
        "device": str(classifier.device),
        "dtype": str(classifier.dtype).removeprefix("torch."),
        "methods": described,
        "rows": {title: row.summary() for title, row in rows.items()},
        "left_out": _left_out(parts, rows),
    }
    title = f"Harm on {data['dataset']}: accuracy minus that of zero-shot, {len(seeds)} seeds"
    return study(NAME, title, [gain_table(data), worst_table(data)], data)


def gain_rows(
    classifier: ZeroShotClassifier,
    parts: HarmImages,
    columns: Sequence[StudiedMethod],
    seeds: Sequence[int],
    *,
    images: int,
    batch: int,
    progress: ReportProgress = no_progress,
) -> dict[str, GainRow]:
    """The rows of the table, for some of its columns and seeds; arguments as those of ``harm_study``."""
    streams = [stream for seed in seeds for stream in parts.streams(images, seed)]
    total, done = sum(map(len, streams)) * len(columns), 0
    rows: dict[str, GainRow] = {}
    for stream in streams:
        shown = ShownImages.of(classifier, stream, batch)
        for column in columns:
            progress("answering images", done, total)
            seeded = {"seed": stream.real.seed, **_parameters(column, batch)}
            # Never two at a time: how much memory is free decides what a method chooses.
            right = shown.right_answers(create(column.method, classifier, **seeded), batch)
            for title, count in ((stream.title, len(right)), *stream.beginnings):
                rows.setdefault(title, GainRow()).add(column.title, right[:count], shown)
            done += len(stream)
    progress("answering images", done, total)
    return rows


def _parameters(column: StudiedMethod, batch: int) -> dict[str, Any]:
    """As given; memories that are as large as a batch by the method's record are so here."""
    return {**dict.fromkeys(describe(column.method).batch_sized, batch), **column.parameters}


def _left_out(parts: HarmImages, rows: Mapping[str, object]) -> list[str]:
    missing = [f"{beginning_title(n)} (too few images)" for n in BEGINNINGS if beginning_title(n) not in rows]
    return missing + (["clean images (no domain is known to be clean)"] if parts.clean is None else [])
