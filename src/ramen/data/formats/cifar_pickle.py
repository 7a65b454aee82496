"""The files of CIFAR's python version, read without unpickling.

They are pickles: programs that may call anything. Here their instructions are only listed, by Python's own
disassembler, and the few that build dictionaries, lists, numbers, text and arrays of bytes are followed by
ourselves. Nothing that a file names is looked up, nothing is called; everything else is refused.
"""

import math
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Array:
    """An array of bytes, once its content has been told."""

    values: NDArray[np.uint8]

    def told(self, state: tuple[Any, ...]) -> None:
        _version, shape, kind, by_columns, content = state
        if not isinstance(kind, _Kind) or kind.code not in ("u1", b"u1") or not isinstance(content, bytes):
            raise ValueError("an array in it does not hold bytes")
        if math.prod(shape) != len(content):
            raise ValueError(f"an array in it has {len(content)} bytes for a shape of {shape}")
        flat = np.frombuffer(content, np.uint8)
        self.values = flat.reshape(shape[::-1]).T if by_columns else flat.reshape(shape)


class _Kind:
    """The type of an array's numbers."""

    def __init__(self, code: object) -> None:
        self.code = code

    def told(self, state: object) -> None:
        """Byte order and the like: one-byte numbers have none."""


class _Name:
    """A name from which a pickle would call something."""

    def __init__(self, module: str, name: str) -> None:
        # numpy moved its modules; the released files have the old name
        self.full = f"{module}.{name}".replace("numpy._core.", "numpy.core.")

    def called(self, arguments: tuple[Any, ...]) -> object:
        """What the call means, for the three that an array's pickle has."""
        if self.full == "numpy.core.multiarray._reconstruct":
            return _Array()
        if self.full == "numpy.dtype":
            return _Kind(arguments[0])
        if (
            self.full == "_codecs.encode" and arguments[1] == "latin1"
        ):  # how Python 3 wrote bytes for Python 2
            return arguments[0].encode("latin1")
        raise ValueError(f"it calls {self.full}, which no file of CIFAR does")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_AS_IT_IS = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"}
_AS_IT_IS |= {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """A stack, what was put aside, and the instructions that we follow."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.aside: dict[int, Any] = {}

    def follow(self, instruction: str, argument: Any) -> None:
        if instruction in _CONSTANTS:
            self.stack.append(_CONSTANTS[instruction])
        elif instruction in _AS_IT_IS:
            self.stack.append(argument)
        elif instruction in (
            "BINSTRING",
            "SHORT_BINSTRING",
        ):  # text of Python 2; the disassembler has decoded it
            self.stack.append(argument.encode("latin1"))
        elif instruction in _EMPTY:
            self.stack.append(_EMPTY[instruction]())
        elif instruction in _TUPLES:
            self.stack.append(tuple(self._take(_TUPLES[instruction])))
        else:
            method = getattr(self, f"_{instruction.lower()}", None)
            if method is None:
                raise ValueError(f"it has the instruction {instruction}, which no file of CIFAR has")
            method(argument)

    def _take(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise ValueError("it takes more than it has put there")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def _since_mark(self) -> list[Any]:
        return self._take(len(self.stack) - self.marks.pop())

    def _mark(self, _: object) -> None:
        self.marks.append(len(self.stack))

    def _binput(self, number: int) -> None:
        self.aside[number] = self.stack[-1]

    _long_binput = _binput

    def _memoize(self, _: object) -> None:
        self.aside[len(self.aside)] = self.stack[-1]

    def _binget(self, number: int) -> None:
        self.stack.append(self.aside[number])

    _long_binget = _binget

    def _tuple(self, _: object) -> None:
        self.stack.append(tuple(self._since_mark()))

    def _append(self, _: object) -> None:
        self._extend(self._take(1))

    def _appends(self, _: object) -> None:
        self._extend(self._since_mark())

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("it appends to what is no list")
        self.stack[-1].extend(values)

    def _setitem(self, _: object) -> None:
        self._fill(self._take(2))

    def _setitems(self, _: object) -> None:
        self._fill(self._since_mark())

    def _fill(self, pairs: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise ValueError("it fills what is no dictionary")
        self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    def _global(self, name: str) -> None:
        self.stack.append(_Name(*name.split(" ")))

    def _stack_global(self, _: object) -> None:
        self.stack.append(_Name(*self._take(2)))

    def _reduce(self, _: object) -> None:
        name, arguments = self._take(2)
        if not isinstance(name, _Name):
            raise ValueError("it calls what is no name")
        self.stack.append(name.called(arguments))

    def _build(self, _: object) -> None:
        (state,) = self._take(1)
        if not isinstance(self.stack[-1], _Array | _Kind):
            raise ValueError("it tells the content of what is no array")
        self.stack[-1].told(state)

    def _proto(self, _: object) -> None:
        """Which instructions there are; we refuse what we do not know anyway."""

    _frame = _proto


def read_cifar_file(path: Path, labels: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """The rows ``(n, 3072)`` and the labels of a file of CIFAR's python version.

    Args:
        path: ``test_batch`` of CIFAR-10, ``test`` of CIFAR-100.
        labels: The key of the labels: ``b"labels"`` or ``b"fine_labels"``.
    """
    hint = "expected a test file of CIFAR's python version, unpacked; download and unpack it again"
    machine = _Machine()
    try:
        for instruction, argument, _ in genops(path.read_bytes()):
            if instruction.name == "STOP":
                break
            machine.follow(instruction.name, argument)
        (content,) = machine.stack
        entries = {k.encode() if isinstance(k, str) else k: v for k, v in content.items()}
    except Exception as error:  # nonsense fails in all kinds of ways
        raise ValueError(f"{path} cannot be read: {error}; {hint}") from error
    missing = [key.decode() for key in (b"data", labels) if key not in entries]
    if missing:
        raise ValueError(f"{path} has no {' and no '.join(missing)}; {hint}")
    rows = getattr(entries[b"data"], "values", None)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3072:
        raise ValueError(f"{path}: data must be bytes of shape (n, 3072); {hint}")
    numbers = entries[labels]
    if not isinstance(numbers, list) or len(numbers) != len(rows) or not all(type(n) is int for n in numbers):
        raise ValueError(f"{path}: {labels.decode()} must be {len(rows)} whole numbers, one for each image")
    return rows, numbers
