"""Pages for tests: written from results, and read back."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ramen.experiments.report import write_report
from ramen.experiments.store import write_result

VOID = {"meta", "link", "img", "input", "br"}


class Reader(HTMLParser):
    """Checks that elements nest, and keeps what they hold."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self._table = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = str(dict(attrs)["id"])
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "script" not in self.open:
            self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[self._table][-1][-1] += data

    def table(self, anchor: str) -> list[dict[str, str]]:
        heads, *rows = self.tables[anchor]
        return [dict(zip(heads, row, strict=True)) for row in rows]


def read(page: str) -> Reader:
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def write(folder: Path, results: list[dict[str, Any]]) -> Path:
    for number, result in enumerate(results):
        write_result(folder / f"{number:03}.json", result)
    return folder


def report(folder: Path, results: list[dict[str, Any]], **options: str) -> Reader:
    write_report([write(folder / "results", results)], folder / "report.html", **options)
    return read((folder / "report.html").read_text(encoding="utf-8"))
