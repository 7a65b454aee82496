"""Trial runs: the tiny model on a few drawings, and a check of a model of the user's choice."""

import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator

from ramen.doctor.findings import Finding

EXPECTED_ACCURACY = 0.9  # on the drawings; normally at most one or two are wrong
SLOW_MS = 25.0  # per image in the tiny model; one core normally needs one or two
_SEED = (2026,)
_TRY_ANOTHER_TORCH = "torch gives wrong results on this machine: try another version"


def self_test() -> Iterator[Finding]:
    """Classify a drawing of every object zero-shot, then as one batch with Ramen."""
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
    zero_shot.predict(images)  # a warm-up
    start = time.perf_counter()
    labels = zero_shot.predict(images).labels
    zero_shot_ms = 1000 * (time.perf_counter() - start) / len(images)
    correct = int((labels == torch.arange(len(names))).sum())
    yield _zero_shot_finding(correct, len(names))
    method = create("ramen", classifier)
    start = time.perf_counter()
    prediction = method.predict(images)
    ramen_ms = 1000 * (time.perf_counter() - start) / len(images)
    refused = int(prediction.fallback.sum())
    if refused or not prediction.logits.isfinite().all():
        text = f"{refused} of {len(names)} images were refused: their values became infinite or NaN"
        yield Finding("ramen", "problem", text, _TRY_ANOTHER_TORCH)
    else:
        yield Finding("ramen", "ok", f"adapts to a batch of {len(names)} images")
    yield _speed_finding(zero_shot_ms, ramen_ms)


def _zero_shot_finding(correct: int, count: int) -> Finding:
    text = f"{correct} of {count} drawings are classified correctly"
    if correct < EXPECTED_ACCURACY * count:
        return Finding("zero-shot", "problem", text, _TRY_ANOTHER_TORCH)
    return Finding("zero-shot", "ok", text)


def _speed_finding(zero_shot_ms: float, ramen_ms: float) -> Finding:
    text = f"{zero_shot_ms:.2f} ms per image with the tiny model, {ramen_ms:.2f} ms with Ramen, on the CPU"
    if zero_shot_ms > SLOW_MS:
        advice = "slow for such a small model: check the number of threads, and what else is running"
        return Finding("speed", "warning", text, advice)
    return Finding("speed", "ok", text)


def model_check(name: str) -> Iterator[Finding]:
    """Which norm layers of a model's image tower are adapted, and how its forward pass is computed."""
    from ramen.models.by_name import load_model, load_network

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            own_head = name.startswith("timm:")
            classifier = load_network(name, None) if own_head else load_model(name, ["cat", "dog"])
        except (ValueError, ModuleNotFoundError, OSError) as error:
            yield Finding(name, "problem", f"cannot be loaded: {error}", "see `ramen models list`")
            return
    encoder = classifier.encoder
    # one entry for the same layer of all blocks: transformer.resblocks.*.ln_1
    layers = {piece.layer: re.sub(r"\b\d+\b", "*", piece.layer) for piece in encoder.layout}
    groups = ", ".join(f"{group} ({count})" for group, count in Counter(layers.values()).items())
    size = "x".join(map(str, classifier.image_size or ("any",)))
    yield Finding(
        name,
        "ok",
        f"{len(layers)} norm layers with {len(encoder.base):,} parameters are adapted: {groups}; "
        f"{size} pixels",
    )
    compilable = f'plain: {encoder.plain_reason}; fused="compile" would compile it'
    yield Finding("path", "ok", "fused" if encoder.fused else compilable)
    for warning in caught:
        if "norm layer" in str(warning.message):
            yield Finding(name, "warning", str(warning.message))
