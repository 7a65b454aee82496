"""What a check found: rows with a target, what was measured, and whether it was met."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ramen.experiments.render import Table


@dataclass(frozen=True)
class Row:
    """One figure."""

    check: str  # such as "R7"
    what: str
    target: str  # empty for a figure that only informs
    measured: str
    passed: bool | None  # None without a target
    value: float | int | str | None = None


@dataclass
class Findings:
    """Rows of one check, collected one by one, and further figures for the JSON file."""

    check: str
    rows: list[Row] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def expect(
        self, what: str, target: str, passed: bool, measured: str, value: float | int | None = None
    ) -> None:
        """Add a figure with a target."""
        self.rows.append(Row(self.check, what, target, measured, bool(passed), value))

    def expect_count(self, what: str, count: int, target: int) -> None:
        """Add a count that has to be so large."""
        self.expect(what, f"{target:,}", count == target, f"{count:,}", count)

    def expect_zero(self, what: str, count: int, of: int | None = None) -> None:
        """Add a count that has to be zero."""
        self.expect(what, "0", count == 0, f"{count:,}" + (f" of {of:,}" if of is not None else ""), count)

    def expect_at_most(
        self, what: str, value: float, limit: float, unit: str = "", form: str = ",.1f"
    ) -> None:
        """Add a figure with a limit; one that is not a number misses it."""
        measured = f"{value:{form}} {unit}".rstrip()
        self.expect(what, f"at most {limit:,g} {unit}".rstrip(), value <= limit, measured, value)

    def expect_at_least(self, what: str, value: float, limit: float, unit: str = "") -> None:
        """Add a figure with a lower limit."""
        measured = f"{value:,.2f} {unit}".rstrip()
        self.expect(what, f"at least {limit:,g} {unit}".rstrip(), value >= limit, measured, value)

    def expect_alive(self, is_alive: bool) -> None:
        """Add whether the server runs."""
        self.expect("the server", "is alive", is_alive, "alive" if is_alive else "gone")

    def note(self, what: str, measured: str, value: float | int | str | None = None) -> None:
        """Add a figure without a target."""
        self.rows.append(Row(self.check, what, "", measured, None, value))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        rows = [{name: value for name, value in asdict(row).items() if name != "check"} for row in self.rows]
        return {"rows": rows, "details": self.details}

    def table(self, title: str) -> Table:
        """All rows."""
        verdicts = {True: "passed", False: "MISSED", None: ""}
        rows = [(row.what, row.target, row.measured, verdicts[row.passed]) for row in self.rows]
        return Table.of_texts(f"{self.check}: {title}", ("what", "target", "measured", ""), rows, words=4)


def missed(findings: Sequence[Findings]) -> list[Row]:
    """Rows whose target is missed."""
    return [row for found in findings for row in found.rows if row.passed is False]
