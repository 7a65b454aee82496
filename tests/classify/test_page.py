"""The page as text; what it looks like is in ``test_page_in_browser``."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ramen.classify.output import Run
from ramen.classify.page import ChangesSummary, PageSettings, make_page, visible
from ramen.images.thumbnails import Thumbnail
from tests.fakes.served_results import answer, failure

RUNS = [
    Run("2026-08-01T10:00:00+00:00", None),
    Run("2026-08-01T12:00:00+00:00", None, seconds=4.0, files=40),
]
SETTINGS = PageSettings(
    output=Path("out/labels.csv"),
    model="ViT-B-16/openai",
    method="Ramen",
    classes=[f"class {n}" for n in range(20)],
    facts={"device": "cpu"},
    parameters={"topk": "3", "lr": "0.1"},
    chosen={"topk": "60 images in all"},
)
THUMBNAIL = Thumbnail("data:image/jpeg;base64,AAAA", False)


def page_of(results, settings=SETTINGS, shown=200):
    summary = ChangesSummary.of(results, sum(r.error is None for r in results), shown)
    return make_page(summary, [THUMBNAIL] * len(summary.changes), RUNS, settings)


class Text(HTMLParser):
    """The text of a page, without style; every element must be closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.parts = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "link", "img", "source"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.parts.append(data)

    def __str__(self):
        return " ".join(" ".join(self.parts).split())


def test_it_says_what_changed():
    results = [answer("photos/a.jpg", "cat", "dog", probability=0.81, zero_shot_probability=0.62)]
    results += [answer(f"b{n}.jpg") for n in range(3)] + [failure("c.jpg")]
    text = str(Text(page_of(results)))
    assert "Ramen on 5 files" in text
    assert "4 " in text
    assert "1 (25.0 %)" in text
    assert "before dog 62 % after cat 81 % photos/a.jpg" in text
    assert "before after images dog cat 1" in text
    assert "c.jpg it has no pixels" in text
    for setting in ("ViT-B-16/openai", "class 11 and 8 more", "topk 3 (60 images in all)", "lr 0.1", "cpu"):
        assert setting in text
    assert "10:00:00 UTC, ended early; 2026-08-01 12:00:00 UTC, 40 files in 4 s, 10 per second" in text


def test_it_says_how_much_more_there_is():
    results = [answer(f"{n}", "cat", "dog") for n in range(7)] + [failure(f"bad {n}") for n in range(5)]
    page = page_of(results, shown=3)
    assert page.count("data:image/jpeg") == 3
    text = str(Text(page))
    assert "These are the 3 with the most probable new labels" in text
    assert "4 more are in labels.csv, where changed is true" in text
    assert "2 more are in labels.csv, in the column error" in text


@pytest.mark.parametrize(
    ("results", "words"),
    [([], "There are no answers yet."), ([answer("a")], "Adaptation changed no label.")],
)
def test_nothing_changed(results, words):
    text = str(Text(page_of(results)))
    assert words in text
    assert "Files that failed" not in text


def test_every_name_is_escaped():
    evil = "<script>alert(1)</script>\"'&\n\udcff\u202e.jpg"
    label = "<img src=x onerror=alert(2)>"
    results = [answer(evil, label, "dog"), failure(evil)]
    settings = replace(
        SETTINGS, classes=[label, "dog"], output=Path(f"{evil}.csv"), model="<b>", method="<i>"
    )
    page = page_of(results, settings)
    for tag in ("<script", "<img src=x", "<b>", "<i>"):
        assert tag not in page
    text = str(Text(page))
    assert visible(evil) in text
    assert "\\x0a\\xff" in text
    page.encode()


def test_it_asks_nothing_of_the_network():
    page = page_of([answer("a", "cat", "dog"), failure("b")])
    assert re.findall(r'(?:src|srcset|href)="(?!data:)[^"]*"', page) == []
    assert "url(" not in page.replace("url(data:", "")
    assert "@import" not in page


def test_a_file_that_is_gone_has_no_thumbnail():
    summary = ChangesSummary.of([answer("a", "cat", "dog")], 1)
    assert "no longer there" in str(Text(make_page(summary, [None], RUNS, SETTINGS)))


def test_class_names_in_any_script():
    """Fonts of figures may lack them; the browser's have them."""
    names = ["猫", "\N{SLICE OF PIZZA}", "two\nlines", "\x01", "$x^2$", "<&>"]
    results = [answer(str(n), name, "dog") for n, name in enumerate(names)]
    page = page_of(results)
    assert "猫" in str(Text(page))
