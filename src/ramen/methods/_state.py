"""What a method keeps of a stream: declared once, then reset, saved, checked, restored and counted.

A saved state has a header that says what it belongs to, which is compared before anything is loaded.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramen.memory.base import (
    SHARES,
    StreamMemory,
    expect,
    expect_at_least,
    expect_finite,
    expect_names,
)
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.files import atomic_write
from ramen.utils.sealed import DamagedError, seal, unseal

CONTENT = "content."  # before the names of what a saved state holds of the stream
_VERSION = 1
_REQUIRED = ("header", "class_embeddings", "images_seen", "images_refused")
# Text towers give slightly different embeddings on different devices; other prompts differ far more.
_SAME_EMBEDDINGS = 1e-3


@dataclass(frozen=True)
class StateTensor:
    """One tensor of a method's state, as it was declared; its values stay at one address, for recorded steps.

    Attributes:
        default: Its values at the start.
        place: Its values.
        finite: Whether a saved one must be finite.
        minimum: What no value of a saved one may be below.
        kept: Whether a reset leaves it as it is.
    """

    default: Tensor
    place: Tensor
    finite: bool
    minimum: float | None
    kept: bool

    def check(self, name: str, tensor: object) -> None:
        """Raise ValueError unless something saved could be its values."""
        expect(name, tensor, self.default.dtype, tuple(self.default.shape))
        assert isinstance(tensor, Tensor)
        if self.finite:
            expect_finite(name, tensor)
        if self.minimum is not None:
            expect_at_least(name, tensor, self.minimum)

    def store(self, name: str, value: object, valid: Tensor | None = None) -> None:
        """Overwrite the values with those that a step has assigned, unless ``valid`` says no."""
        expected = f"{self.place.dtype} of shape {tuple(self.place.shape)}"
        if not isinstance(value, Tensor):
            raise TypeError(f"state {name!r} must stay a tensor, {expected}, got {type(value).__name__}")
        if value.dtype != self.place.dtype or value.shape != self.place.shape:
            raise TypeError(
                f"state {name!r} must stay {expected}, got {value.dtype} of shape {tuple(value.shape)}"
            )
        if value is not self.place:
            self.place.copy_(value if valid is None else torch.where(valid, value, self.place))


class State:
    """The declared tensors and the memories of a method.

    Attributes:
        tensors: By name.
        memories: By the prefix of their names in a saved state.
        epoch: Changes whenever the content is replaced as a whole, by ``clear`` or ``restore``.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, StateTensor] = {}
        self.memories: dict[str, StreamMemory] = {}
        self.epoch = 0

    def commit(self, assigned: dict[str, Any], valid: Tensor | None = None) -> None:
        """Move new values to where they are kept, unless ``valid`` is false.

        Args:
            assigned: The attributes of the method, which lose them.
            valid: A boolean tensor.
        """
        for name in self.tensors.keys() & assigned.keys():
            self.tensors[name].store(name, assigned.pop(name), valid)

    def clear(self) -> None:
        """Forget what the stream has taught."""
        self.epoch += 1
        for declared in self.tensors.values():
            if not declared.kept:
                declared.place.copy_(declared.default)
        for memory in self.memories.values():
            memory.clear()

    def content(self, without_patches: Collection[str] = ()) -> dict[str, Tensor]:
        """Copies of what the stream has taught.

        Args:
            without_patches: Prefixes of memories: without what is in their patches.
        """
        content = {name: declared.place.clone() for name, declared in self.tensors.items()}
        for prefix, memory in self.memories.items():
            part = memory.unpatched() if prefix in without_patches else memory.state()
            content |= {prefix + name: tensor for name, tensor in part.items()}
        return content

    def restore(self, content: Mapping[str, Tensor], check: Callable[[Mapping[str, Tensor]], None]) -> None:
        """Take over what ``content`` returned, all of it or, with a ValueError, nothing.

        Args:
            content: What was saved.
            check: Raises ValueError if parts of it contradict each other; each by itself is checked here.
        """
        parts = {prefix: self._part(prefix, content) for prefix in self.memories}
        of_memories = {prefix + name for prefix, part in parts.items() for name in part}
        own = {name: tensor for name, tensor in content.items() if name not in of_memories}
        expect_names("the state", own, set(self.tensors))
        for name, declared in self.tensors.items():
            declared.check(name, own[name])
        for prefix, memory in self.memories.items():
            memory.check(parts[prefix])
        check(content)
        self.epoch += 1
        for prefix, memory in self.memories.items():
            memory.restore(parts[prefix])
        for name, declared in self.tensors.items():
            declared.place.copy_(own[name])

    def salvage(self, content: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sound content of what is left in one that lacks some patches of its memories."""
        salvaged = dict(content)
        for prefix, memory in self.memories.items():
            part = memory.salvage(self._part(prefix, content))
            salvaged |= {prefix + name: tensor for name, tensor in part.items()}
        return salvaged

    def _part(self, prefix: str, content: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What of a saved state belongs to a memory; one without a prefix has what nobody else has."""
        others = tuple(other for other in self.memories if other and other != prefix)
        names = [name for name in content if name.startswith(prefix) and name not in self.tensors]
        if not prefix:
            names = [name for name in names if not name.startswith(others)]
        return {name.removeprefix(prefix): content[name] for name in names}

    def most_bytes(self) -> int:
        """The most that it will ever take."""
        return self._tensor_bytes() + sum(memory.most_bytes() for memory in self.memories.values())

    def allocated_bytes(self) -> int:
        """What it takes now."""
        return self._tensor_bytes() + sum(memory.allocated_bytes() for memory in self.memories.values())

    def _tensor_bytes(self) -> int:
        return sum(declared.place.nbytes for declared in self.tensors.values())


# -- files ------------------------------------------------------------------------------------------------


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


# -- what a state belongs to ------------------------------------------------------------------------------


class ForeignStateError(ValueError):
    """A state of another model, class list, method or version."""


@dataclass(frozen=True)
class Identity:
    """What a saved state must belong to."""

    method: str
    parameters: Mapping[str, Any]
    classifier: ZeroShotClassifier

    def written(self) -> dict[str, Tensor]:
        """The part of a saved state that says it."""
        facts = {
            "version": _VERSION,
            "method": self.method,
            "parameters": dict(self.parameters),
            "classifier": self.classifier.fingerprint(),
        }
        header = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8, device="cpu")
        return {"header": header, "class_embeddings": self.classifier.class_embeddings.clone()}

    def check(
        self,
        state: Mapping[str, Tensor],
        upgraded: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> tuple[int, int]:
        """Raise ValueError that says what differs, unless ``state`` is of this identity and these classes.

        Args:
            state: What was saved.
            upgraded: The parameters of an older state by their names today, and those that are younger.

        Returns:
            How many images it had seen, and how many of them refused.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be the dict that state_dict() returned, got {type(state).__name__}")
        missing = [name for name in _REQUIRED if name not in state]
        if missing:
            raise ValueError(
                f"state must be what state_dict() returned, got one without {', '.join(missing)}"
            )
        try:
            saved = json.loads(bytes(state["header"].tolist()))
            saved["parameters"] = upgraded(saved["parameters"])
            found = self._differences(saved)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"state has a header that cannot be read: {error!r}") from error
        if not found and not _same(state["class_embeddings"], self.classifier.class_embeddings):
            found = ["the class embeddings are not the same (templates or text encoder)"]
        if found:
            raise ForeignStateError(f"this state belongs to something else: {'; '.join(found)}")
        for name in ("images_seen", "images_refused"):
            expect(name, state[name], torch.int64, ())
            expect_at_least(name, state[name], 0)
        return int(state["images_seen"]), int(state["images_refused"])

    def _differences(self, saved: Mapping[str, Any]) -> list[str]:
        """In words, how a saved identity differs from this one."""
        if saved["version"] != _VERSION:
            return [f"its format is version {saved['version']}, this library reads version {_VERSION}"]
        if saved["method"] != self.method:
            return [f"it is of method {saved['method']!r}, this is {self.method!r}"]
        found = [
            f"{name} is {saved['parameters'].get(name)!r} there and {value!r} here"
            for name, value in self.parameters.items()
            if saved["parameters"].get(name) != value
        ]
        theirs, ours = saved["classifier"], self.classifier.fingerprint()
        if theirs["classes"] != ours["classes"]:
            found.append(_class_difference(theirs["classes"], ours["classes"]))
        if theirs["encoder"] != ours["encoder"]:
            hashes = f"{theirs['encoder'][:12]}... there, {ours['encoder'][:12]}... here"
            found.append(f"the encoder's weights are {hashes}")
        if not math.isclose(theirs["logit_scale"], ours["logit_scale"], rel_tol=1e-5):
            found.append(f"logit_scale is {theirs['logit_scale']} there and {ours['logit_scale']} here")
        if theirs.get("class_lengths") != ours.get("class_lengths"):
            found.append("the lengths of the class vectors are others there than here")
        return found


def saved_parameters(state: object) -> dict[str, Any]:
    """The parameters that a saved state names; empty if it cannot be read, which ``check`` reports."""
    try:
        return dict(json.loads(bytes(state["header"].tolist()))["parameters"])  # type: ignore[index]
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _class_difference(theirs: list[str], ours: list[str]) -> str:
    if len(theirs) != len(ours):
        return f"it has {len(theirs)} classes, this classifier {len(ours)}"
    index = next(i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b)
    return f"class {index} is {theirs[index]!r} there and {ours[index]!r} here"


def _same(theirs: object, ours: Tensor) -> bool:
    if not isinstance(theirs, Tensor) or theirs.shape != ours.shape:
        return False
    return bool((theirs.to(ours) - ours).abs().max() <= _SAME_EMBEDDINGS)
