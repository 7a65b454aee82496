"""The demo over several seeds, and how its hyper-parameters were chosen.

    python benchmarks/tiny.py                     # seeds 0, 1, 2 with the demo's settings
    python benchmarks/tiny.py --tune              # compare settings, on streams of other seeds

Accuracies are the mean over domains in percent; gains are over zero-shot on the same images.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring import command, write
from rich.console import Console

from ramen.data.drawings import styles
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.drawings.tiny import DOMAINS, draw_images
from ramen.experiments import demo
from ramen.experiments.experiment import Experiment
from ramen.experiments.render import Table, print_tables
from ramen.experiments.run import Run
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
    """Zero-shot on new images of the kind that the model was trained on."""
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
    rows = []
    summary: dict[str, Any] = {}
    for of_seeds in zip(*runs, strict=True):
        name = of_seeds[0]["experiment"]["method"]
        averages = [one["scores"]["average"] for one in of_seeds]
        gains = [one["scores"]["difference"]["points"] for one in of_seeds]
        shares = [one["composition"]["same_domain"] / 100 for one in of_seeds if one["composition"]]
        milliseconds = statistics.mean(one["cost"]["ms_an_image"] for one in of_seeds)
        summary[name] = {
            "average": averages,
            "difference": gains,
            "same_domain_share": shares,
            "ms_an_image": milliseconds,
        }
        rows.append(
            (
                demo.title(name),
                spread(averages, ".2f"),
                spread(gains, "+.2f"),
                f"{milliseconds:.2f}",
                f"{statistics.mean(shares):.1%}" if shares else "",
            )
        )
    heads = ("method", "average", "above zero-shot", "ms per image", "same domain")
    clean = clean_accuracy(seeds[0])
    notes = (
        f"Zero-shot on clean images: {clean:.2f}.",
        f"Same domain: the share of retrieved entries; by chance {1 / len(DOMAINS):.1%}.",
    )
    title = f"The demo over seeds {', '.join(map(str, seeds))}"
    print_tables(console, [Table.of_texts(title, heads, rows, *notes)])
    return {"seeds": seeds, "methods": summary, "clean_zero_shot": clean, "chance_share": 1 / len(DOMAINS)}


def spread(values: list[float], form: str) -> str:
    """A mean over seeds with its deviation, if there are several."""
    mean = format(statistics.mean(values), form)
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2f}"


def tune(seeds: list[int], console: Console) -> dict[str, Any]:
    classifier = load_tiny(list(OBJECTS))
    streams = [demo.drawings(list(OBJECTS), demo.PER_DOMAIN, seed) for seed in seeds]
    rows = []
    for name, settings in GRID.items():
        for parameters in settings:
            averages = []
            for stream in streams:
                experiment = Experiment(name, "tiny", "tiny", parameters=parameters, seed=stream.seed)
                run = Run(experiment, classifier, stream)
                run.go()
                averages.append(run.outcome.scores(run.refused)["average"])
            rows.append({"method": name, "parameters": parameters, "average": averages})
            console.print(f"{name:9} {parameters!s:45} {statistics.mean(averages):.2f}", highlight=False)
    return {"seeds": seeds, "rows": rows}


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--tune", action="store_true", help="compare settings instead")
    parser.add_argument("--seeds", type=int, nargs="+", help="0 1 2, and 100 101 with --tune")
    options = parser.parse_args()
    if options.tune:
        results = tune(options.seeds or [100, 101], Console())
    else:
        results = several_seeds(options.seeds or [0, 1, 2], Console())
    write(options, results)


if __name__ == "__main__":
    main()
