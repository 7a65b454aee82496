"""What a method registers with, its record and its parameters; and methods by name.

A parameter is declared once, as a field of its class. From there it is checked, explained, listed by
``describe``, and compared with that of a saved state.

Methods are this package's own, those of installed packages, and those of files that the user names.

A package brings methods by an entry point of the group ``ramen.methods``, whose value is the module that
registers them. ``load_plugins`` imports other modules and files: ``--import`` of the commands.
"""

import dataclasses
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import math
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeVar

from ramen.utils import checks
from ramen.utils.checks import nearest
from ramen.utils.files import forget_file, load_file

if TYPE_CHECKING:
    from ramen.methods._method import Method
    from ramen.models.classifier import ZeroShotClassifier

# -- the record of facts ----------------------------------------------------------------------------------


_WIDTH, _DEEP = 100, " " * 8  # of the text about a parameter


@dataclass(frozen=True)
class MethodInfo:
    """The record of facts that a method registers with."""

    name: str
    title: str
    venue: str
    paper: str
    updates: str  # what changes in the model
    predicts_with: str  # which of its forward passes, with which parameters
    batch_dependent: bool  # whether, by default, an image's answer depends on the others of its batch
    forwards: int  # encoder passes per image, with the default parameters
    backwards: int
    notes: tuple[str, ...] = ()  # decisions that the papers leave open
    batch_sized: tuple[str, ...] = ()  # parameters that the counts of passes assume to be the batch size
    random: bool = False  # whether the seed changes answers, for some parameters
    # filled in from the class on registration: its parameters, what their fields say about them, which values
    # they take, whether the processes of a group can share its stream, and where it comes from: nothing for
    # this package, else ``file`` and ``sha256``, ``distribution`` and ``version``, or ``module``
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    explanations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    joins_groups: bool = False
    origin: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def source(self) -> str | None:
        """Where a plug-in comes from, in a line: a file with its hash, or a package with its version."""
        if "file" in self.origin:
            return f"{self.origin['file']} sha256:{self.origin['sha256'][:12]}"
        if "distribution" in self.origin:
            return f"{self.origin['distribution']} {self.origin['version']}"
        return None

    def __str__(self) -> str:
        sized = f", with {' and '.join(self.batch_sized)} equal to the batch size" if self.batch_sized else ""
        rows = {
            "paper": f"{self.paper} ({self.venue})" if self.venue else self.paper,
            "updates": self.updates,
            "predicts with": self.predicts_with,
            "depends on batch mates": "yes" if self.batch_dependent else "no",
            "passes per image": f"{self.forwards} forward, {self.backwards} backward{sized}",
            "in a group of processes": "shares one stream" if self.joins_groups else "refuses",
        }
        if self.origin:
            rows["comes from"] = self.source or self.origin["module"]
        lines = [f"{self.name}: {self.title}", *(f"  {key}: {value}" for key, value in rows.items())]
        lines += [f"  note: {note}" for note in self.notes]
        lines.append("  parameters:" if self.defaults else "  parameters: none")
        for name, value in self.defaults.items():
            limits = f"  ({self.limits[name]})" if self.limits.get(name) else ""
            lines.append(f"    {name}={value!r}{limits}")
            if self.explanations.get(name):
                lines.append(
                    fill(self.explanations[name], _WIDTH, initial_indent=_DEEP, subsequent_indent=_DEEP)
                )
        return "\n".join(lines)


# -- parameters -------------------------------------------------------------------------------------------


AUTO = "auto"  # given for a parameter that the method chooses itself
OPTIMIZERS = ("sign", "sgd", "adam", "adamw")
WITHOUT_DECAY = OPTIMIZERS[:3]  # what a method without a weight decay offers: "adamw" would be "adam"
_KINDS: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "str": str}
_NOTHING: Any = object()
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Field:
    """A parameter of a method.

    Args:
        default: Used if nothing is given. None and "auto" are always accepted as defaults.
        doc: What it does, for ``ramen describe``.
        ge: The least value.
        gt: Values must be above this.
        le: The largest value.
        lt: Values must be below this.
        choices: The strings that are possible.
        saved: Whether a saved state depends on it, so that one with another value is refused.
        before: The value that it had for states which do not name it, as it is younger than they are.
        check: Given the method and the value, raises an error if they do not go together.
        published: For "auto": values by the number of classes that they were published for.
        kind: What is accepted, by its annotation: ``bool``, ``int``, ``float`` or ``str``; None leaves it
            to the method's ``setup``.
    """

    default: Any
    doc: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    choices: Collection[str] = ()
    saved: bool = False
    before: Any = _NOTHING
    check: "Callable[[Method, Any], None] | None" = None
    published: Mapping[int, Any] | None = None
    kind: type | None = None

    def checked(self, name: str, value: object) -> Any:
        """``value`` in the parameter's type; a TypeError or ValueError says what is expected."""
        if value is None and self.default is None:
            return None
        if isinstance(value, str) and value == AUTO == self.default:
            return value
        if self.choices:
            return checks.choice(name, value, tuple(self.choices))
        if self.kind is bool:
            return checks.flag(name, value)
        if self.kind is int:
            least = -math.inf if self.ge is None else self.ge
            return checks.integer(name, value, least, self.le)
        if self.kind is float:
            if value == math.inf == self.default:
                return math.inf
            bounds = {"exclusive": self.gt is not None, "maximum": self.le, "below": self.lt}
            least = next((bound for bound in (self.ge, self.gt) if bound is not None), -math.inf)
            return checks.number(name, value, least, **bounds)  # type: ignore[arg-type]
        return value

    @property
    def is_younger(self) -> bool:
        """Whether there are saved states that do not name it."""
        return self.before is not _NOTHING

    @property
    def limits(self) -> str:
        """What values it takes, in words; empty if that is for the method to say."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        named = {"at least": self.ge, "above": self.gt, "at most": self.le, "below": self.lt}
        return " and ".join(f"{words} {bound:g}" for words, bound in named.items() if bound is not None)


def field(default: Any, *, doc: str, **limits: Any) -> Any:
    """A parameter of a method, declared in the body of its class; ``limits`` are those of ``Field``.

    As in ``lr: float = field(1e-3, ge=0, doc="Step size.")``.
    """
    return Field(default, " ".join(doc.split()), **limits)


def fields_of(cls: type) -> dict[str, Field]:
    """The fields of a class, then those of its bases that it does not declare itself."""
    found: dict[str, Field] = {}
    for one in cls.__mro__:
        annotations = inspect.get_annotations(one)
        for name, value in vars(one).items():
            if isinstance(value, Field) and name not in found:
                found[name] = replace(value, kind=_kind(annotations.get(name, type(value.default))))
    return found


def _kind(annotation: object) -> type | None:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    first = re.match(r"\w+", text)
    return _KINDS.get(first[0]) if first else None


# -- what a method runs with ------------------------------------------------------------------------


class Parameters(dict[str, Any]):
    """The parameters of a method by name; printed, a line for each.

    Attributes:
        why: For each parameter that the method chose itself, the reason in words.
    """

    def __init__(self, values: Mapping[str, Any], why: Mapping[str, str]) -> None:
        super().__init__(values)
        self.why = dict(why)

    def __str__(self) -> str:
        reasons = {name: f"  (chosen: {reason})" for name, reason in self.why.items()}
        return "\n".join(f"{name}={value!r}{reasons.get(name, '')}" for name, value in self.items())


def nearest_published(by_classes: Mapping[int, _Value], classes: int) -> tuple[_Value, str]:
    """Of values that were published for numbers of classes, that for the nearest one, and why.

    >>> nearest_published({10: 0.9, 1000: 0.1}, classes=37)
    (0.9, 'the published one for about 10 classes')
    """
    nearest = min(by_classes, key=lambda known: abs(math.log(classes / known)))
    return by_classes[nearest], f"the published one for about {nearest:,} classes"


# -- fields that several methods have ---------------------------------------------------------------


def has_batchnorm(method: "Method", statistics: str) -> None:
    """The check of a field that says what BatchNorm layers normalise with."""
    if statistics != "source" and not method.classifier.encoder.base_statistics.numel():
        raise ValueError(f"statistics={statistics!r} needs BatchNorm layers, this encoder has none")
    if statistics == "batch" and method.peers is not None:
        raise ValueError(
            "statistics='batch' needs the whole batch in one process: a group has 'source' alone"
        )


STATISTICS: Any = field(
    "source",
    choices=("source", "batch"),
    saved=True,
    check=has_batchnorm,
    doc='What BatchNorm layers normalise with: "source" for their running statistics, "batch" for those of '
    "the usable images that are encoded together.",
)
STATISTICS_OF_A_BATCH: Any = replace(STATISTICS, saved=False)  # of methods that keep nothing they depend on
OPTIMIZER = (
    '"sign" moves every parameter by `lr` against the sign of its gradient, "sgd" along the gradient, "adam" '
    "as `torch.optim.Adam` does."
)
OPTIMIZER_OR_DECAY = OPTIMIZER.replace('"adam" as `torch.optim.Adam`', '"adam" and "adamw" as `torch.optim`')
MARGIN = "An image is confident if its entropy is below this times ln C, the entropy of a uniform guess."
MOMENTUM: Any = field(0.9, ge=0, lt=1, doc='Of "sgd"; the others do not use it.')
WEIGHT_DECAY: Any = field(0.0, ge=0, doc="Of the optimizer.")
LOSS: Any = field(
    "entropy",
    choices=("entropy", "come"),
    doc='What is minimised: "entropy", or "come" for COME\'s opinion entropy, which hardly moves uncertain '
    "images.",
)
MEAN: Any = field(
    None,
    doc="Mean per channel that was subtracted from the images; from the classifier's preprocessing if "
    "not given.",
)
STD: Any = field(None, doc="Standard deviation per channel that the images were divided by; likewise.")


# -- methods by name --------------------------------------------------------------------------------------


_PACKAGE = "ramen.methods"
# The records of this package's methods: importing one loads torch, which takes seconds, and to list methods
# or to refuse a misspelt name a record is enough. Made by `python -m tools.method_records`.
RECORDS = "records.json"
GROUP = "group"  # says where a method runs, not what it does: no parameter that a record lists
ENTRY_POINTS = "ramen.methods"
_METHODS: "dict[str, type[Method]]" = {}  # those that have been imported
_loading: "ContextVar[Mapping[str, str] | None]" = ContextVar("loading", default=None)  # where it comes from
_M = TypeVar("_M", bound="type[Method]")


def register(info: MethodInfo) -> Callable[[_M], _M]:
    """Class decorator: enter a method into the registry under ``info.name``."""

    def enter(cls: _M) -> _M:
        if not cls.__module__.startswith(f"{_PACKAGE}."):
            _load_own_methods()  # so that a taken name is reported here, whatever was imported before
        known = _METHODS.get(info.name)
        again = known is not None and (known.__module__, known.__qualname__) == (
            cls.__module__,
            cls.__qualname__,
        )
        if known is not None and not again:
            taken = known.info.source or f"{known.__module__}.{known.__qualname__}"
            raise ValueError(f"name {info.name!r} is taken by {taken}")
        cls.info = dataclasses.replace(_completed(info, cls), origin=_origin(cls))
        _METHODS[info.name] = cls
        return cls

    return enter


def list_methods() -> list[str]:
    """The names of all registered methods."""
    return sorted(_records())


def describe(name: str) -> MethodInfo:
    """The record of a method; printed, it is a short page."""
    if name in _METHODS:
        return _METHODS[name].info
    if name in own_records():  # without a look at what else is installed
        return own_records()[name]
    records = _records()
    if name not in records:
        left_out = "".join(f"; {problem}" for problem in _load_installed())
        raise ValueError(f"there is no method {name!r}{nearest(str(name), records)}{left_out}")
    return records[name]


def get_method(name: str) -> "type[Method]":
    """The class of that name."""
    describe(name)  # raises for an unknown name
    _load_own_methods()
    return _METHODS[name]


def load_plugins(names: Iterable[str]) -> None:
    """Register the methods of files and modules; those that were loaded before are left as they are.

    Args:
        names: Paths of Python files, which end with ``.py``, and names of modules.
    """
    for name in names:
        _load_file(name) if name.endswith(".py") else _load_module(name)


def imported(given: Iterable[str] | None) -> tuple[str, ...]:
    """What ``--import`` names, imported; files by their full paths, for processes in other folders."""
    names = tuple(os.path.abspath(os.path.expanduser(n)) if n.endswith(".py") else n for n in given or ())
    load_plugins(names)
    return names


def create(name: str, classifier: "ZeroShotClassifier", **parameters: Any) -> "Method":
    """A fresh method of that name on ``classifier``.

    Args:
        name: Of the method.
        classifier: What it adapts.
        parameters: See ``describe(name).defaults``; and ``group``, a ``torch.distributed`` process group
            whose processes share one stream (``Method`` says how).
    """
    from ramen.utils.numerics import plain_numerics

    cls = get_method(name)
    if parameters.get(GROUP) is None:
        parameters.pop(GROUP, None)
    elif not cls.joins_groups:
        able = ", ".join(sorted(other for other, one in _METHODS.items() if one.joins_groups))
        raise ValueError(
            f"group: method {name!r} cannot share a stream with other processes; these can: {able}"
        )
    for parameter in parameters:
        if parameter not in cls.info.defaults and parameter != GROUP:
            hint = nearest(parameter, cls.info.defaults)
            raise TypeError(f"method {name!r} has no parameter {parameter!r}{hint}")
    with plain_numerics():
        return cls(classifier, **parameters)


def _completed(info: MethodInfo, cls: "type[Method]") -> MethodInfo:
    """The record with what the class says about its parameters, in fields or in its own ``__init__``."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]  # behind self, classifier
    defaults = {one.name: one.default for one in parameters if one.kind is not one.VAR_KEYWORD}
    if len(defaults) < len(parameters):  # the others are handed on to Method
        defaults |= {name: one.default for name, one in cls._fields.items() if name not in defaults}
    defaults.pop(GROUP, None)
    declared = {name: one for name, one in cls._fields.items() if name in defaults}
    said = {name: declared[name].doc if name in declared else "" for name in defaults}
    if "seed" in defaults and not info.random:
        said["seed"] = "Has no effect."
    return dataclasses.replace(
        info,
        defaults=defaults,
        explanations=said,
        limits={name: declared[name].limits if name in declared else "" for name in defaults},
        joins_groups=cls.joins_groups,
    )


# -- methods of others ------------------------------------------------------------------------------------


def _load_file(name: str) -> None:
    before = _others()
    with _undone_if_it_fails(), _origin_is({}):
        file = load_file("--import", name)
    for method in _others() - before:
        cls = _METHODS[method]
        origin = {"file": file.path.name, "sha256": file.sha256}
        cls.info = dataclasses.replace(cls.info, origin=origin)
    if not any(cls.info.origin.get("sha256") == file.sha256 for cls in _METHODS.values()):
        forget_file(name)
        raise ValueError(f"--import: {name} registers no method: decorate a class with ramen.register(...)")


def _load_module(name: str) -> None:
    if Path(f"{name}.py").is_file():
        raise ValueError(f"--import: {name!r} is a module's name; for the file write {name}.py")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"--import must be a file that ends with .py or a module's name, got {name!r}")
    before = _others()
    try:
        with _undone_if_it_fails(), _origin_is(_distribution_of(name)):
            importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"--import: the module {name} cannot be imported: {_said(error)}") from error
    own = f"{name}."
    if _others() == before and not any(f"{cls.__module__}.".startswith(own) for cls in _METHODS.values()):
        raise ValueError(f"--import: the module {name} registers no method with ramen.register(...)")


@cache
def _load_installed() -> list[str]:
    """Import what installed packages name as their methods; returns what could not be imported, and why."""
    problems = []
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        package = {} if point.dist is None else _facts(point.dist)
        try:
            with _undone_if_it_fails(), _origin_is(package):
                point.load()
        except (Exception, SystemExit) as error:
            name = package.get("distribution", point.value)
            problem = f"the methods of {name} cannot be imported: {_said(error)}"
            warnings.warn(problem, stacklevel=2)  # the commands work for all others
            problems.append(problem)
    return problems


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


@contextmanager
def _undone_if_it_fails() -> Iterator[None]:
    """What a module has registered before it failed is not there."""
    before = _others()
    try:
        yield
    except BaseException:
        for name in _others() - before:
            del _METHODS[name]
        raise


def _others() -> set[str]:
    """The methods that are not this package's own."""
    return {name for name, cls in _METHODS.items() if cls.info.origin}


@contextmanager
def _origin_is(origin: Mapping[str, str]) -> Iterator[None]:
    token = _loading.set(origin)
    try:
        yield
    finally:
        _loading.reset(token)


def _origin(cls: "type[Method]") -> Mapping[str, str]:
    """Where a class comes from that is being registered."""
    if cls.__module__.startswith(f"{_PACKAGE}."):
        return {}
    loading = _loading.get()
    if loading:
        return loading
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if loading is None or file is None:  # a program's own, or a notebook's
        return {"module": cls.__module__}
    return {"file": Path(file).name, "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()}


def _distribution_of(module: str) -> Mapping[str, str]:
    """The package that has brought a module; nothing if it is not installed."""
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return _facts(importlib.metadata.distribution(names[0])) if names else {}


def _facts(package: importlib.metadata.Distribution) -> dict[str, str]:
    return {"distribution": package.name, "version": package.version}


# -- records ----------------------------------------------------------------------------------------------


@cache
def own_records() -> dict[str, MethodInfo]:
    """The record of each method of this package, without importing any."""
    text = resources.files(_PACKAGE).joinpath(RECORDS).read_text(encoding="utf-8")

    def record(facts: dict[str, Any]) -> MethodInfo:
        exact: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()
        }
        return MethodInfo(**exact)

    return {name: record(facts) for name, facts in json.loads(text).items()}


def _records() -> dict[str, MethodInfo]:
    """The records of all methods; one of this package that is too new to have one is imported."""
    own = own_records()
    _load_installed()
    package = importlib.import_module(_PACKAGE)
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_") and module.name not in own:
            importlib.import_module(f"{_PACKAGE}.{module.name}")
    return {**own, **{name: cls.info for name, cls in _METHODS.items()}}


def _load_own_methods() -> None:
    """Import every file of this package: a new method is one file more."""
    package = importlib.import_module(_PACKAGE)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{_PACKAGE}.{module.name}")
