"""The formats of a table, against text written by hand."""

import csv
import io

import pytest
from rich.console import Console

from ramen.experiments.render import (
    WORDS,
    Column,
    Table,
    choose_format,
    csv_text,
    latex,
    markdown,
    print_tables,
    width,
    write,
)

SMALL = Table(
    "A_b, 100 %",
    (
        Column("Method", ["Tent", "top_k|x", "  paper"], WORDS),
        Column("fog & snow", [41.2, 46.1, 45.0], ".1f", ranked=True, marked=[False, True, False]),
        Column("Avg.", [9.5, 50.25, None], texts=["9.5", "50.25", ""], ranked=True),
    ),
    ("Above 5 % & below.",),
    ({"method": "tent", "value": 41.2}, {"method": 'a "b", c', "value": None, "more": 1}),
    aside=[False, False, True],
)
RANKED = Table("T", (Column("", list("abcd"), WORDS), Column("n", [1.0, 3.01, 3.0, 2.0], ".1f", ranked=True)))


def printed(*tables: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_tables(console, tables)
    return console.file.getvalue()


def test_terminal() -> None:
    assert printed(SMALL, width=60) == (
        "A_b, 100 %\n"
        "Method   fog & snow   Avg.\n"
        "Tent           41.2    9.5\n"
        "top_k|x        46.1* 50.25\n"
        "  paper        45.0\n"
        "Above 5 % & below.\n"
        "\n"
    )
    assert width(SMALL) == 9 + 12 + 7


def test_a_narrow_terminal_loses_the_gap_first_and_then_gets_the_columns_in_parts() -> None:
    assert "Method  fog & snow  Avg.\nTent          41.2   9.5\n" in printed(SMALL, width=width(SMALL, 0))
    assert printed(SMALL, width=width(SMALL, 0) - 1) == (
        "A_b, 100 %\n"
        "Method   fog & snow\n"
        "Tent           41.2\n"
        "top_k|x        46.1*\n"
        "  paper        45.0\n"
        "Method    Avg.\n"
        "Tent       9.5\n"
        "top_k|x  50.25\n"
        "  paper\n"
        "Above 5 % & below.\n"
        "\n"
    )


def test_styles_in_a_colour_terminal() -> None:
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="standard")
    print_tables(console, [SMALL])
    text = console.file.getvalue()
    assert "\x1b[1;31m46.1\x1b[0m" in text  # best and marked: bold and red
    print_tables(console, [RANKED])
    assert "\x1b[4m2.0\x1b[0m" in console.file.getvalue()


def test_markdown() -> None:
    assert markdown(SMALL) == (
        "**A\\_b, 100 %**\n"
        "\n"
        "| Method | fog & snow | Avg. |\n"
        "| --- | ---: | ---: |\n"
        "| Tent | 41.2 | 9.5 |\n"
        "| top\\_k\\|x | **46.1**\\* | **50.25** |\n"
        "|   paper | 45.0 |  |\n"
        "\n"
        "Above 5 % & below.\n"
    )


def test_latex() -> None:
    assert latex(SMALL) == (
        "\\begin{table}\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "  Method & fog \\& snow & Avg. \\\\\n"
        "\\midrule\n"
        "  Tent & 41.2 & 9.5 \\\\\n"
        "  top\\_k|x & \\textbf{46.1}$^{*}$ & \\textbf{50.25} \\\\\n"
        "    paper & 45.0 &  \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\caption{A\\_b, 100 \\%. Above 5 \\% \\& below.}\n"
        "\\end{table}\n"
    )


def test_latex_escapes_everything_special() -> None:
    table = Table.of_texts(r"\{}$#^~±²<>", ["x"], [])
    assert r"\caption{\textbackslash{}\{\}\$\#\textasciicircum{}\textasciitilde{}$\pm$$^2$$<$$>$.}" in latex(
        table
    )


def test_csv_is_that_of_the_rfc() -> None:
    text = csv_text([SMALL, SMALL])
    assert text == ('method,value,more\r\ntent,41.2,\r\n"a ""b"", c",,1\r\ntent,41.2,\r\n"a ""b"", c",,1\r\n')
    assert next(csv.DictReader(io.StringIO(text, newline="")))["value"] == "41.2"


def test_best_and_second_best_are_those_that_are_printed() -> None:
    assert [row[1].style for row in RANKED.cells()] == ["", "best", "best", "second"]
    assert "_2.0_" in markdown(RANKED)
    assert r"\underline{2.0}" in latex(RANKED)


def test_columns_must_fit_and_empty_ones_are_left_out() -> None:
    with pytest.raises(ValueError, match="column 'b' has 1 values, not 2"):
        Table("T", (Column("a", [1, 2]), Column("b", [1])))
    with pytest.raises(ValueError, match="a row has 1 cells, not 2"):
        Table.of_texts("T", ["a", "b"], [["x"]])
    dashes = Column("d", [None], missing="-")
    table = Table("T", (Column("a", [None]), Column("b", [None]), Column("c", [1]), dashes))
    assert [column.head for column in table.trimmed().columns] == ["a", "c"]


def test_format_by_name_or_by_the_files_ending(tmp_path) -> None:
    assert [choose_format(None, tmp_path / f"t{end}") for end in (".md", ".tex", ".csv", ".txt")] == (
        ["markdown", "latex", "csv", "rich"]
    )
    assert choose_format("csv", tmp_path / "t.md") == "csv"
    assert choose_format(None, None) == "rich"
    with pytest.raises(ValueError, match="--out"):
        choose_format(None, tmp_path / "t.docx")
    with pytest.raises(ValueError, match="--format"):
        choose_format("html", None)


def test_tables_that_do_not_fit_come_last(capsys, monkeypatch) -> None:
    wide = Table.of_texts("W", ["x" * 30] * 3, [])
    for columns, first in (("60", SMALL.title), ("120", "W")):
        monkeypatch.setenv("COLUMNS", columns)
        write([wide, SMALL], "rich")
        assert capsys.readouterr().out.splitlines()[0] == first
