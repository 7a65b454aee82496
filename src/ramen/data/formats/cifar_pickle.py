"""The files of CIFAR's python version, read without unpickling.

They are pickles: programs that may call anything. Their instructions are followed without executing them
(``ramen.utils.pickle_instructions``), to dictionaries, lists, numbers, text and arrays of bytes.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen.utils.pickle_instructions import PickleInterpreter


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


class _Interpreter(PickleInterpreter):
    """Knows arrays of bytes, and the three calls that build them."""

    kind = "file of CIFAR"

    def named(self, module: str, name: str) -> Any:
        """Something that may be called, if it is one of the three."""
        return _Callable(module, name)

    def called(self, function: Any, arguments: Any) -> Any:
        """What the call would return."""
        if not isinstance(function, _Callable):
            raise ValueError("it calls something that is not a function")
        return function.result(arguments)

    def given_state(self, target: Any, state: Any) -> None:
        """Of an array, or of its dtype."""
        if not isinstance(target, _Array | _DType):
            raise ValueError("it sets the state of something that is not an array")
        target.set_state(state)


def read_cifar_file(path: Path, labels: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """The rows ``(n, 3072)`` and the labels of a file of CIFAR's python version.

    Args:
        path: ``test_batch`` of CIFAR-10, ``test`` of CIFAR-100.
        labels: The key of the labels: ``b"labels"`` or ``b"fine_labels"``.
    """
    hint = "expected an unpacked test file of CIFAR's python version; download and unpack it again"
    try:
        content = _Interpreter().read(path.read_bytes())
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
