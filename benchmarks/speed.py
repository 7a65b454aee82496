"""How fast Ramen is: images per second, peak memory and the time of each stage, on random weights and images.

    python benchmarks/speed.py --device cuda --dtype float16 --out speed.json
    python benchmarks/speed.py --setting cifar100c --what codecs --device cuda --dtype float16
    python benchmarks/speed.py --setting cifar10c --capacity 75 --batch 8 --dtype float32       # on a CPU

The memory is full of random entries before anything is timed. Everything is measured in one run, as a GPU's
clock changes with its load. Results hold, as "forwards", the time per image relative to the last forward pass
measured before it; tables compare all rows with one forward pass, which their column names. Accuracy means
nothing here.
"""

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from measuring import Clock, command, write
from plain_ramen import PlainRamen
from rich.console import Console
from torch import Tensor

import ramen
from ramen.encoder.encoder import stated_size
from ramen.encoder.probe import pooled
from ramen.experiments.render import Table, markdown, print_tables
from ramen.kernels.graphs import Function
from ramen.memory.codecs import CODECS
from ramen.memory.queues import Staged
from ramen.memory.retrieval import Selection
from ramen.methods._passes import sample_gradients
from ramen.methods.ramen import Ramen
from ramen.utils.checks import readable_bytes
from ramen.utils.commands import without_workspaces

WHAT = ("baselines", "codecs", "methods", "placements", "growth", "batches")
# Those with fused passes; CLIPArTT and WATT take many steps, and clip is the ensemble with other texts.
METHODS = ("ensemble", "tda", "dmn", "tent", "entmin", "mint", "note", "sar", "rotta")
RAMEN, FORWARD = "ramen, fp16", "ensemble"  # rows that the other methods are compared with
FILL = 1000  # entries at a time
PLAIN_LOOP = 5  # images that the plain loop answers: each takes as long as in a larger batch


@dataclass(frozen=True)
class Setting:
    """A model and the memory that the paper gives it."""

    model: str
    classes: int
    capacity: int
    topk: int
    batch: int


SETTINGS = {
    "cifar100c": Setting("ViT-B-16", 100, 750, 5, 100),
    "cifar10c": Setting("ViT-B-32", 10, 7500, 50, 100),
    "imagenetc": Setting("ViT-L-14", 1000, 75, 1, 50),
}


# -- what is measured -------------------------------------------------------------------------------


@cache
def random_tower(model: str, device: str) -> tuple[Any, int]:
    """A tower, on the CPU, and the width of its features; random images look different to it.

    With fresh weights all embeddings point in one direction: every image would retrieve the same entries, and
    reading them would cost next to nothing. Here the last norm's bias takes away what they have in common,
    and learned scales, with which fresh blocks do next to nothing, are 1.
    """
    torch.manual_seed(0)
    tower = fresh_tower(model).eval().to(device)
    for layer in tower.modules():
        if isinstance(getattr(layer, "gamma", None), Tensor):
            torch.nn.init.ones_(layer.gamma)
    outputs: list[tuple[Any, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, given, output: outputs.append((layer, output)))
        for layer in tower.modules()
        if isinstance(getattr(layer, "bias", None), Tensor) and "norm" in type(layer).__name__.lower()
    ]
    size = stated_size(tower)
    assert size is not None
    with torch.no_grad():
        features = pooled(tower(torch.randn(32, 3, *size, device=device)))
        for hook in hooks:
            hook.remove()
        last, output = outputs[-1]
        if output.ndim == 3:
            output = output[:, 0]  # the class token's, if there is one
        # the axis of the features, the second one or the last one
        features_at = next(axis for axis in (1, output.ndim - 1) if output.shape[axis] == len(last.bias))
        last.bias -= output.mean([axis for axis in range(output.ndim) if axis != features_at])
    return tower.cpu(), features.shape[1]  # what is measured is not to hold it


def fresh_tower(model: str) -> Any:
    """``NAME`` of open_clip, or ``timm:NAME``, ``torchvision:NAME`` or ``transformers:CLASS``.

    Those of timm and torchvision come without a classification head, ``timm:NAME@224`` with that image size;
    those of transformers with the default configuration of their class.
    """
    library, _, name = model.rpartition(":")
    if library == "timm":
        import timm

        name, _, size = name.partition("@")
        options: dict[str, Any] = {"img_size": int(size)} if size else {}
        tower: Any = timm.create_model(name, num_classes=0, **options)
        tower.image_size = (int(size),) * 2 if size else tuple(tower.pretrained_cfg["input_size"][1:])
        return tower
    if library == "transformers":
        import transformers

        kind = getattr(transformers, name)
        tower = kind(kind.config_class())
        tower.image_size = tower.config.image_size
        return tower
    if library == "torchvision":
        import torchvision

        tower = torchvision.models.get_model(name)
        tower.fc, tower.image_size = torch.nn.Identity(), (224, 224)
        return tower
    return open_clip.create_model(name).visual


def random_classifier(
    setting: Setting, device: str, dtype: str, fused: bool | str
) -> ramen.ZeroShotClassifier:
    tower, width = random_tower(setting.model, device)
    generator = torch.Generator().manual_seed(0)
    embeddings = F.normalize(torch.randn(setting.classes, width, generator=generator), dim=-1)
    return ramen.ZeroShotClassifier(tower, embeddings, 100.0, device=device, dtype=dtype, fused=fused)


def random_images(classifier: ramen.ZeroShotClassifier, batch: int) -> Tensor:
    assert classifier.image_size is not None
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, 3, *classifier.image_size, generator=generator)
    return images.to(classifier.device, classifier.dtype)  # as classifier.preprocess gives them if asked


def random_entries(method: Ramen, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Labels, embeddings, gradients and entropies, some at a time, the classes in turn."""
    classifier = method.classifier
    generator = torch.Generator(device=classifier.device).manual_seed(2)
    options: dict[str, Any] = {"generator": generator, "device": classifier.device}
    width, size = classifier.class_embeddings.shape[1], len(classifier.encoder.base)
    for first in range(0, count, FILL):
        some = min(FILL, count - first)
        labels = torch.arange(first, first + some, device=classifier.device) % classifier.num_classes
        embeddings = F.normalize(torch.randn(some, width, **options), dim=-1)
        yield labels, embeddings, torch.randn(some, size, **options), torch.rand(some, **options)


def full_ramen(classifier: ramen.ZeroShotClassifier, setting: Setting, **parameters: Any) -> Ramen:
    paper = {"capacity": setting.capacity, "topk": setting.topk, "beta": 5.0, "lr": 1e-2, "codec": "fp16"}
    method = ramen.create("ramen", classifier, **{**paper, **parameters})
    assert isinstance(method, Ramen)
    for entries in random_entries(method, setting.classes * setting.capacity):
        method.memory.insert(method.memory.stage(*entries))
    return method


def stages(method: Ramen, images: Tensor, clock: Clock) -> dict[str, float]:
    """Milliseconds of each part of a step by itself, recorded where the whole step is."""
    memory, classifier = method.memory, method.classifier
    labels, embeddings, gradients, entropies = next(random_entries(method, len(images)))
    staged = memory.stage(labels, embeddings, gradients, entropies)
    support = memory.select(embeddings, method.topk)
    weights = torch.exp(-support.entropies - float(method.beta) * support.distances)
    rows = classifier.encoder.base.expand(len(images), -1).contiguous()

    def put(*batch: Any) -> tuple[Tensor, ...]:
        memory.put(Staged(*batch))
        return ()

    def select(queries: Tensor) -> tuple[Tensor, ...]:
        return parts(memory.select(queries, method.topk))

    def aggregate(weights: Tensor, *selection: Tensor) -> tuple[Tensor, ...]:
        return (memory.aggregate(Selection(*selection), weights),)

    record = classifier.recorder().record
    of_memory: Callable[[Function], Function] = (
        record
        if method.recordable and method.memory.recordable_on(method.classifier.device)
        else lambda function: function
    )
    calls: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
        "forward and backward": (record(partial(sample_gradients, classifier)), (images,)),
        "encode": (
            of_memory(lambda *batch: parts(memory.stage(*batch))),
            (labels, embeddings, gradients, entropies),
        ),
        "insert": (of_memory(put), parts(staged)),
        "select": (of_memory(select), (embeddings,)),
        "aggregate": (of_memory(aggregate), (weights, *parts(support))),
        "second forward": (
            record(lambda *given: (classifier.logits(classifier.encode(*given)),)),
            (images, rows),
        ),
    }
    return {name: clock(partial(function, *tensors)) for name, (function, tensors) in calls.items()}


def parts(batch: Staged | Selection) -> tuple[Tensor, ...]:
    return tuple(part for part in vars(batch).values() if isinstance(part, Tensor))


# -- how it is measured -----------------------------------------------------------------------------


class Bench:
    """One setting; keeps the rows of its table, and says when there is one more."""

    def __init__(
        self, setting: Setting, arguments: argparse.Namespace, console: Console, grown: Callable[[], None]
    ) -> None:
        self.setting, self.arguments, self.console, self.grown = setting, arguments, console, grown
        self.classifier = self._classifier(setting)
        self.clock = Clock(self.classifier.device, arguments.repeats, arguments.rounds)
        self.images = random_images(self.classifier, setting.batch)
        self.rows: list[dict[str, Any]] = []
        self.forward = 0.0  # milliseconds an image

    def _classifier(self, setting: Setting, fused: bool | str = "auto") -> ramen.ZeroShotClassifier:
        return random_classifier(setting, self.arguments.device, self.arguments.dtype, fused)

    def add(
        self, what: str, call: Callable[[], object], images: int, *, reference: bool = False, **facts: Any
    ) -> None:
        """Time a call, and print and keep its row; what follows a ``reference`` is compared with it."""
        cuda = self.classifier.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.classifier.device)
        spent = self.clock(call)
        if reference or not self.forward:
            self.forward = spent / images
        row = {
            "what": what,
            "milliseconds": spent,
            "images_a_second": 1000 * images / spent,
            "forwards": spent / images / self.forward,
            "peak_bytes": torch.cuda.max_memory_allocated(self.classifier.device) if cuda else None,
            **facts,
        }
        self.rows.append(row)
        self.grown()
        self.console.print(
            f"{what:45} {spent:9.2f} ms {row['images_a_second']:9,.0f} images/s", highlight=False
        )

    def baselines(self) -> None:
        """Plain forward passes, and Ramen written as the paper's pseudo-code."""
        plain = self._classifier(self.setting, fused=False)
        encode = partial(plain.encode, self.images)
        self.add("forward, the module's own", encode, len(self.images), reference=True)
        if self.arguments.compiled:
            self._compiled_forward(self.images)
        self.add("forward, fused", lambda: self.classifier.encode(self.images), len(self.images))
        if self.arguments.plain_loop:
            self._plain_loop(plain)

    def _compiled_forward(self, images: Tensor, mode: str | None = None) -> None:
        """The module itself, compiled by torch."""
        torch.compiler.reset()  # it compiles one class for a few models only
        tower = deepcopy(random_tower(self.setting.model, self.arguments.device)[0]).to(images)
        compiled = torch.compile(tower, mode=mode)
        kind = "torch.compile" if mode is None else f"torch.compile {mode}"
        label = f"forward, {kind}, batch {len(images)}"
        self.add(label, partial(compiled, images), len(images), reference=True)

    def _plain_loop(self, plain: ramen.ZeroShotClassifier) -> None:
        setting = self.setting
        twin = PlainRamen(plain, setting.capacity, setting.topk, beta=5.0, lr=1e-2)
        source = ramen.create("ramen", plain, capacity=1, topk=1)
        assert isinstance(source, Ramen)
        for entries in random_entries(source, setting.classes * setting.capacity):
            for label, embedding, gradient, uncertainty in zip(*entries, strict=True):
                twin.insert(int(label), embedding, gradient, uncertainty)
        some = self.images[:PLAIN_LOOP]
        self.add(f"ramen, a plain loop, batch {len(some)}", lambda: twin.predict(some), len(some))

    def ramen(self, label: str, images: Tensor, setting: Setting | None = None, **parameters: Any) -> None:
        """One row of Ramen, with its stages."""
        setting = setting or self.setting
        classifier = self.classifier if setting.classes == self.setting.classes else self._classifier(setting)
        method = full_ramen(classifier, setting, **parameters)
        facts: dict[str, Any] = {
            "stages": stages(method, images, self.clock),
            "memory_bytes": method.memory_bytes(),
        }
        self.add(label, partial(method.predict, images), len(images), **facts)
        del method
        self._free()

    def _free(self) -> None:
        gc.collect()
        if self.classifier.device.type == "cuda":
            torch.cuda.empty_cache()

    def codecs(self) -> None:
        """Every way to store gradients."""
        for codec in CODECS:
            self.ramen(f"ramen, {codec}", self.images, codec=codec)

    def methods(self) -> None:
        """The other methods beside Ramen; memories that passes are counted for are as large as a batch."""
        if RAMEN not in [row["what"] for row in self.rows]:
            self.ramen(RAMEN, self.images)
        for name in METHODS:
            sizes = dict.fromkeys(ramen.describe(name).batch_sized, len(self.images))
            pixels = {"mean": (0.5,) * 3, "std": (0.25,) * 3} if name == "rotta" else {}
            method = ramen.create(name, self.classifier, **sizes, **pixels)
            self.add(name, partial(method.predict, self.images), len(self.images))
            del method
            self._free()

    def placements(self) -> None:
        """Gradients, or all, on the CPU."""
        for placement, codec in (("split", "sign"), ("split", "fp16"), ("cpu", "fp16")):
            self.ramen(f"ramen, {codec}, {placement}", self.images, codec=codec, placement=placement)

    def batches(self) -> None:
        """Batches of other sizes, each compared with a plain forward pass of its own size."""
        for size in (1, 8, 50, 100, 200):
            images = random_images(self.classifier, size)
            encode = partial(self.classifier.encode, images)
            self.add(f"forward, fused, batch {size}", encode, size, reference=True)
            if self.arguments.compiled and size == 1:
                self._compiled_forward(images)
                self._compiled_forward(images, "reduce-overhead")  # which records CUDA graphs, as Ramen does
            self.ramen(f"ramen, sign, batch {size}", images, codec="sign")

    def growth(self) -> None:
        """Four times the classes, the entries of each, the neighbours."""
        for name in ("classes", "capacity", "topk"):
            grown = replace(self.setting, **{name: 4 * getattr(self.setting, name)})
            grown = replace(grown, topk=min(grown.topk, grown.capacity))
            self.ramen(f"ramen, sign, {name} {getattr(grown, name)}", self.images, grown, codec="sign")


# -- output -----------------------------------------------------------------------------------------


def tables(results: dict[str, Any]) -> list[Table]:
    """Speeds, and where the time goes, of every setting."""
    found = []
    for name, result in results.items():
        setting, rows = Setting(**result["setting"]), result["rows"]
        about = f"{setting.model}, {setting.classes} classes, capacity {setting.capacity}, "
        about += f"topk {setting.topk}, batch {setting.batch}"
        found.append(speeds(f"{name}: {about}", rows, setting.batch))
        times = {r["what"]: r["milliseconds"] for r in rows if r["what"] in (RAMEN, *METHODS)}
        if {RAMEN, FORWARD} <= times.keys():
            # beside Ramen, and beside a forward pass that is recorded with all that surrounds it
            heads = ("", "ms per batch", "of Ramen's time", "fused forwards")
            cells = [
                (what, f"{spent:.2f}", f"{spent / times[RAMEN]:.2f}", f"{spent / times[FORWARD]:.2f}")
                for what, spent in times.items()
            ]
            found.append(Table.of_texts(f"{name}: methods with fused passes", heads, cells))
        if staged := [row for row in rows if "stages" in row]:
            cells = [(row["what"], *(f"{spent:.2f}" for spent in row["stages"].values())) for row in staged]
            title = f"{name}: milliseconds of each part by itself"
            found.append(Table.of_texts(title, ("", *staged[0]["stages"]), cells))
    return found


def speeds(title: str, rows: list[dict[str, Any]], batch: int) -> Table:
    """All rows; a column compares each image with the module's own forward pass, compiled if it was."""
    measured = {row["what"]: row["images_a_second"] for row in rows}
    compiled, own = f"forward, torch.compile, batch {batch}", "forward, the module's own"
    speed = measured.get(compiled, measured.get(own))
    kind = "compiled" if compiled in measured else "uncompiled"
    head = "forwards" if speed is None else f"{kind} forwards (batch {batch})"
    cells = [
        (
            row["what"],
            f"{row['milliseconds']:.2f}",
            f"{row['images_a_second']:,.0f}",
            "" if speed is None else f"{speed / row['images_a_second']:.2f}",
            "" if row["peak_bytes"] is None else readable_bytes(row["peak_bytes"]),
            readable_bytes(row["memory_bytes"]) if "memory_bytes" in row else "",
        )
        for row in rows
    ]
    return Table.of_texts(title, ("", "ms per batch", "images/s", head, "peak", "memory"), cells)


def main() -> None:
    parser = command(__doc__, repeats=20, rounds=2, model=str, classes=int, capacity=int, topk=int, batch=int)
    parser.add_argument(
        "--setting", action="append", choices=SETTINGS, help="may be repeated; all without it"
    )
    parser.add_argument("--what", action="append", choices=WHAT, help="may be repeated; all without it")
    parser.add_argument("--compiled", action="store_true", help="also torch.compile the module; slow")
    parser.add_argument("--plain-loop", action="store_true", help="also the plain loop; slow")
    parser.add_argument("--show", type=Path, help="measure nothing; print such results as Markdown")
    arguments, console = parser.parse_args(), Console()
    without_workspaces()
    results: dict[str, Any] = {}
    if arguments.show is not None:
        print(markdown(*tables(json.loads(arguments.show.read_text())["settings"])))
        return
    given = {name: getattr(arguments, name) for name in ("model", "classes", "capacity", "topk", "batch")}
    changes = {name: value for name, value in given.items() if value is not None}

    def save() -> None:  # after every row: what was measured is not lost if the rest is cut off
        write(arguments, {"dtype": arguments.dtype, "settings": results})

    for name in arguments.setting or SETTINGS:
        bench = Bench(replace(SETTINGS[name], **changes), arguments, console, save)
        results[name] = {
            "setting": vars(bench.setting),
            "path": "fused" if bench.classifier.encoder.fused else bench.classifier.encoder.plain_reason,
            "rows": bench.rows,
        }
        for what in [w for w in WHAT if w in (arguments.what or WHAT)]:
            getattr(bench, what)()
        print_tables(console, tables({name: results[name]}))


if __name__ == "__main__":
    main()
