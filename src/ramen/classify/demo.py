"""The end of ``ramen demo``: its drawings as files, classified as ``ramen classify`` does it."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from rich.console import Console
from torch import Tensor

from ramen.classify.command import ClassifyRequest
from ramen.classify.output import journal_path, results_of
from ramen.classify.run import ClassifyReport, classify_files
from ramen.data.drawings.shapes import OBJECTS
from ramen.experiments.demo import drawings
from ramen.utils import files

PER_DOMAIN, PER_DOMAIN_QUICK = 24, 16  # enough to learn something from


def classify_drawings(
    out: Path, console: Console, *, classes: Sequence[str] | None = None, seed: int = 0, quick: bool = False
) -> ClassifyReport:
    """Write drawings to ``out/drawings``, classify them into ``out``, and print what that was.

    Args:
        out: Folder of the demo. Drawings and labels of an earlier demo are replaced.
        console: Where to print.
        classes: Names to classify into; all that can be drawn if None.
        seed: Decides the drawings.
        quick: Make few of them.
    """
    names = list(OBJECTS) if classes is None else list(classes)
    folder, labels, page = out / "drawings", out / "labels.csv", out / "changes.html"
    for old in (*folder.glob("[0-9]*-*.png"), labels, journal_path(labels)):
        old.unlink(missing_ok=True)
    truth = write_drawings(folder, names, PER_DOMAIN_QUICK if quick else PER_DOMAIN, seed)
    listed = out / "classes.txt"
    files.write_text(listed, "".join(f"{name}\n" for name in names))

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"The same from the command line, for {len(truth):,} drawings in files:\n")
    say(f"  ramen classify {folder} --classes-file {listed} --model tiny --out {labels} --page {page}\n")
    request = ClassifyRequest((str(folder),), labels, names, page=page, device="cpu", dtype="float32")
    report = classify_files(request, console)
    right, wrong = _judged(labels, truth)
    summary = report.summary | {"became_right": right, "became_wrong": wrong}
    say(
        f"Adaptation changed {summary['changed']:,} of {summary['answers']:,} labels: {right:,} became right "
        f"and {wrong:,} wrong.\nLabels:  {labels}\nPage:    {page}\n"
    )
    return ClassifyReport(summary, report.exit_code)


def write_drawings(folder: Path, classes: Sequence[str], per_domain: int, seed: int) -> dict[str, str]:
    """Write a mixed bag of drawings as PNG files whose names say what they are.

    Args:
        folder: Where.
        classes: All class names; those that can be drawn are.
        per_domain: Drawings of each domain.
        seed: Decides them.

    Returns:
        The class of each path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stream = drawings(classes, per_domain, seed)
    pixels = stream.read(slice(0, len(stream)))
    assert isinstance(pixels, Tensor)
    domains = [domain.name.replace("_", "-") for domain in stream.dataset.domains]
    truth = {}
    for place, (image, label, domain) in enumerate(zip(pixels, stream.labels(), stream.domain, strict=True)):
        name = f"{place:03}-{classes[int(label)]}-{domains[int(domain)]}.png".replace(" ", "-")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / name)
        truth[str(folder / name)] = classes[int(label)]
    return truth


def _judged(labels: Path, truth: dict[str, str]) -> tuple[int, int]:
    """How many changed labels are right now, and how many were right before."""
    changed = [result for result in results_of(labels) if result.changed]
    right = sum(result.label == truth[result.key] for result in changed)
    return right, sum(result.zero_shot_label == truth[result.key] for result in changed)
