"""What a method keeps of a stream: declared once, and then reset, saved, checked, restored and counted."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from ramen.memory.base import (
    StreamMemory,
    expect,
    expect_at_least,
    expect_finite,
    expect_names,
)
from ramen.methods._registry import MethodInfo

_Memory = TypeVar("_Memory", bound=StreamMemory)


@dataclass(frozen=True)
class StateTensor:
    """One tensor of a method's state, as it was declared.

    Its values live at one address as long as the method does, which recorded steps rely on.
    """

    default: Tensor
    place: Tensor  # the values
    finite: bool
    minimum: float | None

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
        if value is self.place:
            return
        expected = f"{self.place.dtype} of shape {tuple(self.place.shape)}"
        if not isinstance(value, Tensor):
            raise TypeError(f"state {name!r} must stay a tensor, {expected}, got {type(value).__name__}")
        if value.dtype != self.place.dtype or value.shape != self.place.shape:
            raise TypeError(
                f"state {name!r} must stay {expected}, got {value.dtype} of shape {tuple(value.shape)}"
            )
        self.place.copy_(value if valid is None else torch.where(valid, value, self.place))

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self.place.numel() * self.place.element_size()


class DeclaredState:
    """The states and memories of a method.

    Attributes:
        memories: By the prefix of their names in a saved state.
        epoch: Changes whenever the content is replaced as a whole, by ``clear`` or ``restore``.
    """

    info: ClassVar[MethodInfo]

    def __init__(self) -> None:
        self.epoch = 0
        self.memories: dict[str, StreamMemory] = {}
        self._states: dict[str, StateTensor] = {}

    def add_state(
        self, name: str, default: Tensor, *, finite: bool = True, minimum: float | None = None
    ) -> None:
        """Declare a tensor that the method keeps: an attribute that is reset, saved, restored and counted.

        Args:
            name: Of the attribute, and in a saved state.
            default: Its values at the start; its type, shape and device stay.
            finite: Whether a saved one must be finite to be loaded.
            minimum: What no value of a saved one may be below.
        """
        if name in self._states or hasattr(self, name):
            raise ValueError(f"name must be new, got {name!r}, which {type(self).__name__} has already")
        declared = StateTensor(default.detach(), default.detach().clone(), finite, minimum)
        self._states[name] = declared
        setattr(self, name, declared.place)

    def add_memory(self, memory: _Memory, prefix: str = "") -> _Memory:
        """Register a memory, which then is reset, saved, restored and counted with the method.

        Args:
            memory: It is also returned.
            prefix: Of the names of its parts in a saved state.
        """
        if prefix in self.memories:
            raise ValueError(f"prefix must be new, got {prefix!r}, which another memory has")
        self.memories[prefix] = memory
        return memory

    def check_content(self, content: Mapping[str, Tensor]) -> None:
        """Raise ValueError if parts of a saved state contradict each other; each by itself is checked."""

    def store_states(self, valid: Tensor | None = None) -> None:
        """Move the values that a step has assigned to where states are kept, unless ``valid`` is false."""
        for name, declared in self._states.items():
            declared.store(name, getattr(self, name), valid)
            setattr(self, name, declared.place)

    def clear(self) -> None:
        """Forget what the stream has taught."""
        self.epoch += 1
        for name, declared in self._states.items():
            declared.place.copy_(declared.default)
            setattr(self, name, declared.place)
        for memory in self.memories.values():
            memory.clear()

    def content(self) -> dict[str, Tensor]:
        """Copies of what the stream has taught."""
        content = {name: declared.place.clone() for name, declared in self._states.items()}
        for prefix, memory in self.memories.items():
            content |= {prefix + name: tensor for name, tensor in memory.state().items()}
        return content

    def restore(self, content: Mapping[str, Tensor]) -> None:
        """Take over what ``content`` returned, all of it or, with a ValueError, nothing."""
        parts = {prefix: self._part(prefix, content) for prefix in self.memories}
        of_memories = {prefix + name for prefix, part in parts.items() for name in part}
        own = {name: tensor for name, tensor in content.items() if name not in of_memories}
        expect_names(f"{self.info.name}'s state", own, set(self._states))
        for name, declared in self._states.items():
            declared.check(name, own[name])
        for prefix, memory in self.memories.items():
            memory.check(parts[prefix])
        self.check_content(content)
        self.epoch += 1
        for prefix, memory in self.memories.items():
            memory.restore(parts[prefix])
        for name, declared in self._states.items():
            declared.place.copy_(own[name])
            setattr(self, name, declared.place)

    def unpatched_content(self, in_patches: Collection[str]) -> dict[str, Tensor]:
        """Copies of the content, without what is in the patches of the memories with these prefixes."""
        content = {name: declared.place.clone() for name, declared in self._states.items()}
        for prefix, memory in self.memories.items():
            state = memory.unpatched() if prefix in in_patches else memory.state()
            content |= {prefix + name: tensor for name, tensor in state.items()}
        return content

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
        names = [name for name in content if name.startswith(prefix) and name not in self._states]
        if not prefix:
            names = [name for name in names if not name.startswith(others)]
        return {name.removeprefix(prefix): content[name] for name in names}

    def memory_bytes(self) -> int:
        """The most that the method will ever keep of the stream."""
        states = sum(declared.bytes for declared in self._states.values())
        return states + sum(memory.most_bytes() for memory in self.memories.values())

    def allocated_bytes(self) -> int:
        """What the method keeps of the stream now."""
        states = sum(declared.bytes for declared in self._states.values())
        return states + sum(memory.allocated_bytes() for memory in self.memories.values())
