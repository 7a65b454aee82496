"""What a saved state belongs to: written into it, and compared before it is loaded. States as files."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramen.memory.base import SHARES, expect, expect_at_least
from ramen.utils.files import atomic_write
from ramen.utils.sealed import DamagedError, seal, unseal

VERSION = 1
_REQUIRED = ("header", "class_embeddings", "images_seen", "images_refused")
# Text towers give slightly different embeddings on different devices; other prompts differ far more.
_SAME_EMBEDDINGS = 1e-3


class ForeignStateError(ValueError):
    """A state of another model, class list, method or version."""


def write_file(path: str | os.PathLike[str], state: Mapping[str, Tensor]) -> None:
    """Write a state to a file, with checksums, completely or not at all."""
    pieces = seal({name: tensor.cpu() for name, tensor in state.items()}, {"format": "ramen state"})
    with atomic_write(Path(path)) as file:
        for piece in pieces:
            file.write(piece)


def read_file(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """What ``write_file`` has written; ValueError if it is damaged."""
    if Path(path).is_dir():
        raise ForeignStateError(f"{os.fspath(path)} is a folder, not a file: {SHARES}")
    try:
        return unseal(bytearray(Path(path).read_bytes()))[0]
    except DamagedError as error:
        raise DamagedError(f"{os.fspath(path)} is damaged, or no saved state: {error}") from None


def write_header(identity: Mapping[str, Any]) -> Tensor:
    """An identity as the UTF-8 bytes of its JSON."""
    return torch.tensor(list(json.dumps(identity).encode()), dtype=torch.uint8, device="cpu")


def saved_parameters(state: object) -> dict[str, Any]:
    """The parameters that a saved state names; empty if it cannot be read, which ``check`` reports."""
    try:
        return dict(json.loads(bytes(state["header"].tolist()))["parameters"])  # type: ignore[index]
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def check(
    state: Mapping[str, Tensor],
    identity: Mapping[str, Any],
    class_embeddings: Tensor,
    upgraded: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> tuple[int, int]:
    """Raise ValueError that says what differs, unless ``state`` is of this identity and these classes.

    Args:
        state: What was saved.
        identity: What it must belong to.
        class_embeddings: Those of the classifier.
        upgraded: The parameters of an older state by their names today, and those that are younger than it.

    Returns:
        How many images it had seen, and how many of them refused.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be the dict that state_dict() returned, got {type(state).__name__}")
    missing = [name for name in _REQUIRED if name not in state]
    if missing:
        raise ValueError(f"state must be what state_dict() returned, got one without {', '.join(missing)}")
    try:
        saved = json.loads(bytes(state["header"].tolist()))
        saved["parameters"] = upgraded(saved["parameters"])
        found = _differences(saved, identity)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"state has a header that cannot be read: {error!r}") from error
    if not found and not _same(state["class_embeddings"], class_embeddings):
        found = ["the class embeddings are not the same (templates or text encoder)"]
    if found:
        raise ForeignStateError(f"this state belongs to something else: {'; '.join(found)}")
    counts = state["images_seen"], state["images_refused"]
    for name, count in zip(("images_seen", "images_refused"), counts, strict=True):
        expect(name, count, torch.int64, ())
        expect_at_least(name, count, 0)
    return int(counts[0]), int(counts[1])


def _differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """In words, how a saved identity differs from one's own."""
    if saved["version"] != own["version"]:
        return [f"its format is version {saved['version']}, this library reads version {own['version']}"]
    if saved["method"] != own["method"]:
        return [f"it is of method {saved['method']!r}, this is {own['method']!r}"]
    found = [
        f"{name} is {saved['parameters'].get(name)!r} there and {value!r} here"
        for name, value in own["parameters"].items()
        if saved["parameters"].get(name) != value
    ]
    theirs, ours = saved["classifier"], own["classifier"]
    if theirs["classes"] != ours["classes"]:
        found.append(_class_difference(theirs["classes"], ours["classes"]))
    if theirs["encoder"] != ours["encoder"]:
        found.append(
            f"the encoder's weights are {theirs['encoder'][:12]}... there, {ours['encoder'][:12]}... here"
        )
    if not math.isclose(theirs["logit_scale"], ours["logit_scale"], rel_tol=1e-5):
        found.append(f"logit_scale is {theirs['logit_scale']} there and {ours['logit_scale']} here")
    if theirs.get("class_lengths") != ours.get("class_lengths"):
        found.append("the lengths of the class vectors are others there than here")
    return found


def _class_difference(theirs: list[str], ours: list[str]) -> str:
    if len(theirs) != len(ours):
        return f"it has {len(theirs)} classes, this classifier {len(ours)}"
    index = next(i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b)
    return f"class {index} is {theirs[index]!r} there and {ours[index]!r} here"


def _same(theirs: object, ours: Tensor) -> bool:
    if not isinstance(theirs, Tensor) or theirs.shape != ours.shape:
        return False
    return bool((theirs.to(ours) - ours).abs().max() <= _SAME_EMBEDDINGS)
