"""What a saved state belongs to: written into its header, compared before it is loaded."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

VERSION = 1


def text_to_tensor(text: str) -> Tensor:
    """Its UTF-8 bytes."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def read_header(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The identity that a state was saved with."""
    missing = {"header", "images_seen", "images_refused"} - set(state)
    if missing:
        raise ValueError(
            f"state must be what state_dict() returned, got one without {', '.join(sorted(missing))}"
        )
    try:
        header = json.loads(bytes(state["header"].tolist()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"state has a header that cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"state has a header that is no record: {header!r}")
    return header


def differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """In words, where a saved identity is not one's own."""
    if saved.get("version") != own["version"]:
        return [f"its format is version {saved.get('version')}, this library reads version {own['version']}"]
    if saved.get("method") != own["method"]:
        return [f"it is of method {saved.get('method')!r}, this is {own['method']!r}"]
    theirs, ours = saved["classifier"], own["classifier"]
    found = [
        f"{name} is {saved['parameters'].get(name)!r} there and {value!r} here"
        for name, value in own["parameters"].items()
        if saved["parameters"].get(name) != value
    ]
    if theirs["classes"] != ours["classes"]:
        found.append(_class_difference(theirs["classes"], ours["classes"]))
    elif theirs["class_embeddings"] != ours["class_embeddings"]:
        found.append("the class embeddings are not the same (templates or text encoder)")
    if theirs["encoder"] != ours["encoder"]:
        found.append(
            f"the encoder's weights are {theirs['encoder'][:12]}... there, {ours['encoder'][:12]}... here"
        )
    if theirs["logit_scale"] != ours["logit_scale"]:
        found.append(f"logit_scale is {theirs['logit_scale']:g} there and {ours['logit_scale']:g} here")
    return found


def _class_difference(theirs: list[str], ours: list[str]) -> str:
    if len(theirs) != len(ours):
        return f"it has {len(theirs)} classes, this classifier {len(ours)}"
    index = next(i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b)
    return f"class {index} is {theirs[index]!r} there and {ours[index]!r} here"
