"""Accuracy of methods on a stream of several domains, for a model and a stream given as files.

    python benchmarks/accuracy.py MODEL_FOLDER STREAM.npz --seeds 3 --out results.json
    python benchmarks/accuracy.py MODEL_FOLDER STREAM.npz --protocol single --run tent --run ramen
    python benchmarks/accuracy.py MODEL_FOLDER STREAM.npz --run tent:lr=1e-4 --run ramen:capacity=750
    python benchmarks/accuracy.py MODEL_FOLDER STREAM.npz --set ramen.capacity=750 --set ramen.lr=2e-2

Every registered method runs, or those that --run names. Its parameters are its row of --presets for the
protocol, then what --set says, then what stands behind the name in --run. Under ``mixed`` all domains are
mixed by one random permutation; under ``single`` each domain is shuffled on its own and the method is reset
after it. The seed decides the order of the images and what a method draws. Accuracies are the mean over
domains; "same domain" is the share of the retrieved entries that come from the image's own domain.

The folder holds ``config.json`` (``architecture``: arguments of open_clip's VisionTransformer, ``mean``,
``std``, ``logit_scale``, ``templates``), ``vision.safetensors`` (its weights) and
``text_features.safetensors``: a tensor (classes, templates, width) under the name that --text gives, of whose
templates the first seven are the ensemble. The stream holds ``labels`` (n,) and, for each domain, an array
(n, H, W, 3) of uint8; an array called ``clean`` is left out.
"""

import argparse
import ast
import json
import math
import platform
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from safetensors.torch import load_file

import ramen
from ramen import scoring

PROTOCOLS = ("mixed", "single")
PRESETS = Path(__file__).with_name("cifar10c.toml")

# -- model and stream -------------------------------------------------------------------------------


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
    size = config["architecture"]["image_size"]
    classifier = ramen.ZeroShotClassifier(
        tower,
        features[:, :7],
        config["logit_scale"],
        classes=config[text]["classes"],
        templates=templates[:7],
        preprocess=ramen.Preprocess((size, size), tuple(config["mean"]), tuple(config["std"])),
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
        unknown = next((text for text in texts if text not in self.known), None)
        if unknown is not None:
            raise ValueError(f"there is no text encoder, and no embedding of {unknown!r}, in the folder")
        return torch.stack([self.known[text] for text in texts])


class Stream:
    """The domains of an npz file, in the order of a protocol and a seed."""

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
        """Which image comes when, all domains mixed."""
        permutation = torch.randperm(len(self.pixels), generator=torch.Generator().manual_seed(seed))
        return permutation[: self.limit]

    def parts(self, protocol: str, seed: int) -> list[torch.Tensor]:
        """Which image comes when; the method is reset after each part."""
        if protocol == "mixed":
            return [self.order(seed)]
        generator = torch.Generator().manual_seed(seed)
        images = len(self.pixels) // len(self.domains)
        return [
            domain * images + torch.randperm(images, generator=generator)[: self.limit]
            for domain in range(len(self.domains))
        ]

    def images(self, index: torch.Tensor) -> torch.Tensor:
        """Those images as the encoder takes them."""
        scaled = self.pixels[index].permute(0, 3, 1, 2).float() / 255
        return (scaled - self.mean) / self.std


# -- which runs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A method with its parameters; those not given are its defaults."""

    method: str
    given: dict[str, Any]

    @property
    def parameters(self) -> dict[str, Any]:
        """All of them, the seed excepted."""
        everything = {**ramen.describe(self.method).defaults, **self.given}
        return {name: value for name, value in everything.items() if name != "seed"}

    def create(self, classifier: ramen.ZeroShotClassifier, seed: int) -> ramen.Method:
        """A fresh method."""
        return ramen.create(self.method, classifier, **{"seed": seed, **self.given})


def plan(runs: Sequence[str], settings: Sequence[str], protocol: str, presets: Path) -> list[Run]:
    """What was asked for, by default one run of every method; wrong names are told before any starts."""
    rows = tomllib.loads(presets.read_text())[protocol]
    overrides: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        method, dot, parameter = key.partition(".")
        if not (equals and dot and parameter):
            raise ValueError(f"--set must be METHOD.PARAMETER=VALUE, got {setting!r}")
        ramen.describe(method)
        overrides.setdefault(method, {})[parameter] = _literal(value)
    planned = []
    for text in runs or ramen.list_methods():
        method, own = parse_run(text)
        given = {**rows.get(method, {}), **overrides.get(method, {}), **own}
        unknown = sorted(set(given) - set(ramen.describe(method).defaults))
        if unknown:
            valid = ", ".join(ramen.describe(method).defaults)
            raise ValueError(f"method {method!r} has no parameter {unknown[0]!r}; it has {valid}")
        planned.append(Run(method, given))
    return planned


def parse_run(text: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = text.partition(":")
    pairs = (pair.partition("=") for pair in rest.split(",") if pair)
    return name, {key: _literal(value) for key, _, value in pairs}


def _literal(text: str) -> Any:
    try:
        return math.inf if text == "inf" else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# -- running ----------------------------------------------------------------------------------------


def run_once(
    method: ramen.Method, stream: Stream, parts: list[torch.Tensor], batch: int, progress: Progress
) -> dict[str, Any]:
    """One pass over the stream, with a reset after each part."""
    hits, same, possible, refused, spent = [], 0.0, 0, 0, 0.0
    order = torch.cat(parts)
    task = progress.add_task(method.info.name, total=len(order))
    for part in parts:
        for index in part.split(batch):
            images = stream.images(index).to(method.classifier.device)
            start = time.perf_counter()
            out = method.predict(images, tags=stream.domain[index], return_support=method.retrieves)
            labels = out.labels.cpu()  # waits for the device
            spent += time.perf_counter() - start
            hits.append(labels == stream.labels[index])
            if out.support is not None:
                own = stream.domain[index].to(out.support.tags.device)[:, None] == out.support.tags
                same += (own & out.support.valid).sum().item()
                possible += int(out.support.valid.sum().item())
            accuracy = torch.cat(hits).float().mean()
            progress.update(task, advance=len(index), description=f"{method.info.name} {accuracy:.2%}")
        refused += method.images_refused
        method.reset()
    progress.remove_task(task)
    accuracies = scoring.domain_accuracies(torch.cat(hits), stream.domain[order], len(stream.domains))
    found = zip(stream.domains, accuracies.tolist(), strict=True)
    per_domain = {name: accuracy for name, accuracy in found if not math.isnan(accuracy)}
    return {
        "accuracy": float(np.mean(list(per_domain.values()))),
        "per_domain": per_domain,
        "same_domain": 100 * same / possible if possible else None,
        "milliseconds_an_image": 1000 * spent / len(order),
        "refused": refused,
    }


def run_seeds(
    run: Run,
    classifier: ramen.ZeroShotClassifier,
    stream: Stream,
    arguments: argparse.Namespace,
    progress: Progress,
) -> dict[str, Any]:
    """The record of one row of the table."""
    record = {"method": run.method, "parameters": _plain(run.parameters), "given": _plain(run.given)}
    seeds: list[dict[str, Any]] = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        parts = stream.parts(arguments.protocol, seed)
        try:
            method = run.create(classifier, seed)
            seeds.append(run_once(method, stream, parts, arguments.batch, progress))
        except ValueError as error:  # it needs what this model does not have
            if arguments.run:
                raise  # asked for by name
            return {**record, "error": str(error)}
    return {**record, "seeds": seeds}


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON has them: it knows no infinity."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in parameters.items()
    }


def cells(record: dict[str, Any]) -> list[str]:
    """A record as a row of the table."""
    given = " ".join(f"{name}={value}" for name, value in record["given"].items())
    if "error" in record:
        return [record["method"], f"not on this model: {record['error']}", "", "", "", ""]
    runs = record["seeds"]
    accuracies = [run["accuracy"] for run in runs]
    shares = [run["same_domain"] for run in runs if run["same_domain"] is not None]
    return [
        record["method"],
        given,
        f"{np.mean(accuracies):.2f}",
        f"{np.std(accuracies, ddof=1):.2f}" if len(runs) > 1 else "",
        f"{np.mean(shares):.1f} %" if shares else "",
        f"{np.mean([run['milliseconds_an_image'] for run in runs]):.2f}",
    ]


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


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("stream", type=Path)
    parser.add_argument(
        "--run", action="append", default=[], metavar="METHOD[:PARAMETER=VALUE,...]", help="may be repeated"
    )
    parser.add_argument(
        "--set", action="append", default=[], dest="settings", metavar="METHOD.PARAMETER=VALUE"
    )
    parser.add_argument("--protocol", choices=PROTOCOLS, default="mixed")
    parser.add_argument("--presets", type=Path, default=PRESETS, help="a file like cifar10c.toml")
    parser.add_argument("--text", default="cifar10", help="which text features of the model")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument(
        "--limit", type=int, help="only the first so many images of the stream (single: of each domain)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="write the results as JSON, after each method")
    arguments = parser.parse_args()
    try:
        arguments.plan = plan(arguments.run, arguments.settings, arguments.protocol, arguments.presets)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main() -> None:
    arguments = parse_arguments()
    classifier, config = load_classifier(arguments.model, arguments.text, arguments.device, arguments.dtype)
    stream = Stream(arguments.stream, config["mean"], config["std"], arguments.limit)
    settings = {name: getattr(arguments, name) for name in ("protocol", "batch", "dtype")}
    settings["images"] = sum(map(len, stream.parts(arguments.protocol, 0)))
    table = Table(
        title=f"{settings['images']:,} images of {len(stream.domains)} domains, {arguments.protocol}, "
        f"{arguments.seeds} seed(s)"
    )
    for column in ("method", "parameters"):
        table.add_column(column, overflow="fold")
    for column in ("accuracy", "deviation", "same domain", "ms an image"):
        table.add_column(column, justify="right", overflow="fold")
    results: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for run in arguments.plan:
            results.append(run_seeds(run, classifier, stream, arguments, progress))
            table.add_row(*cells(results[-1]))
            progress.console.print("  ".join(filter(None, cells(results[-1]))), highlight=False)
            if arguments.out:
                record = {"hardware": hardware(arguments.device), "settings": settings, "results": results}
                arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    Console().print(table)


if __name__ == "__main__":
    main()
