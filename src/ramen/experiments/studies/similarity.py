"""Do similar images come from the same domain? Pairs of a stream's images, binned by similarity."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.analysis import paper
from ramen.experiments.studies.similarity_pairs import Bins, exact_bins, sampled_bins
from ramen.experiments.studies.study_result import ReportProgress, no_progress, number, study, text_table
from ramen.experiments.tables.table import Table
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.numerics import plain_numerics

NAME = "similarity"
_BINS = 10
_PAPER_DATA = "cifar100c"


def similarity_study(
    classifier: ZeroShotClassifier,
    stream: Stream,
    *,
    batch: int = 100,
    pairs: int | None = None,
    seed: int = 0,
    progress: ReportProgress = no_progress,
) -> dict[str, Any]:
    """The share of same-domain pairs by similarity, among all pairs and among those of one pseudo-class.

    Args:
        classifier: Embeds the images and predicts their pseudo-classes, without adaptation.
        stream: The images; their order has no effect.
        batch: Images that are embedded at a time.
        pairs: Draw this many pairs instead of using all of them.
        seed: Decides which pairs are drawn.
        progress: Called with the step's name, how much of it is done, and how much there is.
    """
    embeddings, pseudo_classes = embed(classifier, stream, batch, progress)
    usable = embeddings.isfinite().all(1)
    domains = torch.from_numpy(stream.domain.copy()).to(embeddings.device)
    given = embeddings[usable], domains[usable], pseudo_classes[usable]
    if pairs is None:
        found = exact_bins(*given, progress=lambda done, total: progress("comparing pairs", done, total))
    else:
        found = sampled_bins(*given, pairs, seed=seed)
    reported = paper.reported_similarity_bins(_PAPER_DATA)
    assert reported is not None
    printed, note = reported
    data = {
        "images": len(stream),
        "left_out": int((~usable).sum()),
        "domains": len(stream.dataset.domains),
        "pairs_drawn": pairs,
        "seed": None if pairs is None else seed,
        "readings": {name: None if bins is None else _plain(bins) for name, bins in found.items()},
        "paper": list(printed),
        "paper_note": note,
    }
    return study(
        NAME,
        f"Same-domain pairs by similarity, {len(stream):,} images of {stream.dataset.name}",
        [_table(data)],
        data,
    )


@plain_numerics()
@torch.no_grad()
def embed(
    classifier: ZeroShotClassifier, stream: Stream, batch: int, progress: Callable[[str, int, int], object]
) -> tuple[Tensor, Tensor]:
    """Zero-shot embeddings ``(N, d)`` and predicted classes ``(N,)`` of a stream, in its order."""
    embeddings: list[Tensor] = []
    classes: list[Tensor] = []
    for part in stream.batches(batch):
        images = classifier.preprocess(stream.read(part)).to(classifier.device)
        embeddings.append(classifier.encode(images))
        classes.append(classifier.logits(embeddings[-1]).argmax(1))
        progress("embedding", part.stop, len(stream))
    return torch.cat(embeddings), torch.cat(classes)


def _plain(bins: Bins) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(bins).items()}


def _table(data: dict[str, Any]) -> Table:
    titles = {"all": "all pairs, %", "class": "of one pseudo-class, %"}
    readings = data["readings"]
    printed = data["paper"]
    rows = []
    for place in range(_BINS):
        extreme = {0: ", most similar", _BINS - 1: ", least similar"}.get(place, "")
        shares = [_share(readings[name], place) for name in titles]
        rows.append([f"{place + 1}{extreme}", *shares, number(printed[place])])
    whole = [number(None if reading is None else reading["same_domain"], 2) for reading in readings.values()]
    rows.append(["all bins", *whole, number(sum(printed) / _BINS, 2)])
    counts = [0 if reading is None else reading["pairs"] for reading in readings.values()]
    how = "all of them" if data["pairs_drawn"] is None else "drawn at random, ± their standard error"
    notes = [f"{counts[0]:,} pairs and {counts[1]:,} of one pseudo-class, {how}."]
    if data["left_out"]:
        notes.append(f"{data['left_out']:,} images without a finite embedding are left out.")
    notes.append(f"The paper's, of CIFAR-100-C with ViT-B/16: {data['paper_note']}.")
    heads = ["bin", *titles.values(), "paper, %"]
    return text_table("Share of same-domain pairs by similarity", heads, rows, *notes)


def _share(reading: dict[str, Any] | None, place: int) -> str:
    if reading is None:
        return number(None)
    error = "" if reading["errors"] is None else f" ± {reading['errors'][place]:.2f}"
    return number(reading["shares"][place], 2) + error
