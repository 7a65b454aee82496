"""Matrix products in fp8: what they would save on a GPU, and how many labels they would change.

    python benchmarks/fp8.py --model stored:FOLDER --stream stream.npz
    python benchmarks/fp8.py --device cuda --out fp8.json      # the four products of a block, batch 100

Labels are compared in fp32 on a CPU: both sides of a product are rounded to e4m3, with a scale for each row
of the activations and for each row of the weights, and multiplied exactly, as a GPU of the Hopper generation
does it. The products are timed in fp16 and as `torch._scaled_mm` with the same scales; what rounding the
activations takes is timed by itself, once as a kernel of its own for each product.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor
from torch.overrides import TorchFunctionMode

import ramen
from ramen.data.formats.arrays import CLEAN, KNOWN_CLASSES, LABELS
from ramen.encoder.fused.transformer import FusedTransformer
from ramen.experiments.run import provenance
from ramen.experiments.run.measure import seconds
from ramen.models.by_name import load_model

_LARGEST = 448.0  # of e4m3
_PASSES = ("first forward", "backward", "second forward")
VARIANTS = {
    "no product": (),
    "backward": ("backward",),
    "backward and second forward": ("backward", "second forward"),
    "all": _PASSES,
}
_PRODUCTS = {"qkv": (768, 2304), "out": (768, 768), "fc": (768, 3072), "proj": (3072, 768)}  # of ViT-B/16
_TOKENS = 197
_ROWS = 16  # fp8 products take multiples of so many


# -- labels -------------------------------------------------------------------------------------------


def rounded(x: Tensor) -> Tensor:
    """Numbers that e4m3 has, with a scale for each row.

    >>> rounded(torch.tensor([[448.0, 1.06], [1.0, 0.53]]))
    tensor([[448.0000,   1.0000],
            [  1.0000,   0.5357]])
    """
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / _LARGEST
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale


class RoundedProducts(TorchFunctionMode):
    """A block in which products with weights are those of rounded numbers."""

    def __torch_function__(
        self, function: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Weights are the matrices; each of their rows meets a row of the activations."""
        if function is F.linear:
            x, weight, *bias = args
            return function(rounded(x), rounded(weight), *bias)
        if function in (Tensor.__matmul__, Tensor.matmul) and args[1].ndim == 2:
            x, weight = args
            return function(rounded(x), rounded(weight.T).T)
        if function is Tensor.addmm_:
            total, x, weight = args
            return function(total, rounded(x), rounded(weight.T).T)
        return function(*args, **(kwargs or {}))


@contextmanager
def rounded_passes(passes: Sequence[str]) -> Iterator[None]:
    """A block in which the products of these passes of all fused transformers are rounded."""
    forward, backward = FusedTransformer.forward, FusedTransformer.backward

    def in_mode(name: str, work: Callable[[], Any]) -> Any:
        if name not in passes:
            return work()
        with RoundedProducts():
            return work()

    def new_forward(self: Any, prepared: Tensor, affine: Tensor, *, keep: bool) -> Any:
        name = "first forward" if keep else "second forward"
        return in_mode(name, lambda: forward(self, prepared, affine, keep=keep))

    def new_backward(self: Any, gradient: Tensor, saved: Any) -> Any:
        return in_mode("backward", lambda: backward(self, gradient, saved))

    FusedTransformer.forward, FusedTransformer.backward = new_forward, new_backward  # type: ignore[method-assign]
    try:
        yield
    finally:
        FusedTransformer.forward, FusedTransformer.backward = forward, backward  # type: ignore[method-assign]


def compare_labels(
    classifier: ramen.ZeroShotClassifier, images: Tensor, labels: Tensor, parameters: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Ramen's accuracy with each variant, and the share of labels that are those of exact products."""
    found: dict[str, dict[str, float]] = {}
    expected: tuple[Tensor, Tensor] | None = None
    for name, passes in VARIANTS.items():
        method = ramen.create("ramen", classifier, **parameters)
        with rounded_passes(passes):
            answers = [method.predict(batch) for batch in images.split(100)]
        own = torch.cat([answer.labels for answer in answers])
        zero_shot = torch.cat([answer.zero_shot_logits.argmax(1) for answer in answers])
        expected = expected or (own, zero_shot)
        found[name] = {
            "accuracy": _percent(own == labels),
            "zero_shot": _percent(zero_shot == labels),
            "same_labels": _percent(own == expected[0]),
            "same_zero_shot_labels": _percent(zero_shot == expected[1]),
        }
    return found


def _percent(truths: Tensor) -> float:
    return 100 * float(truths.double().mean())


def mixed_images(
    arguments: argparse.Namespace, classifier: ramen.ZeroShotClassifier
) -> tuple[Tensor, Tensor]:
    """Images of all corrupted domains in a random order, and their labels."""
    with np.load(arguments.stream, allow_pickle=False) as arrays:
        domains = [arrays[name] for name in arrays if name not in (LABELS, CLEAN)]
        labels = np.tile(arrays[LABELS], len(domains))
    order = np.random.default_rng(0).permutation(len(labels))[: arguments.images]
    pixels = torch.from_numpy(np.concatenate(domains)[order]).permute(0, 3, 1, 2)
    return classifier.preprocess(pixels), torch.from_numpy(labels[order].astype(np.int64))


# -- time ---------------------------------------------------------------------------------------------


def time_products(batch: int, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds of each product of a block of ViT-B/16, in fp16 and in fp8, and of rounding its input."""
    device, found = torch.device("cuda"), {}
    count = -(-batch * _TOKENS // _ROWS) * _ROWS
    quantise = torch.compile(_quantised)
    for name, (inputs, outputs) in _PRODUCTS.items():
        x = torch.randn(count, inputs, device=device, dtype=torch.float16)
        weight = torch.randn(outputs, inputs, device=device, dtype=torch.float16) / inputs**0.5
        bias = torch.randn(outputs, device=device, dtype=torch.float16)
        calls: dict[str, Callable[[], object]] = {
            "fp16": partial(F.linear, x, weight, bias),
            "fp8": partial(_scaled_product, *quantise(x), *quantise(weight)),
            "rounding": partial(quantise, x),
        }
        found[name] = {kind: 1e6 * _steady(call, device, repeats) for kind, call in calls.items()}
    found["sum"] = {kind: sum(one[kind] for one in found.values()) for kind in ("fp16", "fp8", "rounding")}
    return found


def _scaled_product(x: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    product: Tensor = torch._scaled_mm(
        x, weight.T, scale_a=scale, scale_b=weight_scale.T, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return product


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp_min(1e-12) / _LARGEST
    return (x / scale).to(torch.float8_e4m3fn), scale


def _steady(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Seconds of a call among many, as the GPU's clock falls under load."""

    def many() -> None:
        for _ in range(repeats):
            call()

    return min(seconds(many, device) for _ in range(4)) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="as `ramen run` takes it")
    parser.add_argument("--stream", type=Path, help="images as the data set `arrays` takes them")
    parser.add_argument("--classes", choices=KNOWN_CLASSES, default="cifar10", help="of the stream")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--device", default="cpu", help="cuda times the products")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments, console = parser.parse_args(), Console()
    results: dict[str, Any] = {
        "hardware": provenance.hardware(torch.device(arguments.device)),
        "versions": provenance.versions(),
    }
    if arguments.device == "cuda":
        results["microseconds"] = time_products(arguments.batch, arguments.repeats)
    if arguments.model is not None:
        classifier = load_model(arguments.model, KNOWN_CLASSES[arguments.classes])
        images, labels = mixed_images(arguments, classifier)
        settings = {"paper's values": {"capacity": 750, "topk": 50, "beta": 5.0, "lr": 1e-2}, "chosen": {}}
        results["images"] = len(labels)
        results["labels"] = {
            name: compare_labels(classifier, images, labels, parameters)
            for name, parameters in settings.items()
        }
    console.print_json(data=results)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
