"""Search spaces: which values of a method's parameters are tried, as many combinations for every method."""

import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramen.experiments.plan.values import plain
from ramen.methods._registry import describe
from ramen.utils import checks
from ramen.utils.checks import nearest

FILE = Path(__file__).with_name("search_spaces.toml")
BUDGET, DEFAULT = "budget", "default"
_RATE = "lr"  # what the default grid is for


@dataclass(frozen=True)
class SearchSpace:
    """What is tried for a method.

    Attributes:
        method: Its name.
        grid: The values of each parameter; empty if there is nothing to choose.
        origin: Where the grid comes from, in words.
    """

    method: str
    grid: Mapping[str, tuple[Any, ...]]
    origin: str

    def settings(self) -> list[dict[str, Any]]:
        """All combinations, the last parameter changing fastest.

        >>> SearchSpace("tent", {"lr": (0.1, 0.2), "optimizer": ("sgd",)}, "as given").settings()
        [{'lr': 0.1, 'optimizer': 'sgd'}, {'lr': 0.2, 'optimizer': 'sgd'}]
        """
        return [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]


@dataclass(frozen=True)
class SearchSpaces:
    """The spaces of a file.

    Attributes:
        budget: How many combinations each method gets.
        grids: By method.
        default: For methods without one that have all of its parameters.
    """

    budget: int
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
    default: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def of(self, method: str) -> SearchSpace:
        """The space of a registered method."""
        known = describe(method).defaults
        if method in self.grids:
            return SearchSpace(method, self.grids[method], "declared")
        if self.default and all(parameter in known for parameter in self.default):
            return SearchSpace(method, self.default, f"the default grid of {', '.join(self.default)}")
        return SearchSpace(method, {}, "nothing to choose")


def load_spaces(path: Path | None = None) -> SearchSpaces:
    """The search spaces of a TOML file; this package's own if None."""
    path = FILE if path is None else Path(path).expanduser()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"search spaces: there is no file {path}") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not TOML
        raise ValueError(f"search spaces: {path} cannot be read: {error}") from None
    if BUDGET not in content:
        raise ValueError(f"search spaces {path}: {BUDGET} is missing")
    budget = checks.integer(f"search spaces {path}: {BUDGET}", content.pop(BUDGET), 1)
    grids = dict(_grids(path, content, budget))
    default = grids.pop(DEFAULT, {})
    for method, grid in grids.items():
        _check_parameters(path, method, grid)
    return SearchSpaces(budget, grids, default)


def _grids(
    path: Path, content: Mapping[str, Any], budget: int
) -> Iterator[tuple[str, dict[str, tuple[Any, ...]]]]:
    """Grids with as many combinations as the budget says; another number would not be fair."""
    for method, table in content.items():
        if not isinstance(table, dict) or not all(isinstance(values, list) for values in table.values()):
            raise ValueError(f"search spaces {path}: {method} must be a table of lists, got {table!r}")
        grid = {parameter: tuple(values) for parameter, values in table.items()}
        for parameter, values in grid.items():
            if len({repr(plain(value)) for value in values}) < len(values):
                raise ValueError(f"search spaces {path}: {method}.{parameter} has a value twice")
        count = math.prod(map(len, grid.values()))
        if count != budget:
            raise ValueError(
                f"search spaces {path}: {method} must have {budget} combinations, as every method, "
                f"got {count}"
            )
        yield method, grid


def _check_parameters(path: Path, method: str, grid: Mapping[str, Any]) -> None:
    try:
        known = set(describe(method).defaults) - {"seed"}
    except ValueError as error:
        raise ValueError(f"search spaces {path}: {error}") from None
    for parameter in grid:
        if parameter not in known:
            raise ValueError(
                f"search spaces {path}: {method} has no parameter {parameter!r}{nearest(parameter, known)}"
            )
