"""The demo over several seeds, and how its hyper-parameters were chosen.

    python benchmarks/tiny.py                     # seeds 0, 1, 2 with the demo's settings
    python benchmarks/tiny.py --tune              # settings beside each other, on streams of other seeds

Accuracies are the mean over domains in percent; differences are to zero-shot on the same images.
"""

import argparse
import json
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ramen import scoring
from ramen.data.drawings import styles
from ramen.data.drawings.domains import DOMAINS, mixed_stream
from ramen.data.drawings.images import draw_images
from ramen.data.drawings.shapes import OBJECTS
from ramen.experiments import demo
from ramen.models.tiny_clip.model import load_tiny

_RAMEN = [  # topk, beta, lr
    *((3, 0.0, lr) for lr in (1e-2, 2e-2, 3e-2)),
    *((3, beta, 2e-2) for beta in (1.0, 5.0)),
    *((topk, 0.0, 2e-2) for topk in (1, 5, 10)),
]
GRID: dict[str, list[dict[str, float]]] = {
    demo.ZERO_SHOT: [{}],
    "entmin": [{"lr": lr} for lr in (5e-3, 1e-2, 2e-2)],
    "tent": [{"lr": lr} for lr in (1e-4, 3e-4, 1e-3, 3e-3)],
    "ramen": [{"topk": topk, "beta": beta, "lr": lr} for topk, beta, lr in _RAMEN],
}


def clean_accuracy(seed: int) -> float:
    """Zero-shot on pictures like those of the training set, but others."""
    names = [name for name in OBJECTS for _ in styles.TRAINED for _ in range(5)]
    drawn_in = [style for _ in OBJECTS for style in styles.TRAINED for _ in range(5)]
    classifier = load_tiny(list(OBJECTS))
    pixels = torch.from_numpy(draw_images(names, drawn_in, (seed, 5)).pixels).permute(0, 3, 1, 2)
    labels = torch.tensor([list(OBJECTS).index(name) for name in names])
    with torch.no_grad():
        logits = classifier.logits(classifier.encode(classifier.preprocess(pixels)))
    return 100 * float((logits.argmax(1) == labels).float().mean())


def several_seeds(seeds: list[int], console: Console) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs = [demo.run(seed=seed, out=Path(folder), console=Console(quiet=True)) for seed in seeds]
    table = Table(title=f"The demo over seeds {', '.join(map(str, seeds))}")
    for column in ("method", "average", "difference to zero-shot", "ms an image", "same domain"):
        table.add_column(column, justify="left" if column == "method" else "right")
    summary: dict[str, Any] = {}
    for name in runs[0]["methods"]:
        of_seeds = [run["methods"][name] for run in runs]
        averages = [entry["average"] for entry in of_seeds]
        gains = [entry["difference"]["points"] for entry in of_seeds]
        shares = [run["same_domain_share"][name] for run in runs if name in run["same_domain_share"]]
        milliseconds = statistics.mean(entry["ms_an_image"] for entry in of_seeds)
        summary[name] = {
            "average": averages,
            "difference": gains,
            "same_domain_share": shares,
            "ms_an_image": milliseconds,
        }
        table.add_row(
            demo.title(name),
            f"{statistics.mean(averages):.2f} ± {_deviation(averages):.2f}",
            f"{statistics.mean(gains):+.2f} ± {_deviation(gains):.2f}",
            f"{milliseconds:.2f}",
            f"{statistics.mean(shares):.1%}" if shares else "",
        )
    console.print(table)
    clean = clean_accuracy(seeds[0])
    console.print(f"zero-shot on clean pictures: {clean:.2f}; same domain by chance: {1 / len(DOMAINS):.1%}")
    return {"seeds": seeds, "methods": summary, "clean_zero_shot": clean, "chance_share": 1 / len(DOMAINS)}


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def tune(seeds: list[int], console: Console) -> dict[str, Any]:
    classifier = load_tiny(list(OBJECTS))
    streams = [mixed_stream(list(OBJECTS), demo.PER_DOMAIN, seed) for seed in seeds]
    rows = []
    for name, settings in GRID.items():
        for parameters in settings:
            averages = []
            for seed, stream in zip(seeds, streams, strict=True):
                images = classifier.preprocess(stream.pixels)
                run = demo.run_method(
                    name, parameters, classifier, images, stream, seed, Progress(disable=True)
                )
                accuracies = scoring.domain_accuracies(run.correct, stream.domains, len(DOMAINS))
                averages.append(float(accuracies.mean()))
            rows.append({"method": name, "parameters": parameters, "average": averages})
            console.print(f"{name:9} {parameters!s:45} {statistics.mean(averages):.2f}", highlight=False)
    return {"seeds": seeds, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="compare settings instead")
    parser.add_argument("--seeds", type=int, nargs="+", help="0 1 2, and 100 101 with --tune")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    console = Console()
    if options.tune:
        results = tune(options.seeds or [100, 101], console)
    else:
        results = several_seeds(options.seeds or [0, 1, 2], console)
    results["versions"] = {"torch": torch.__version__, "python": platform.python_version()}
    results["machine"] = f"{platform.machine()}, {torch.get_num_threads()} threads"
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
