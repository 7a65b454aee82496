"""The formats of a table, against text written by hand."""

import csv
import io

from rich.console import Console

from ramen.experiments.tables.csv_records import csv_text
from ramen.experiments.tables.html import html_table
from ramen.experiments.tables.latex import latex
from ramen.experiments.tables.markdown import markdown, markdown_page
from ramen.experiments.tables.table import Cell, Column, Link, Table
from ramen.experiments.tables.terminal import print_tables, width

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


def test_parts_are_of_even_size() -> None:
    heads = tuple(Column(letter * 4) for letter in "abcdef")
    table = Table("T", (Column("M", "left"), *heads), ((Cell("x"), *(Cell("1"),) * 6),))
    room = width(table, 0) - 1  # enough for four columns of six
    starts = [line.split() for line in printed(table, width=room).splitlines() if line.startswith("M")]
    assert starts == [["M", "aaaa", "bbbb", "cccc"], ["M", "dddd", "eeee", "ffff"]]


def test_a_note_is_said_once() -> None:
    assert printed(SMALL, SMALL, width=60).count("Above 5 %") == 1
    assert markdown_page([SMALL, SMALL]).count("Above 5 %") == 1


def test_styles_in_a_colour_terminal() -> None:
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="standard")
    print_tables(console, [SMALL])
    text = console.file.getvalue()
    assert "\x1b[1;31m46.1\x1b[0m" in text  # best and marked: bold and red
    assert "\x1b[4m9.5\x1b[0m" in text


def test_markdown() -> None:
    assert markdown(SMALL) == (
        "**A\\_b, 100 %**\n"
        "\n"
        "| Method | fog & snow | Avg. |\n"
        "| --- | ---: | ---: |\n"
        "| Tent | 41.2 | _9.5_ |\n"
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
        "  Tent & 41.2 & \\underline{9.5} \\\\\n"
        "  top\\_k|x & \\textbf{46.1}$^{*}$ & \\textbf{50.25} \\\\\n"
        "    paper & 45.0 &  \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\caption{A\\_b, 100 \\%. Above 5 \\% \\& below.}\n"
        "\\end{table}\n"
    )


def test_latex_escapes_everything_special() -> None:
    table = Table(r"\{}$#^~±²<>", (Column("x"),), ())
    assert r"\caption{\textbackslash{}\{\}\$\#\textasciicircum{}\textasciitilde{}$\pm$$^2$$<$$>$.}" in latex(
        table
    )


def test_csv_is_that_of_the_rfc() -> None:
    text = csv_text([SMALL, SMALL])
    assert text == ('method,value,more\r\ntent,41.2,\r\n"a ""b"", c",,1\r\ntent,41.2,\r\n"a ""b"", c",,1\r\n')
    assert next(csv.DictReader(io.StringIO(text, newline="")))["value"] == "41.2"


def test_html() -> None:
    table = Table(
        "A & b",
        (Column("Method", "left"), Column("Avg.", hint="a mean", spread="margin"), Column("Seeds", "left")),
        (
            (
                Cell("Tent", links=(Link("Tent", "settings-1"),), anchor="row-1", method="Tent"),
                Cell("-9.50 \u00b1 0.20", "best", marked=True, value=-9.5, deviation=0.2),
                Cell("2", value="0 1", links=(Link("0", "r0"), Link("1", "r1"))),
            ),
            (Cell("<i>", "aside"), Cell("", hint="not run"), Cell("")),
        ),
        ("Below 5 %.",),
    )
    page = html_table(table, "t")
    assert '<table id="t" aria-labelledby="t-title">' in page
    assert '<h3 id="t-title">A &amp; b</h3>' in page
    assert '<button type="button" title="a mean">Avg.</button>' in page
    assert 'data-kind="number" data-spread="margin"' in page
    assert '<tr data-place="0" data-method="Tent" id="row-1">' in page
    assert '<a href="#settings-1">Tent</a></th>' in page
    assert (
        '<td data-kind="number" data-sort="-9.5" data-deviation="0.2" class="best bad">'
        '\u22129.50<span class="spread"> \u00b1 0.20</span>*</td>'
    ) in page
    assert 'data-sort="0 1"><span class="seeds"><a href="#r0">0</a> <a href="#r1">1</a></span></td>' in page
    assert 'data-sort="&lt;i&gt;" class="soft">&lt;i&gt;</th>' in page
    assert '<td data-kind="number" title="not run">\u2013</td>' in page
    assert page.endswith('<p class="note">Below 5 %.</p></div>')
