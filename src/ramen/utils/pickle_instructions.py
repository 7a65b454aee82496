"""A pickle's instructions, followed without unpickling.

A pickle is a program that may call anything. Here Python's own disassembler only lists its instructions, and
a small interpreter follows the few that build dictionaries, lists, numbers and text. Nothing that a pickle
names is imported or called: what a name stands for is up to a subclass, and everything else is refused.
"""

from pickletools import genops
from typing import Any

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"}
_LITERALS |= {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_PYTHON_2_STRINGS = {"BINSTRING", "SHORT_BINSTRING"}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOT_FOR_ALL = {"NEWOBJ", "BINPERSID", "BINFLOAT"}


class PickleInterpreter:
    """The stack and the memo of a pickle, and the instructions that are allowed.

    Attributes:
        kind: What is read, for messages: ``file of CIFAR``.
        further: Of the instructions NEWOBJ, BINPERSID and BINFLOAT those that such files have.
    """

    kind = "file"
    further: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def read(self, content: bytes) -> Any:
        """What the pickle builds; any exception means that it is damaged, or asks for what is refused."""
        for instruction, argument, _ in genops(content):
            if instruction.name == "STOP":
                break
            self._run(instruction.name, argument)
        (built,) = self.stack
        return built

    # -- what a subclass decides --------------------------------------------------------------------

    def named(self, module: str, name: str) -> Any:
        """What stands for something that a pickle names."""
        raise ValueError(f"it asks for {module}.{name}, which no {self.kind} does")

    def called(self, function: Any, arguments: Any) -> Any:
        """What a call would return."""
        raise ValueError("it calls something that is not a function")

    def created(self, class_: Any, arguments: Any) -> Any:
        """A new object of a class."""
        raise ValueError("it creates an object of something that is not a class")

    def given_state(self, target: Any, state: Any) -> None:
        """Set the state of an object."""
        raise ValueError("it sets the state of something that has none")

    def stored_elsewhere(self, identity: Any) -> Any:
        """What is not in the pickle itself."""
        raise ValueError(f"it refers to {identity!r}, outside of it")

    # -- instructions -------------------------------------------------------------------------------

    def _run(self, instruction: str, argument: Any) -> None:
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
            if method is None or instruction in _NOT_FOR_ALL - self.further:
                raise ValueError(f"it has the instruction {instruction}, which no {self.kind} has")
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
        module, _, own = name.partition(" ")
        self.stack.append(self.named(module, own))

    def _stack_global(self, _: object) -> None:
        self.stack.append(self.named(*self._pop_values(2)))

    def _reduce(self, _: object) -> None:
        function, arguments = self._pop_values(2)
        self.stack.append(self.called(function, arguments))

    def _newobj(self, _: object) -> None:
        class_, arguments = self._pop_values(2)
        self.stack.append(self.created(class_, arguments))

    def _build(self, _: object) -> None:
        (state,) = self._pop_values(1)
        self.given_state(self.stack[-1], state)

    def _binfloat(self, number: float) -> None:
        self.stack.append(number)

    def _binpersid(self, _: object) -> None:
        (identity,) = self._pop_values(1)
        self.stack.append(self.stored_elsewhere(identity))

    def _proto(self, _: object) -> None:
        """Ignore the protocol version: unknown instructions are refused anyway."""

    _frame = _proto
