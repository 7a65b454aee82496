"""Accuracy of methods on a mixed stream, for a model and a stream given as files.

    python benchmarks/accuracy.py MODEL_FOLDER STREAM.npz
    python benchmarks/accuracy.py MODEL_FOLDER STREAM.npz --run ramen:lr=0.01,topk=50 --run tent --seeds 3

The folder holds ``config.json`` (``architecture``: arguments of open_clip's VisionTransformer, ``mean``,
``std``, ``logit_scale``, ``templates``), ``vision.safetensors`` (its weights) and
``text_features.safetensors``: a tensor (classes, templates, width) under the name that --text gives, of whose
templates the first seven are the ensemble. The stream holds ``labels`` (n,) and, for each domain, an array
(n, H, W, 3) of uint8; an array called ``clean`` is left out. All domains are mixed by one random
permutation. Accuracies are the mean over domains; "same domain" is the share of the retrieved entries that
come from the image's own domain.
"""

import argparse
import ast
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from safetensors.torch import load_file

import ramen

DEFAULT_RUNS = [
    "ensemble",
    "clip",
    "tent:lr=1e-4",
    "entmin:lr=1e-2",
    "ramen:capacity=750,topk=50,beta=5.0,lr=1e-2",
    "ramen:capacity=750,topk=50,beta=5.0,lr=2e-2",
]


def load_classifier(
    folder: Path, text: str, device: str, dtype: str
) -> tuple[ramen.ZeroShotClassifier, dict[str, Any]]:
    from open_clip.transformer import VisionTransformer

    config = json.loads((folder / "config.json").read_text())
    tower = VisionTransformer(**config["architecture"])
    tower.load_state_dict(
        {name: tensor.float() for name, tensor in load_file(folder / "vision.safetensors").items()}
    )
    features = load_file(folder / "text_features.safetensors")[text].float()
    templates = config["templates"][: features.shape[1]]
    classifier = ramen.ZeroShotClassifier(
        tower,
        features[:, :7],
        config["logit_scale"],
        classes=config[text]["classes"],
        templates=templates[:7],
        device=device,
        dtype=dtype,
        encode_text=_Lookup(config[text]["classes"], templates, features),
    )
    return classifier, config


class _Lookup:
    """The text encoder of a model that comes without one: knows only the prompts behind its features."""

    def __init__(self, classes: list[str], templates: list[str], features: torch.Tensor) -> None:
        self.known = {
            template.replace("{}", name.replace("_", " ")): features[c, t]
            for c, name in enumerate(classes)
            for t, template in enumerate(templates)
        }

    def __call__(self, texts: list[str]) -> torch.Tensor:
        return torch.stack([self.known[text] for text in texts])


class Stream:
    """All domains of an npz file, mixed by a seeded permutation."""

    def __init__(self, path: Path, mean: list[float], std: list[float], limit: int | None) -> None:
        with np.load(path) as arrays:
            self.domains = [name for name in arrays.files if name not in ("labels", "clean")]
            labels = arrays["labels"]
            self.pixels = torch.from_numpy(np.concatenate([arrays[name] for name in self.domains]))
        self.labels = torch.from_numpy(np.tile(labels, len(self.domains))).long()
        self.domain = torch.arange(len(self.domains)).repeat_interleave(len(labels))
        self.mean, self.std = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
        self.limit = limit

    def order(self, seed: int) -> torch.Tensor:
        """Which image comes when."""
        permutation = torch.randperm(len(self.pixels), generator=torch.Generator().manual_seed(seed))
        return permutation[: self.limit]

    def images(self, index: torch.Tensor) -> torch.Tensor:
        """Those images as the encoder takes them."""
        scaled = self.pixels[index].permute(0, 3, 1, 2).float() / 255
        return (scaled - self.mean) / self.std


def run_once(
    method: ramen.Method, stream: Stream, order: torch.Tensor, batch: int, progress: Progress
) -> dict[str, Any]:
    correct, same, possible = [], 0.0, 0
    spent = 0.0
    task = progress.add_task(method.info.name, total=len(order))
    for index in order.split(batch):
        images = stream.images(index).to(method.classifier.device)
        start = time.perf_counter()
        out = method.predict(images, tags=stream.domain[index], return_support=method.retrieves)
        labels = out.labels.cpu()  # waits for the device
        spent += time.perf_counter() - start
        correct.append(labels == stream.labels[index])
        if out.support is not None:
            own = stream.domain[index].to(out.support.tags.device)[:, None] == out.support.tags
            same += (own & out.support.valid).sum().item()
            possible += int(out.support.valid.sum().item())
        progress.update(
            task,
            advance=len(index),
            description=f"{method.info.name} {torch.cat(correct).float().mean():.2%}",
        )
    progress.remove_task(task)
    hits, domain = torch.cat(correct).double(), stream.domain[order]
    per_domain = {
        name: 100 * hits[domain == d].mean().item()
        for d, name in enumerate(stream.domains)
        if (domain == d).any()
    }
    return {
        "accuracy": float(np.mean(list(per_domain.values()))),
        "per_domain": per_domain,
        "same_domain": 100 * same / possible if possible else None,
        "milliseconds_an_image": 1000 * spent / len(order),
        "refused": method.images_refused,
    }


def parse_run(text: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = text.partition(":")
    pairs = (pair.partition("=") for pair in rest.split(",") if pair)
    return name, {key: _literal(value) for key, _, value in pairs}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def hardware(device: str) -> dict[str, str]:
    name = (
        torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else platform.processor() or platform.machine()
    )
    return {
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "ramen": ramen.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("stream", type=Path)
    parser.add_argument("--run", action="append", help="NAME or NAME:parameter=value,...; may be repeated")
    parser.add_argument("--text", default="cifar10", help="which text features of the model")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--limit", type=int, help="only the first so many images of the stream")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()

    classifier, config = load_classifier(arguments.model, arguments.text, arguments.device, arguments.dtype)
    stream = Stream(arguments.stream, config["mean"], config["std"], arguments.limit)
    table = Table(
        title=f"{len(stream.order(0)):,} images of {len(stream.domains)} domains, {arguments.seeds} seed(s)"
    )
    for column in ("method", "accuracy", "deviation", "same domain", "ms an image"):
        table.add_column(column, justify="left" if column == "method" else "right", overflow="fold")
    results = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        for text in arguments.run or DEFAULT_RUNS:
            name, parameters = parse_run(text)
            runs = [
                run_once(
                    ramen.create(name, classifier, **parameters),
                    stream,
                    stream.order(seed),
                    arguments.batch,
                    progress,
                )
                for seed in range(arguments.seeds)
            ]
            accuracies = [run["accuracy"] for run in runs]
            shares = [run["same_domain"] for run in runs if run["same_domain"] is not None]
            table.add_row(
                text,
                f"{np.mean(accuracies):.2f}",
                f"{np.std(accuracies, ddof=1):.2f}" if len(runs) > 1 else "",
                f"{np.mean(shares):.1f} %" if shares else "",
                f"{np.mean([run['milliseconds_an_image'] for run in runs]):.1f}",
            )
            results.append({"method": name, "parameters": parameters, "seeds": runs})
    Console().print(table)
    if arguments.out:
        settings = {"batch": arguments.batch, "dtype": arguments.dtype, "images": len(stream.order(0))}
        record = {"hardware": hardware(arguments.device), "settings": settings, "results": results}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
