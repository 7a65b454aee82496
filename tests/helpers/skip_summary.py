"""The end of a test run: how many tests were skipped, for each reason; reasons say what would run them."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason, the most frequent first; reports of all workers are counted."""
    reasons = Counter(skip_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("skipped", sep="=")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The words that a test gave, without pytest's own before them."""
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")
