"""What the studies share: their options, the methods' parameters, images, and the file of a result."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import ramen
from ramen.data.catalogue import describe, load
from ramen.data.streams.stream import Stream, make_stream
from ramen.experiments import provenance
from ramen.experiments.experiment import Experiment, plan
from ramen.experiments.render import Table, print_tables
from ramen.experiments.scoring import Difference
from ramen.experiments.values import parse_pairs
from ramen.models.names import load_model
from ramen.utils import files
from ramen.utils.devices import device_and_dtype_names


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options of every study; they are those of `ramen run`."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--model", help="the preset's by default")
    made.add_argument("--data", default="tiny")
    made.add_argument("--root", help="the folder or file of the data")
    made.add_argument("--data-set", action="append", default=[], metavar="KEY=VALUE")
    made.add_argument("--domain", action="append", default=[])
    made.add_argument("--severity", type=int)
    made.add_argument("--protocol", default="mixed")
    made.add_argument("--limit", type=int, help="only so many images from the stream's start")
    made.add_argument("--per-domain", type=int, help="only so many images of each domain")
    made.add_argument("--batch", type=int)
    made.add_argument("--device")
    made.add_argument("--dtype")
    made.add_argument("--preset")
    made.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE")
    made.add_argument("--set", action="append", default=[], metavar="PARAMETER=VALUE")
    made.add_argument("--seed", type=int, default=0, help="the first one")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--out", type=Path, help="write the numbers as JSON")
    return made


def planned(given: argparse.Namespace, methods: Sequence[str]) -> list[Experiment]:
    """An experiment per method, with the preset's parameters and the user's."""
    options = {"severity": given.severity, "domains": given.domain or None}
    part = {"limit": given.limit, "per_domain": given.per_domain}
    device, dtype = device_and_dtype_names(given.device, given.dtype)
    return plan(
        methods,
        seeds=[given.seed],
        settings=given.set,
        preset=given.preset,
        model=given.model,
        data=given.data,
        root=given.root,
        data_options={**parse_pairs("--data-set", given.data_set), **_known(options)},
        protocol=given.protocol,
        protocol_parameters=_known(part),
        batch=given.batch,
        device=device,
        dtype=dtype,
        imports=tuple(given.imports),
    )


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def stream_of(experiment: Experiment, seed: int = 0, **options: Any) -> Stream:
    """The experiment's stream, ``seed`` after its own, with other options of the data set."""
    e = experiment
    dataset = load(e.data, e.root, **{**e.data_options, **options})
    return make_stream(e.protocol, dataset, e.seed + seed, **e.protocol_parameters)


def classifier_of(experiment: Experiment, classes: Sequence[str]) -> ramen.ZeroShotClassifier:
    """The experiment's classifier."""
    e = experiment
    same = describe(e.data).same_names
    return load_model(e.model, classes, e.templates, e.device, e.dtype, allow_same_names=same)


def finish(
    given: argparse.Namespace, title: str, tables: Sequence[Table], data: Mapping[str, Any], e: Experiment
) -> None:
    """Print a study's tables, and write its numbers if there is a file for them."""
    console = Console()
    console.print(f"{title}\n", style="bold", highlight=False, markup=False)
    print_tables(console, tables)
    if given.out is None:
        return
    about = {"experiment": replace(e, parameters={}).identity(), "versions": provenance.versions()}
    result = {"title": title, "data": data, "provenance": {**about, "commit": provenance.commit()}}
    files.write_text(given.out, json.dumps(result, indent=1) + "\n")
    console.print(f"The numbers are in {given.out}", highlight=False, markup=False)


def percent(right: Tensor) -> float:
    """The accuracy of answers that are right or not."""
    return 100 * float(right.double().mean())


_NORMAL_95 = 1.959964


def repeated_difference(gains: Tensor, images: Tensor, runs: Tensor) -> Difference:
    """How much better one method is than another, averaged over runs that may have images in common.

    The interval counts all runs' gains on one image as one observation, since they resemble each other.

    Args:
        gains: 1, 0 or -1 per answer: whether it was repaired or broken ``(N,)``.
        images: A number per answer that is the same for the same image.
        runs: The number of each answer's run, from 0.

    >>> gains, images = torch.tensor([1, 0, -1, 1, 1, 0, -1, 1]), torch.arange(8)
    >>> print(repeated_difference(gains, images, images // 4))
    +25.00 ± 61.42
    >>> print(repeated_difference(gains, images % 4, images // 4))
    +25.00 ± 93.83
    """
    sizes = torch.bincount(runs)
    means = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, runs, gains.double()) / sizes
    shares = (gains - means[runs]) / sizes[runs] / len(sizes)
    _, places = images.unique(return_inverse=True)
    count = int(places.max()) + 1
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, places, shares)
    variance = sums.square().sum() * count / max(count - 1, 1)
    return Difference(100 * float(means.mean()), 100 * _NORMAL_95 * float(variance.sqrt()))
