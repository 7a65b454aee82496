"""The records of this package's methods, read from their source files.

Importing a method loads torch, which takes seconds; to list methods, to describe one or to refuse a misspelt
name, its record is enough. It is the same record: the expression in the file is evaluated, with those names
alone that it uses. The registry has the records of all methods that have been imported.
"""

import ast
import builtins
import importlib
import importlib.util
import inspect
import pkgutil
from dataclasses import replace
from functools import cache
from typing import Any

from ramen.methods._argument_texts import argument_texts, explanations
from ramen.methods._info import MethodInfo

_PACKAGE = "ramen.methods"
_JOINS_GROUPS = "joins_groups"
GROUP = "group"  # says where a method runs, not what it does: no parameter that a record lists


@cache
def own_records() -> dict[str, MethodInfo] | None:
    """The record of each method of this package, by name; None if there are no source files to read."""
    records = {}
    package = importlib.import_module(_PACKAGE)
    for module in pkgutil.iter_modules(package.__path__):
        source = _Source.of(f"{_PACKAGE}.{module.name}")
        if source is None:
            return None
        for record in source.records():
            records[record.name] = record
    return records


class _Source:
    """A file of this package that is read and not imported."""

    def __init__(self, text: str) -> None:
        self._statements = ast.parse(text).body

    @classmethod
    @cache
    def of(cls, module: str) -> "_Source | None":
        """The source of a module; None if only compiled code is installed."""
        spec = importlib.util.find_spec(module)
        read = getattr(spec.loader, "get_source", None) if spec is not None else None
        text = None if read is None else read(module)
        return None if text is None else cls(text)

    def records(self) -> list[MethodInfo]:
        """The records of the classes that the file registers."""
        found = []
        for node in self._statements:
            if isinstance(node, ast.ClassDef):
                for decorator in node.decorator_list:
                    match decorator:
                        case ast.Call(func=ast.Name(id="register"), args=[record]):
                            info: MethodInfo = self._value(record)
                            found.append(self._completed(info, node.name))
        return found

    def _completed(self, info: MethodInfo, class_name: str) -> MethodInfo:
        """The record as registering the class completes it."""
        family = self._line_of_descent(class_name)
        defaults = next(
            source._parameters(part.args)
            for source, node in family
            for part in node.body
            if isinstance(part, ast.FunctionDef) and part.name == "__init__"
        )
        texts = [argument_texts(ast.get_docstring(node)) for _, node in family]
        said = (source._assigned(node, _JOINS_GROUPS) for source, node in family)
        joins = next((value for value in said if value is not None), False)
        return replace(
            info, defaults=defaults, explanations=explanations(defaults, texts), joins_groups=joins
        )

    def _assigned(self, node: ast.ClassDef, name: str) -> Any:
        """The value that a class gives to an attribute; None if it leaves that to its bases."""
        for part in node.body:
            match part:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    return self._value(value)
                case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                    return self._value(value)
        return None

    def _line_of_descent(self, name: str) -> "list[tuple[_Source, ast.ClassDef]]":
        """A class and its bases in this package, each with the file that defines it."""
        for node in self._statements:
            match node:
                case ast.ClassDef(name=own, bases=bases) if own == name:
                    parents = [base.id for base in bases if isinstance(base, ast.Name)]
                    return [(self, node), *(one for base in parents for one in self._line_of_descent(base))]
                case ast.ImportFrom(module=str(module), names=names) if module.startswith(f"{_PACKAGE}."):
                    source = _Source.of(module)
                    if source is not None and name in [one.asname or one.name for one in names]:
                        return source._line_of_descent(name)
        return []  # not of this package

    def _parameters(self, arguments: ast.arguments) -> dict[str, Any]:
        both = [*arguments.posonlyargs, *arguments.args]
        missing: list[ast.expr | None] = [None] * (len(both) - len(arguments.defaults))
        given = zip(both, [*missing, *arguments.defaults], strict=True)
        keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        every = [*list(given)[2:], *keywords]  # behind self, classifier
        own = [(one, node) for one, node in every if one.arg != GROUP]
        return {one.arg: inspect.Parameter.empty if node is None else self._value(node) for one, node in own}

    def _value(self, expression: ast.expr) -> Any:
        """The value of an expression; only what it names is imported."""
        named = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        names = {name: self._named(name) for name in named if not hasattr(builtins, name)}
        return eval(compile(ast.Expression(expression), "<record>", "eval"), names)

    def _named(self, name: str) -> Any:
        for node in self._statements:
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    return self._value(value)
                case ast.ImportFrom(module=str(module), names=names):
                    for one in names:
                        if (one.asname or one.name) == name:
                            return _imported(module, one.name)
                case ast.Import(names=names):
                    for one in names:
                        if (one.asname or one.name) == name:
                            return importlib.import_module(one.name)
        raise NameError(f"{name!r} is not defined at the top of the file")


def _imported(module: str, name: str) -> Any:
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")
