"""Words that readers stumbled over and that must not come back, each with the word to use instead."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BETTER = {
    "broken off": "interrupted",
    "goes before": "overrides",
    "lies in": "is in, is stored in",
    "lie in": "are in, are stored in",
    "lies on": "is on, is stored on",
    "lie on": "are on, are stored on",
    "lies with": "is with, is up to",
    "lies where": "is where",
    "goes on where": "resumes where",
    "is told": "is reported",
    "are told": "are reported",
    "tells how": "says how, shows how",
    "tells what": "says what, shows what",
    "tells which": "says which, shows which",
    "tells whether": "says whether, shows whether",
    "written out": "fused",
}
BETTER_IN_PAGES = BETTER | {"a picture": "an image", "pictures": "images"}


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sources() -> list[Path]:
    return sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])


def without_code(page: str) -> str:
    """A page with blanks in place of code, where words are names; lines keep their numbers."""
    return re.sub(
        r"^```.*?^```|`[^`\n]+`",
        lambda code: re.sub(r"\S", " ", code[0]),
        page,
        flags=re.MULTILINE | re.DOTALL,
    )


def complaints(text: str, better: dict[str, str], name: str) -> Iterator[str]:
    """A line for each phrase, also for one that is parted by the end of a line or of a string."""
    for phrase, words in better.items():
        parted = r"[\s\"#]+f?\"?".join(map(re.escape, phrase.split()))
        for match in re.finditer(rf"\b{parted}\b", text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {phrase!r}; better: {words}"


def test_pages() -> None:
    found = [
        line
        for path in pages()
        for line in complaints(without_code(path.read_text()), BETTER_IN_PAGES, str(path.relative_to(ROOT)))
    ]
    assert not found, "\n" + "\n".join(found)


def test_sources() -> None:
    assert len(sources()) > 100
    found = [
        line
        for path in sources()
        for line in complaints(path.read_text(), BETTER, str(path.relative_to(ROOT)))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\nA run that was broken off.", ["name:2: 'broken off'; better: interrupted"]),
        ("It Lies\n    in a folder.", ["name:1: 'lies in'; better: is in, is stored in"]),
        ('f"what the error is "\nf"told as"', ["name:1: 'is told'; better: is reported"]),
        ("# it lies\n# on a disk", ["name:1: 'lies on'; better: is on, is stored on"]),
        ("belies in, lies inside, a lien on, this told", []),
    ],
)
def test_what_is_found(text: str, expected: list[str]) -> None:
    assert list(complaints(text, BETTER, "name")) == expected


def test_code_in_pages_is_left_alone() -> None:
    page = "`pictures` are images\n```python\npictures = 3\n```\npictures"
    found = list(complaints(without_code(page), BETTER_IN_PAGES, "page"))
    assert found == ["page:5: 'pictures'; better: images"]
