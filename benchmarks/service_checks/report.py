"""What a check found: rows with a target, what was measured, and whether it was met."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        check: Such as "R7".
        what: What was measured.
        target: What it is to be; empty for a figure that only informs.
        measured: What it is, in words.
        passed: Whether the target is met; None without a target.
        value: The figure itself.
    """

    check: str
    what: str
    target: str
    measured: str
    passed: bool | None
    value: float | int | str | None = None


@dataclass
class Findings:
    """Rows of one check, collected one by one.

    Attributes:
        check: Its name.
        rows: What was found.
        details: Further figures for the JSON file.
    """

    check: str
    rows: list[Row] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def expect(
        self, what: str, target: str, passed: bool, measured: str, value: float | int | None = None
    ) -> None:
        """Add a figure with a target."""
        self.rows.append(Row(self.check, what, target, measured, bool(passed), value))

    def expect_zero(self, what: str, count: int, of: int | None = None) -> None:
        """Add a count that has to be zero."""
        self.expect(what, "0", count == 0, f"{count:,}" + (f" of {of:,}" if of is not None else ""), count)

    def expect_at_most(self, what: str, value: float, limit: float, unit: str, digits: int = 1) -> None:
        """Add a figure with a limit; one that is not a number misses it."""
        measured = f"{value:,.{digits}f} {unit}".rstrip()
        self.expect(what, f"at most {limit:,g} {unit}".rstrip(), value <= limit, measured, value)

    def expect_at_least(self, what: str, value: float, limit: float, unit: str, digits: int = 2) -> None:
        """Add a figure with a lower limit."""
        measured = f"{value:,.{digits}f} {unit}".rstrip()
        self.expect(what, f"at least {limit:,g} {unit}".rstrip(), value >= limit, measured, value)

    def note(self, what: str, measured: str, value: float | int | str | None = None) -> None:
        """Add a figure without a target."""
        self.rows.append(Row(self.check, what, "", measured, None, value))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        rows = [{name: value for name, value in asdict(row).items() if name != "check"} for row in self.rows]
        return {"rows": rows, "details": self.details}


def print_findings(found: Findings, title: str, console: Console) -> None:
    """Print the rows of a check as a table."""
    table = Table(title=f"{found.check}: {title}", title_justify="left")
    for column in ("what", "target", "measured", ""):
        table.add_column(column)
    for row in found.rows:
        verdict = {True: "[green]passed[/]", False: "[red]missed[/]", None: ""}[row.passed]
        table.add_row(row.what, row.target, row.measured, verdict)
    console.print(table)


def missed(findings: Sequence[Findings]) -> list[Row]:
    """Rows whose target is missed."""
    return [row for found in findings for row in found.rows if row.passed is False]
