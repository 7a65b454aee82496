"""How fast a step of Ramen is for image towers of several libraries, on random weights and images.

    python benchmarks/towers.py --device cuda --dtype float16 --out towers.json
    python benchmarks/towers.py --tower RN50 --tower timm:resnet50 --device cuda --dtype float16
    python benchmarks/towers.py --uncompiled --tower RN50 --batch 16 --classes 10 --capacity 75      # a CPU

Beside each step stand the module's own passes, compiled by torch.compile, in the same run: its forward pass,
and a forward and a backward pass to its norm parameters. On a GPU both sides are recorded as CUDA graphs, so
that neither waits for the host. For towers with fused passes a step is compared with three forward passes;
for the others with two forward passes and a backward pass, and their step without torch.compile is timed too.
``--compile-only`` fills the compiler's cache and times nothing: several processes can do that at once.
``--uncompiled`` is for CPUs: nothing is compiled on either side, and all steps are compared with two forward
passes and a backward pass. Accuracy means nothing here.
"""

import argparse
import gc
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import Clock, command, write
from rich.console import Console
from speed import Setting, full_ramen, random_classifier, random_images, random_tower, stages
from torch import Tensor, nn

from ramen.encoder.norms import find_replacement, private_copy
from ramen.encoder.probe import pooled
from ramen.experiments.render import Table, markdown, print_tables
from ramen.kernels.graphs import Recorder
from ramen.methods._passes import sample_gradients
from ramen.utils.commands import without_workspaces

TOWERS = (
    *("ViT-B-16", "ViT-B-32", "ViT-B-16-SigLIP", "EVA02-B-16"),
    *("timm:vit_base_patch16_clip_224", "timm:deit_base_patch16_224"),
    *("timm:vit_small_patch14_dinov2@224", "timm:vit_base_patch16_siglip_224"),
    *("transformers:CLIPVisionModelWithProjection", "transformers:SiglipVisionModel"),
    *("RN50", "RN101", "torchvision:resnet50", "timm:resnet50", "timm:tf_efficientnet_lite0"),
    *("timm:convnext_tiny", "timm:swin_tiny_patch4_window7_224"),
)


class ModulePasses:
    """A tower by itself: what a step is compared with.

    Args:
        setting: Names the tower.
        images: A batch in its type, on its device.
        compiled: Whether torch compiles it.
    """

    def __init__(self, setting: Setting, images: Tensor, *, compiled: bool) -> None:
        torch.compiler.reset()  # it compiles one class for a few models only
        tower = random_tower(setting.model, images.device.type)[0]
        self.module = private_copy(tower, None, images.device, images.dtype)
        if images.device.type == "cuda" and any(isinstance(part, nn.Conv2d) for part in tower.modules()):
            self.module = self.module.to(memory_format=torch.channels_last)  # the faster of its layouts
        self._norm_parameters = [
            parameter
            for layer in self.module.modules()
            if find_replacement(layer) is not None
            for parameter in layer.parameters(recurse=False)
        ]
        self._call = torch.compile(self.module) if compiled else self.module
        recorder = Recorder()
        self.forward = partial(recorder.record(self._forward), images)
        self.forward_and_backward = partial(recorder.record(self._forward_and_backward), images)

    @torch.no_grad()
    def _forward(self, images: Tensor) -> tuple[Tensor]:
        """Features, without gradients."""
        return (pooled(self._call(images)),)

    @torch.enable_grad()
    def _forward_and_backward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the norm parameters, shared by all images."""
        for parameter in self._norm_parameters:
            parameter.requires_grad_()
        loss = pooled(self._call(images)).float().square().sum()
        gradients = torch.autograd.grad(loss, self._norm_parameters, allow_unused=True)
        return tuple(gradient for gradient in gradients if gradient is not None)


def measure(setting: Setting, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The row of one tower."""
    compiles = not arguments.uncompiled
    classifier = random_classifier(
        setting, arguments.device, arguments.dtype, "compile" if compiles else "auto"
    )
    images = random_images(classifier, setting.batch)
    clock = Clock(classifier.device, arguments.repeats, arguments.rounds, counter=arguments.counter)
    encoder = classifier.encoder
    row: dict[str, Any] = {
        "tower": setting.model,
        "path": "fused" if encoder.fused else "compiled" if compiles else "plain",
        "plain_reason": encoder.plain_reason,
        "norm_parameters": len(encoder.base),
    }
    own = ModulePasses(setting, images, compiled=compiles)
    if arguments.compile_only:
        own.forward()
        if not encoder.fused:
            own.forward_and_backward()
            sample_gradients(classifier, images)
            classifier.logits(classifier.encode(images, encoder.base.expand(len(images), -1)))
        return row
    method = full_ramen(classifier, setting)
    before = clock(partial(method.predict, images))
    row["forward_ms"] = clock(own.forward)
    # before and after it, as the GPU's clock changes with the load
    row["step_ms"] = step = min(before, clock(partial(method.predict, images)))
    if arguments.stages:
        row["stages"] = stages(method, images, clock)
    row["images_per_second"] = 1000 * setting.batch / step
    row["three_forwards"] = step / (3 * row["forward_ms"])
    if not encoder.fused and compiles:
        default = random_classifier(setting, arguments.device, arguments.dtype, "auto")
        row["uncompiled_step_ms"] = clock(partial(full_ramen(default, setting).predict, images))
    if not (compiles and encoder.fused):
        row["forward_and_backward_ms"] = clock(own.forward_and_backward)
        row["two_forwards_and_a_backward"] = step / (row["forward_ms"] + row["forward_and_backward_ms"])
    del method, own
    gc.collect()
    if classifier.device.type == "cuda":
        torch.cuda.empty_cache()
    random_tower.cache_clear()
    console.print(f"{setting.model:45} {row['path']:6} {step:8.2f} ms", highlight=False)
    return row


def tables(results: dict[str, Any]) -> list[Table]:
    """One row per tower."""
    rows = [row for row in results["towers"] if "step_ms" in row]
    numbers = {
        "norm parameters": ("norm_parameters", ","),
        "ms per step": ("step_ms", ".2f"),
        "images/s": ("images_per_second", ",.0f"),
        ("forward, ms" if results.get("uncompiled") else "compiled forward, ms"): ("forward_ms", ".2f"),
        "of three forwards": ("three_forwards", ".2f"),
        "of two forwards and a backward": ("two_forwards_and_a_backward", ".2f"),
    }
    if any("uncompiled_step_ms" in row for row in rows):
        numbers["step not compiled, ms"] = ("uncompiled_step_ms", ".2f")
    cells = [
        (
            row["tower"],
            row["path"],
            *(f"{row[key]:{form}}" if key in row else "" for key, form in numbers.values()),
        )
        for row in rows
    ]
    setting = results["setting"]
    title = ", ".join(f"{name} {setting[name]}" for name in ("classes", "capacity", "topk", "batch"))
    return [Table.of_texts(title, ("tower", "passes", *numbers), cells, words=2)]


def main() -> None:
    defaults = {"classes": 100, "capacity": 750, "topk": 5, "batch": 100}
    parser = command(__doc__, **defaults, repeats=20, rounds=3)
    parser.add_argument("--tower", action="append", help="see fresh_tower in speed.py; may be repeated")
    parser.add_argument("--compile-only", action="store_true", help="fill the compiler's cache, time nothing")
    parser.add_argument("--uncompiled", action="store_true", help="the module's own passes as they are")
    parser.add_argument("--stages", action="store_true", help="also the time of each part of a step")
    parser.add_argument("--counter", choices=("perf_counter", "process_time"), default="perf_counter")
    parser.add_argument("--show", type=Path, help="measure nothing; print such results as Markdown")
    arguments, console = parser.parse_args(), Console()
    if arguments.show is not None:
        print(markdown(*tables(json.loads(arguments.show.read_text()))))
        return
    without_workspaces()
    sizes = {name: getattr(arguments, name) for name in defaults}
    results: dict[str, Any] = {
        "dtype": arguments.dtype,
        "uncompiled": arguments.uncompiled,
        "counter": arguments.counter,
        "setting": sizes,
        "towers": [],
    }
    for name in arguments.tower or TOWERS:
        try:
            results["towers"].append(measure(Setting(name, **sizes), arguments, console))
        except Exception as error:  # one tower that fails does not lose the others
            console.print_exception()
            results["towers"].append({"tower": name, "error": f"{type(error).__name__}: {error}"[:500]})
        write(arguments, results)
    if not arguments.compile_only:
        print_tables(console, tables(results))


if __name__ == "__main__":
    main()
