"""A trial: the tiny model on a handful of drawings, and a model of the user's choice looked at."""

import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator

from ramen.doctor.findings import Finding

RIGHT = 0.9  # of the drawings; all but one or two are expected
SLOW_MS = 25.0  # an image through the tiny tower; a core needs one or two
_SEED = (2026,)


def self_test() -> Iterator[Finding]:
    """Zero-shot answers to drawings of every object, then one batch of Ramen."""
    import torch

    from ramen.data.drawings.images import draw_images
    from ramen.data.drawings.shapes import OBJECTS
    from ramen.data.drawings.styles import TRAINED
    from ramen.methods._registry import create
    from ramen.models.tiny_clip.model import load_tiny

    names = list(OBJECTS)
    classifier = load_tiny(names)
    style = next(iter(TRAINED))
    pixels = draw_images(names, [style] * len(names), _SEED).pixels
    images = classifier.preprocess(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    zero_shot = create("ensemble", classifier)
    zero_shot.predict(images)  # the first call also prepares things
    start = time.perf_counter()
    labels = zero_shot.predict(images).labels
    milliseconds = 1000 * (time.perf_counter() - start) / len(images)
    right = int((labels == torch.arange(len(names))).sum())
    yield _answers(right, len(names))
    method = create("ramen", classifier, topk=3, beta=0.0, lr=0.02)
    start = time.perf_counter()
    prediction = method.predict(images)
    spent = 1000 * (time.perf_counter() - start) / len(images)
    refused = int(prediction.fallback.sum())
    if refused or not prediction.logits.isfinite().all():
        text = f"{refused} of {len(names)} images were refused: something in them became infinite"
        yield Finding("ramen", "problem", text, "torch computes wrongly here: try another version")
    else:
        yield Finding("ramen", "ok", f"answers a batch of {len(names)}")
    yield _speed(milliseconds, spent)


def _answers(right: int, count: int) -> Finding:
    text = f"{right} of {count} drawings are named rightly"
    if right < RIGHT * count:
        return Finding("zero-shot", "problem", text, "torch computes wrongly here: try another version")
    return Finding("zero-shot", "ok", text)


def _speed(zero_shot: float, ramen: float) -> Finding:
    text = f"{zero_shot:.2f} ms an image with the tiny model, {ramen:.2f} with Ramen, on the CPU"
    if zero_shot > SLOW_MS:
        return Finding(
            "speed", "warning", text, "slow for this small a model: look at threads, and at other load"
        )
    return Finding("speed", "ok", text)


def model_check(name: str) -> Iterator[Finding]:
    """Which norm layers of a model's image tower are adapted, and how it computes."""
    from ramen.models.by_name import load_model

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            classifier = load_model(name, ["cat", "dog"])
        except (ValueError, ModuleNotFoundError, OSError) as error:
            yield Finding(name, "problem", f"cannot be loaded: {error}", "`ramen models list` has the names")
            return
    encoder = classifier.encoder
    # blocks are alike: transformer.resblocks.*.ln_1 stands for all of them
    layers = {piece.layer: re.sub(r"\b\d+\b", "*", piece.layer) for piece in encoder.layout}
    groups = ", ".join(f"{group} ({count})" for group, count in Counter(layers.values()).items())
    size = "x".join(map(str, classifier.image_size or ("any",)))
    yield Finding(
        name,
        "ok",
        f"{len(layers)} norm layers with {len(encoder.base):,} parameters are adapted: {groups}; "
        f"{size} pixels",
    )
    yield Finding("path", "ok", "fused" if encoder.fused else f"plain: {encoder.plain_reason}")
    for warning in caught:
        if "norm layer" in str(warning.message):
            yield Finding(name, "warning", str(warning.message))
