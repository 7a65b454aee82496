"""Results of images that nobody classified."""

from ramen.classify.output import Identity
from ramen.client.result import Result

CLASSES = ("cat", "dog", "fire truck")
IDENTITY = Identity("tiny", "ab12", CLASSES, ("a photo of a {}.",), "ramen", {"topk": 3}, True, "float32")


def answer(key: str, label: str = "cat", zero_shot_label: str | None = None, **others: object) -> Result:
    """An answer whose label is the zero-shot label unless another one is given."""
    probability = others.get("probability", 0.5)
    values = {
        "key": key,
        "label": label,
        "probability": probability,
        "zero_shot_label": zero_shot_label or label,
        "zero_shot_probability": 0.4375,
        "top": ((label, probability), *((name, 0.25) for name in CLASSES if name != label)),
        "adapted": True,
        "support": 12,
        "state_version": 32,
        "entropy": 1.0,
        "zero_shot_entropy": 1.0625,
    }
    return Result(**values | others)


def failure(key: str, why: str = "it has no pixels") -> Result:
    """The result of a file that cannot be read."""
    return Result.failed(key, f"{key}: {why}", 32)
