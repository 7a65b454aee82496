"""From records back to the state that they describe."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ramen.memory.base import Patch

VERSION = "1"
_WHOLE = "="  # before the name of a tensor that a record has as a whole


@dataclass(frozen=True)
class NamedPatch:
    """A patch of tensors of a state, under their full names.

    Attributes:
        patch: Its values, by full name.
        rows_of: The prefix of the memory whose rows ``places`` are; None if they are something else.
    """

    patch: Patch
    rows_of: str | None


def record_content(
    whole: Mapping[str, Tensor], patches: list[NamedPatch], facts: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A record of tensors that replace the old ones, patches of others, and plain values."""
    tensors = {f"{_WHOLE}{name}": tensor for name, tensor in whole.items()}
    described = []
    for number, named in enumerate(patches):
        tensors[f"{number}"] = named.patch.places
        tensors |= {f"{number}{_WHOLE}{name}": values for name, values in named.patch.values.items()}
        described.append({"length": named.patch.length, "fill": named.patch.fill, "rows_of": named.rows_of})
    return tensors, {
        "version": VERSION,
        "patches": json.dumps(described),
        **{key: json.dumps(value) for key, value in facts.items()},
    }


def read_patches(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> Iterator[NamedPatch]:
    """The patches of a record."""
    for number, described in enumerate(json.loads(facts["patches"])):
        start = f"{number}{_WHOLE}"
        values = {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
        patch = Patch(tensors[f"{number}"], values, described["length"], described["fill"])
        yield NamedPatch(patch, described["rows_of"])


@dataclass
class Replay:
    """The state so far.

    Attributes:
        copies: By a memory's prefix and its rows: the segment that has the newest copy of a row, or -1.
        facts: Of the last record.
    """

    copies: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    _whole: dict[str, Tensor] = field(default_factory=dict)
    _patched: dict[str, Tensor] = field(default_factory=dict)  # with room to grow
    _lengths: dict[str, int] = field(default_factory=dict)

    def apply(self, segment: int, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
        """Go on by one record."""
        self.facts = {key: json.loads(value) for key, value in facts.items()}
        if self.facts["fresh"]:
            for content in (self.copies, self._whole, self._patched, self._lengths):
                content.clear()
        self._whole |= {
            name.removeprefix(_WHOLE): tensor.clone()
            for name, tensor in tensors.items()
            if name.startswith(_WHOLE)
        }
        for named in read_patches(tensors, facts):
            self._apply_patch(named.patch)
            if named.rows_of is not None:
                known = self.copies.get(named.rows_of, NO_COPIES)
                self.copies[named.rows_of] = with_copies(known, named.patch.places, segment)

    def _apply_patch(self, patch: Patch) -> None:
        for name, values in patch.values.items():
            old = self._patched.get(name, values[:0])
            tensor = grown(old, patch.length, patch.fill)
            tensor[patch.places] = values
            self._patched[name], self._lengths[name] = tensor, patch.length

    def state(self) -> dict[str, Tensor]:
        """As ``Method.load_state_dict`` takes it."""
        patched = {name: tensor[: self._lengths[name]] for name, tensor in self._patched.items()}
        return {**self._whole, **patched}


NO_COPIES = torch.empty(0, dtype=torch.int32)


def with_copies(copies: Tensor, rows: Tensor, segment: int) -> Tensor:
    """``copies``, in place if there is room, once the newest copies of these rows are in ``segment``."""
    copies = grown(copies, int(rows.max()) + 1, -1)
    copies[rows] = segment
    return copies


def grown(tensor: Tensor, length: int, fill: int) -> Tensor:
    """The tensor itself if it has that many rows, or else a copy with room for more."""
    if length <= len(tensor):
        return tensor
    room = max(length, 2 * len(tensor))
    larger = torch.full((room, *tensor.shape[1:]), fill, dtype=tensor.dtype)
    larger[: len(tensor)] = tensor
    return larger
