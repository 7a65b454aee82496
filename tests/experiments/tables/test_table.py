"""The table model."""

import pytest

from ramen.experiments.tables.table import Cell, Column, Table, without_empty_columns


def test_rows_must_fit_the_columns() -> None:
    with pytest.raises(ValueError, match="a row has 1 cells, not 2"):
        Table("T", (Column("a"), Column("b")), ((Cell("x"),),))


def test_columns_without_text_are_left_out() -> None:
    table = Table("T", (Column("a"), Column("b"), Column("c")), ((Cell(""), Cell(""), Cell("1")),))
    assert [column.head for column in without_empty_columns(table).columns] == ["a", "c"]


def test_columns_side_by_side_make_rows() -> None:
    name, value = (Column("name", "left"), [Cell("a"), Cell("b")]), (Column("value"), [Cell("1"), Cell("2")])
    table = Table.from_columns("T", [name, value], ["A note."])
    assert [[cell.text for cell in row] for row in table.rows] == [["a", "1"], ["b", "2"]]
    assert (table.notes, [column.head for column in table.columns]) == (("A note.",), ["name", "value"])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        Table.from_columns("T", [name, (Column("value"), [Cell("1")])])
