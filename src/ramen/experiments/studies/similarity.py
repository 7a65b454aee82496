"""Are similar images of one domain? Pairs of a stream's embeddings in bins of falling similarity."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ramen.classifier import ZeroShotClassifier
from ramen.data.streams import Stream
from ramen.devices import plain_numerics
from ramen.experiments.studies.pairs import Bins, exact_bins, sampled_bins
from ramen.experiments.studies.results import Advance, Table, cell, no_advance, study

NAME = "similarity"
# The paper's Table 4: CIFAR-100-C, ViT-B/16, ten bins from the most similar pairs on, percent of one domain.
PAPER = (40.1, 16.9, 12.3, 10.0, 8.6, 7.6, 6.8, 6.2, 5.6, 4.5)
PAPER_NOTE = (
    "The paper's values are for CIFAR-100-C and ViT-B/16. They average 11.86 %, but bins of equal count over "
    "all pairs must average the share of all pairs, 6.67 % for its 15 domains of equal size: the paper's "
    "pairs are not all pairs. Pairs of one pseudo-class, what a class's queue compares, are another reading."
)


def similarity_study(
    classifier: ZeroShotClassifier,
    stream: Stream,
    *,
    batch: int = 100,
    pairs: int | None = None,
    seed: int = 0,
    advance: Advance = no_advance,
) -> dict[str, Any]:
    """The share of pairs of one domain, by similarity, among all pairs and those of one pseudo-class.

    Args:
        classifier: Embeds the images, and names their pseudo-classes, without adaptation.
        stream: Whose images; the order plays no part.
        batch: Images that are embedded at a time.
        pairs: Draw so many pairs instead of looking at all of them.
        seed: Decides which.
        advance: Called with what is going on, how much of it is done, and how much there is.
    """
    embeddings, pseudo_classes = embed(classifier, stream, batch, advance)
    usable = embeddings.isfinite().all(1)
    domains = torch.from_numpy(stream.domain.copy()).to(embeddings.device)
    given = embeddings[usable], domains[usable], pseudo_classes[usable]
    if pairs is None:
        found = exact_bins(*given, advance=lambda done, total: advance("comparing pairs", done, total))
    else:
        found = sampled_bins(*given, pairs, seed=seed)
    data = {
        "images": len(stream),
        "left_out": int((~usable).sum()),
        "domains": len(stream.dataset.domains),
        "pairs_drawn": pairs,
        "seed": None if pairs is None else seed,
        "readings": {name: None if bins is None else _plain(bins) for name, bins in found.items()},
        "paper": list(PAPER),
    }
    return study(
        NAME,
        f"Pairs of one domain by similarity, {len(stream):,} images of {stream.dataset.name}",
        [_table(data)],
        data,
    )


@plain_numerics()
@torch.no_grad()
def embed(
    classifier: ZeroShotClassifier, stream: Stream, batch: int, advance: Callable[[str, int, int], object]
) -> tuple[Tensor, Tensor]:
    """Zero-shot embeddings ``(N, d)`` and predicted classes ``(N,)`` of a stream, in its order."""
    embeddings: list[Tensor] = []
    classes: list[Tensor] = []
    for part in stream.batches(batch):
        images = classifier.preprocess(stream.read(part)).to(classifier.device)
        embeddings.append(classifier.encode(images))
        classes.append(classifier.logits(embeddings[-1]).argmax(1))
        advance("embedding", part.stop, len(stream))
    return torch.cat(embeddings), torch.cat(classes)


def _plain(bins: Bins) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(bins).items()}


def _table(data: dict[str, Any]) -> Table:
    titles = {"all": "all pairs, %", "class": "of one pseudo-class, %"}
    readings = data["readings"]
    rows = []
    for number, paper in enumerate(PAPER):
        cells = [_share(readings[name], number) for name in titles]
        rows.append([_place(number), *cells, cell(paper, 1)])
    everything = [cell(None if r is None else r["same_domain"], 2) for r in readings.values()]
    rows.append(["all together", *everything, cell(sum(PAPER) / len(PAPER), 2)])
    counted = " and ".join(
        f"{0 if r is None else r['pairs']:,} {'pairs' if name == 'all' else 'of one pseudo-class'}"
        for name, r in readings.items()
    )
    how = "every pair counted" if data["pairs_drawn"] is None else "pairs drawn at random, ± standard error"
    left_out = f" {data['left_out']} images without a finite embedding are left out." * bool(data["left_out"])
    return Table(
        "Share of pairs that are of one domain",
        ["bin", *titles.values(), "paper, %"],
        rows,
        f"{counted}; {how}.{left_out} {PAPER_NOTE}",
    )


def _share(reading: dict[str, Any] | None, number: int) -> str:
    if reading is None:
        return cell(None)
    error = "" if reading["errors"] is None else f" ± {reading['errors'][number]:.2f}"
    return cell(reading["shares"][number], 2) + error


def _place(number: int) -> str:
    return f"{number + 1}" + {0: ", most similar", len(PAPER) - 1: ", least similar"}.get(number, "")
