"""Where tables are written, and in which format."""

import pytest

from ramen.experiments.tables.output import as_text, choose_format, widest_last, write
from ramen.experiments.tables.table import Cell, Column, Table

SMALL = Table(
    "A_b, 100 %",
    (Column("Method", "left"), Column("fog & snow"), Column("Avg.")),
    (
        (Cell("Tent"), Cell("41.2"), Cell("9.5", "second")),
        (Cell("top_k|x"), Cell("46.1", "best", marked=True), Cell("50.25", "best")),
        (Cell("  paper", "aside"), Cell("45.0", "aside"), Cell("", "aside")),
    ),
    ("Above 5 % & below.",),
    ({"method": "tent", "value": 41.2}, {"method": 'a "b", c', "value": None, "more": 1}),
)


def test_format_by_name_or_by_the_files_ending(tmp_path) -> None:
    assert [choose_format(None, tmp_path / f"t{end}") for end in (".md", ".tex", ".csv", ".txt")] == (
        ["markdown", "latex", "csv", "rich"]
    )
    assert choose_format("csv", tmp_path / "t.md") == "csv"
    assert choose_format(None, None) == "rich"
    with pytest.raises(ValueError, match=r"--out must end with one of .*, got .*t\.docx"):
        choose_format(None, tmp_path / "t.docx")
    with pytest.raises(ValueError, match="--format must be one of"):
        choose_format("html", None)


def test_files_are_written_as_they_are(tmp_path) -> None:
    write([SMALL], "csv", tmp_path / "new" / "t.csv")
    assert (tmp_path / "new" / "t.csv").read_bytes().startswith(b"method,value,more\r\ntent")
    assert "\x1b" not in as_text([SMALL], "rich")


def test_tables_that_do_not_fit_come_last() -> None:
    wide = Table("W", tuple(Column("x" * 30) for _ in range(3)), ())
    assert [table.title for table in widest_last([wide, SMALL], 60)] == [SMALL.title, "W"]
    assert [table.title for table in widest_last([wide, SMALL], 120)] == ["W", SMALL.title]
