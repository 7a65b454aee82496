"""The files of CIFAR's python version, read without unpickling.

They are pickles: programs that may call anything. Here Python's own disassembler only lists their
instructions, and a small interpreter follows the few that build dictionaries, lists, numbers, text and arrays
of bytes. Nothing that a file names is imported or called; everything else is refused.
"""

import math
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Array:
    """An array of bytes, once its state has been set."""

    values: NDArray[np.uint8]

    def set_state(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, column_major, content = state
        if not isinstance(dtype, _DType) or dtype.code not in ("u1", b"u1") or not isinstance(content, bytes):
            raise ValueError("an array in it does not hold bytes")
        if math.prod(shape) != len(content):
            raise ValueError(f"an array in it has {len(content)} bytes for a shape of {shape}")
        flat = np.frombuffer(content, np.uint8)
        self.values = flat.reshape(shape[::-1]).T if column_major else flat.reshape(shape)


class _DType:
    """The dtype of an array."""

    def __init__(self, code: object) -> None:
        self.code = code

    def set_state(self, state: object) -> None:
        """Ignore the byte order and the like: numbers of one byte have none."""


class _Callable:
    """The name of something that a pickle would call."""

    def __init__(self, module: str, name: str) -> None:
        # NumPy moved its modules; the released files have the old name.
        self.name = f"{module}.{name}".replace("numpy._core.", "numpy.core.")

    def result(self, arguments: tuple[Any, ...]) -> object:
        """What the call would return, for the three calls that the pickle of an array contains."""
        if self.name == "numpy.core.multiarray._reconstruct":
            return _Array()
        if self.name == "numpy.dtype":
            return _DType(arguments[0])
        # Python 3 writes bytes for Python 2 in this way.
        if self.name == "_codecs.encode" and arguments[1] == "latin1":
            return arguments[0].encode("latin1")
        raise ValueError(f"it calls {self.name}, which no file of CIFAR does")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"}
_LITERALS |= {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_PYTHON_2_STRINGS = {"BINSTRING", "SHORT_BINSTRING"}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Interpreter:
    """The stack and the memo of a pickle, and the instructions that are allowed."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, instruction: str, argument: Any) -> None:
        if instruction in _CONSTANTS:
            self.stack.append(_CONSTANTS[instruction])
        elif instruction in _LITERALS:
            self.stack.append(argument)
        elif instruction in _PYTHON_2_STRINGS:
            self.stack.append(argument.encode("latin1"))  # the disassembler has decoded it
        elif instruction in _EMPTY:
            self.stack.append(_EMPTY[instruction]())
        elif instruction in _TUPLES:
            self.stack.append(tuple(self._pop_values(_TUPLES[instruction])))
        else:
            method = getattr(self, f"_{instruction.lower()}", None)
            if method is None:
                raise ValueError(f"it has the instruction {instruction}, which no file of CIFAR has")
            method(argument)

    def _pop_values(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise ValueError("it takes more from the stack than there is")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def _pop_to_mark(self) -> list[Any]:
        return self._pop_values(len(self.stack) - self.marks.pop())

    def _mark(self, _: object) -> None:
        self.marks.append(len(self.stack))

    def _binput(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    _long_binput = _binput

    def _memoize(self, _: object) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _binget(self, number: int) -> None:
        self.stack.append(self.memo[number])

    _long_binget = _binget

    def _tuple(self, _: object) -> None:
        self.stack.append(tuple(self._pop_to_mark()))

    def _append(self, _: object) -> None:
        self._extend_list(self._pop_values(1))

    def _appends(self, _: object) -> None:
        self._extend_list(self._pop_to_mark())

    def _extend_list(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("it appends to something that is not a list")
        self.stack[-1].extend(values)

    def _setitem(self, _: object) -> None:
        self._update_dict(self._pop_values(2))

    def _setitems(self, _: object) -> None:
        self._update_dict(self._pop_to_mark())

    def _update_dict(self, pairs: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise ValueError("it sets items of something that is not a dictionary")
        self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    def _global(self, name: str) -> None:
        self.stack.append(_Callable(*name.split(" ")))

    def _stack_global(self, _: object) -> None:
        self.stack.append(_Callable(*self._pop_values(2)))

    def _reduce(self, _: object) -> None:
        function, arguments = self._pop_values(2)
        if not isinstance(function, _Callable):
            raise ValueError("it calls something that is not a function")
        self.stack.append(function.result(arguments))

    def _build(self, _: object) -> None:
        (state,) = self._pop_values(1)
        if not isinstance(self.stack[-1], _Array | _DType):
            raise ValueError("it sets the state of something that is not an array")
        self.stack[-1].set_state(state)

    def _proto(self, _: object) -> None:
        """Ignore the protocol version: unknown instructions are refused anyway."""

    _frame = _proto


def read_cifar_file(path: Path, labels: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """The rows ``(n, 3072)`` and the labels of a file of CIFAR's python version.

    Args:
        path: ``test_batch`` of CIFAR-10, ``test`` of CIFAR-100.
        labels: The key of the labels: ``b"labels"`` or ``b"fine_labels"``.
    """
    hint = "expected an unpacked test file of CIFAR's python version; download and unpack it again"
    interpreter = _Interpreter()
    try:
        for instruction, argument, _ in genops(path.read_bytes()):
            if instruction.name == "STOP":
                break
            interpreter.run(instruction.name, argument)
        (content,) = interpreter.stack
        entries = {k.encode() if isinstance(k, str) else k: v for k, v in content.items()}
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"{path} cannot be read: {error}; {hint}") from error
    missing = [key.decode() for key in (b"data", labels) if key not in entries]
    if missing:
        raise ValueError(f"{path} has no {' and no '.join(missing)}; {hint}")
    rows = getattr(entries[b"data"], "values", None)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3072:
        raise ValueError(f"{path}: data must be bytes of shape (n, 3072); {hint}")
    numbers = entries[labels]
    if not isinstance(numbers, list) or len(numbers) != len(rows) or not all(type(n) is int for n in numbers):
        raise ValueError(f"{path}: {labels.decode()} must be {len(rows)} whole numbers, one per image")
    return rows, numbers
