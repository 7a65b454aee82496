"""Tables in LaTeX."""

from collections.abc import Sequence

from ramen.experiments.tables.table import Cell, Table

_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{char: "\\" + char for char in "_%&#${}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "²": r"$^2$",
    "<": r"$<$",
    ">": r"$>$",
    "—": "---",
}


def latex(table: Table) -> str:
    r"""A LaTeX table; it needs the package ``booktabs``.

    >>> from ramen.experiments.tables.table import Column
    >>> print(latex(Table("a_b", (Column("100 %", "left"),), ((Cell("x & y"),),))).splitlines()[3])
      100 \% \\
    """
    letters = "".join("l" if column.align == "left" else "r" for column in table.columns)
    lines = [
        r"\begin{table}",
        rf"\begin{{tabular}}{{{letters}}}",
        r"\toprule",
        _ampersands([_escaped(column.head) for column in table.columns]),
        r"\midrule",
        *(_ampersands([_cell(cell) for cell in row]) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_escaped(' '.join([_sentence(table.title), *map(_sentence, table.notes)]))}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _ampersands(cells: Sequence[str]) -> str:
    return rf"  {' & '.join(cells)} \\"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(char, char) for char in text)


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    command = {"best": r"\textbf", "second": r"\underline"}.get(cell.emphasis or "")
    return f"{f'{command}{{{text}}}' if command and text else text}{'$^{*}$' if cell.marked else ''}"
