"""What each method costs beside a plain forward pass of the same model, on random weights and images.

    python benchmarks/cost.py --device cuda --dtype float16
    python benchmarks/cost.py --model ViT-B-32 --classes 10 --run tda --run dmn --run ramen

Accuracy means nothing here. Every method first sees some batches, so that memories are in use, then is timed;
"forwards" is its time divided by that of a plain forward pass of a batch, measured in the same run, or, if
that is less, of one whose kernels start together, as those of most methods do. "of counted" is its time
divided by what its counted passes should take: a forward pass as above, a backward pass what the gradient of
the mean entropy takes on top of one. More than 15 % away from 1 is marked with `!`.
Methods that augment images also have the time of that alone, and the same ratio without it. "kept" is the
most that a method ever stores of a stream. Time and memory of real runs: the tables of `ramen compare`.

The class embeddings are made of the images', so that predictions spread over the classes as on a stream of
images: memories with a share for each class would otherwise hold next to nothing, and their passes cost
nothing.
"""

import argparse
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from measuring import command, write
from rich.console import Console
from torch import Tensor

import ramen
from ramen import prompts
from ramen.experiments.measure import seconds
from ramen.experiments.render import Table, print_tables
from ramen.images.augment import augment, augment_without_noise, draw
from ramen.images.views import draw_places, views_at
from ramen.methods import entropy_gradient
from ramen.methods._views import NormalisedPixels
from ramen.models.classifier import MissingPartError
from ramen.utils.checks import readable_bytes
from ramen.utils.numerics import plain_numerics

TOLERANCE = 0.15  # of the counted passes' time
# How far the cosine of an image with its own class is above that with others: at a logit scale of 100 and 100
# classes a confidence of about 0.35, below what methods take for sure.
_CONTRAST = 0.04
# Passes before those that methods are compared with: a GPU's clock falls under load, as it does in a stream.
_WARM_UP, _GPU_WARM_UP = 3, 60
# Methods with views of an image, and those with augmented batches: how often per batch, if it is once.
_VIEWS = ("mta", "tps", "tpt", "zero")
_AUGMENTED = {"cotta": "augmentations", "roid": "", "rotta": ""}
# Methods of several equal rounds are timed for fewer of them; the time is multiplied.
_SHORTENED: Mapping[str, Mapping[str, Any]] = {"watt": {"rounds": 1}}


@dataclass(frozen=True)
class MethodCost:
    """The cost of one method."""

    seconds: tuple[float, ...]  # of each timed batch
    forwards: int  # passes per image, as the method states
    backwards: int
    memory_bytes: int  # the most that it ever stores of a stream


def method_cost(
    name: str, classifier: ramen.ZeroShotClassifier, warm_up: Sequence[Tensor], timed: Sequence[Tensor]
) -> MethodCost:
    """The cost of a fresh method on some batches; those of ``warm_up`` are not timed."""
    given = dict.fromkeys(ramen.describe(name).batch_sized, len(timed[0]))
    whole = ramen.create(name, classifier, **given)
    shortened = _SHORTENED.get(name)
    method = ramen.create(name, classifier, **given, **shortened) if shortened else whole
    share = whole.passes()[0] / method.passes()[0]
    for images in warm_up:
        method.predict(images)
    times = tuple(share * seconds(partial(method.predict, images), classifier.device) for images in timed)
    return MethodCost(times, *whole.passes(), whole.memory_bytes())


def random_classifier(model: str, classes: int, device: str, dtype: str) -> ramen.ZeroShotClassifier:
    import open_clip

    torch.manual_seed(0)
    tower = open_clip.create_model(model).visual.eval()
    width = tower.output_dim
    names = [f"class {index}" for index in range(classes)]

    def encode_text(texts: list[str]) -> Tensor:
        seeds = [torch.Generator().manual_seed(zlib.crc32(text.encode())) for text in texts]
        return torch.stack([torch.randn(width, generator=seed) for seed in seeds])

    return ramen.ZeroShotClassifier(
        tower,
        F.normalize(torch.randn(classes, len(prompts.ENSEMBLE), width), dim=-1),
        100.0,
        classes=names,
        templates=prompts.ENSEMBLE,
        preprocess=ramen.Preprocess(tower.image_size),
        encode_text=encode_text,
        device=device,
        dtype=dtype,
    )


def with_spread_classes(
    classifier: ramen.ZeroShotClassifier, batches: Sequence[Tensor]
) -> ramen.ZeroShotClassifier:
    """The same with other class embeddings: as far as there are images, each is sure of another class."""
    with torch.no_grad():
        embeddings = torch.cat([classifier.encode(batch).float() for batch in batches])
    own = embeddings[: classifier.num_classes]
    away = own - embeddings.mean(0)
    assert classifier.template_embeddings is not None
    texts = classifier.template_embeddings.float().clone()
    share = min(1.0, _CONTRAST / float(away.norm(dim=1).mean()))
    common = F.normalize(texts[0, 0] - texts[0, 0] @ embeddings.mean(0) * embeddings.mean(0), dim=0)
    mixed = share * F.normalize(away, dim=1) + (1 - share**2) ** 0.5 * common
    # Templates differ a little; classes without an image stay random.
    texts[: len(own)] = mixed[:, None] + 0.01 * texts[: len(own)]
    return ramen.ZeroShotClassifier(
        classifier.encoder,
        texts,
        classifier.logit_scale,
        classes=classifier.classes,
        templates=classifier.templates,
        preprocess=classifier.preprocess if classifier.can_preprocess else None,
        encode_text=classifier.encode_text,
    )


def augmentation_seconds(
    name: str, classifier: ramen.ZeroShotClassifier, images: Tensor, repeats: int
) -> float:
    """Seconds that a method spends per batch on changing images; 0 if it takes them as they are."""
    defaults = ramen.describe(name).defaults
    call: Callable[[], object]
    if name in _VIEWS:
        times = 1
        views = classifier.recorder().record(lambda *inputs: (views_at(*inputs),))  # as the methods do

        def call() -> None:
            pixels = images.to(classifier.class_embeddings.dtype)
            across, down = draw_places(pixels, defaults["views"])
            for image in zip(pixels.split(1), across.split(1), down.split(1), strict=True):
                views(*image)

    elif name in _AUGMENTED:
        times = defaults[_AUGMENTED[name]] if _AUGMENTED[name] else 1
        drawn = draw((images.shape[2], images.shape[3]), torch.Generator().manual_seed(0))
        change = augment_without_noise if name == "roid" else augment
        pixels = NormalisedPixels(name, classifier)
        call = partial(pixels.changed, images, partial(change, drawn=drawn))
    else:
        return 0.0
    return times * min([seconds(call, classifier.device) for _ in range(3 + repeats)][3:])


def gradient_times(classifier: ramen.ZeroShotClassifier, images: Tensor, repeats: int) -> list[float]:
    """Seconds of one forward and one backward pass of a batch, without those of a first time."""
    usable = torch.ones(len(images), dtype=torch.bool, device=images.device)

    def gradient() -> None:
        entropy_gradient(classifier, images, classifier.encoder.base, usable)

    return _times(gradient, classifier.device, repeats)


def forward_times(classifier: ramen.ZeroShotClassifier, images: Tensor, repeats: int) -> list[float]:
    """Seconds of plain forward passes: the unit of cost. As they are, and with kernels that start together.

    The latter, on a GPU, are delayed by no host.
    """

    def forward(images: Tensor) -> tuple[Tensor]:
        return (classifier.logits(classifier.encode(images)),)

    recorded = classifier.recorder().record(forward)
    with torch.no_grad():
        return [
            *_times(partial(forward, images), classifier.device, repeats),
            *_times(partial(recorded, images), classifier.device, repeats),
        ]


def _times(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of so many calls, after those of the warm-up."""
    with plain_numerics():
        for _ in range(_GPU_WARM_UP if device.type == "cuda" else _WARM_UP):
            call()
        return [seconds(call, device) for _ in range(repeats)]


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], Table]:
    classifier = random_classifier(arguments.model, arguments.classes, arguments.device, arguments.dtype)
    device, size = classifier.device, classifier.image_size
    assert size is not None
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(arguments.batch, 3, *size, generator=generator).to(device) for _ in range(4)]
    classifier = with_spread_classes(classifier, batches)
    forward = 1000 * min(forward_times(classifier, batches[0], arguments.repeats))
    backward = 1000 * min(gradient_times(classifier, batches[0], arguments.repeats)) - forward
    shown = [
        ("a plain forward pass", f"{forward:.1f}", "1.00", "1 / 0", "", "", ""),
        ("a backward pass on top", f"{backward:.1f}", f"{backward / forward:.2f}", "0 / 1", "", "", ""),
    ]
    rows: dict[str, dict[str, Any]] = {}
    notes = []
    for name in arguments.run or ramen.list_methods():
        try:
            cost = method_cost(name, classifier, batches, batches[:1] * arguments.repeats)
        except MissingPartError as error:
            rows[name] = {"reason": str(error)}
            notes.append(f"{name} cannot run on this model: {error}")
            continue
        spent = 1000 * min(cost.seconds)
        counted = cost.forwards * forward + cost.backwards * backward
        rows[name] = {
            "milliseconds_a_batch": spent,
            "forwards": spent / forward,
            "passes": {"forward": cost.forwards, "backward": cost.backwards},
            "memory_bytes": cost.memory_bytes,
            "of_counted": spent / counted,
        }
        changing = 1000 * augmentation_seconds(name, classifier, batches[0], arguments.repeats)
        without = ""
        if changing:
            rows[name]["augmentation_milliseconds"] = changing
            rows[name]["of_counted_without_augmentation"] = (spent - changing) / counted
            without = f"{(spent - changing) / counted:.2f}"
        ratio = f"{spent / counted:.2f}" + (" !" if abs(spent / counted - 1) > TOLERANCE else "")
        passes, kept = f"{cost.forwards} / {cost.backwards}", readable_bytes(cost.memory_bytes)
        shown.append((name, f"{spent:.1f}", f"{spent / forward:.2f}", passes, kept, ratio, without))
    title = f"{arguments.model}, {arguments.classes} classes, batch {arguments.batch}"
    heads = ("method", "ms a batch", "forwards", "passes (F / B)", "kept", "of counted", "not augmenting")
    results = {
        "settings": {name: getattr(arguments, name) for name in ("model", "classes", "batch", "dtype")},
        "plain_forward_milliseconds": forward,
        "backward_milliseconds": backward,
        "methods": rows,
    }
    return results, Table.of_texts(title, heads, shown, *notes)


def main() -> None:
    parser = command(__doc__, model="ViT-B-16", classes=100, batch=100, repeats=5)
    parser.add_argument("--run", action="append", default=[], metavar="METHOD", help="may be repeated")
    arguments = parser.parse_args()
    results, table = measure(arguments)
    print_tables(Console(), [table])
    write(arguments, results)


if __name__ == "__main__":
    main()
