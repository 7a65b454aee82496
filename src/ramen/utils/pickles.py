"""Pickles from outside, of which nothing is imported or called.

A pickle is a program that may call anything. Here stand-ins take the place of everything that it names, and
what they do not know is refused.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any


class Sealed:
    """A value that a pickle may pass on, and neither look into nor change."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __setstate__(self, state: object) -> None:
        raise ValueError("it sets the state of something that has none")


class Function(Sealed):
    """What stands for a function that a pickle calls."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return self.value(*arguments)


def read_pickle(
    content: bytes, stand_in: Callable[[str], Any], stored: Callable[[Any], Any] | None = None
) -> Any:
    """What a pickle builds from dictionaries, lists, numbers, text and stand-ins.

    Any exception means that it is damaged, or asks for what is refused. Text of Python 2 becomes bytes.

    Args:
        content: The pickle.
        stand_in: Gives what stands for ``module.name``: a Function, a Sealed value, or a class of its own for
            this pickle that defines ``__setstate__``. Raises ValueError for what is refused.
        stored: Gives what is not in the pickle itself, by its identity; a Sealed value.
    """
    return _Reader(content, stand_in, stored).load()


class _Reader(pickle.Unpickler):
    def __init__(
        self, content: bytes, stand_in: Callable[[str], Any], stored: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._stand_in, self._stored = stand_in, stored

    def find_class(self, module_name: str, global_name: str) -> Any:
        return self._stand_in(f"{module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> Any:
        if self._stored is None:
            raise ValueError(f"it refers to {pid!r}, outside of it")
        return self._stored(pid)
