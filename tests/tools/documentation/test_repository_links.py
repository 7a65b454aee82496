"""Links that leave ``docs/``: on the site they lead to pages of the site."""

from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

from tools.documentation.repository_links import RepositoryLinks, outside_code

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def links() -> RepositoryLinks:
    return RepositoryLinks(ROOT)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "docs/classify.md", "classify.md"),
        ("index.md", "CHANGELOG.md", "changes.md"),
        ("service.md", "../deploy/README.md#ray", "deployment.md#ray"),
        ("start/service.md", "../../deploy/README.md", "../deployment.md"),
        ("start/method.md", "../notebooks/4_write_a_method.py", "../notebooks/4_write_a_method.md"),
        ("reliability.md", "../tests/project/test_site.py", "files/tests/project/test_site.py.md"),
        ("evidence.md", "../benchmarks/results/gains.json", "files/benchmarks/results/gains.json"),
        ("methods/tent.md", "../../benchmarks/results/gains.json", "../files/benchmarks/results/gains.json"),
        ("notebooks/1_start.md", "1_start.py", "1_start.py"),
        ("contributing.md", "docs/concepts.md#the-house", "concepts.md#the-house"),
        ("faq.md", "https://example.org/x.md", "https://example.org/x.md"),
        ("faq.md", "#numbers", "#numbers"),
    ],
)
def test_where_links_lead(links: RepositoryLinks, page: str, link: str, expected: str) -> None:
    assert links.rewrite(page, f"see [it]({link}).") == f"see [it]({expected})."


def test_code_is_left_alone(links: RepositoryLinks) -> None:
    text = "`[a](docs/x.md)`\n```\n[b](docs/x.md)\n```\n[c](docs/x.md)"
    assert links.rewrite("index.md", text) == text.replace("[c](docs/x.md)", "[c](x.md)")
    assert outside_code("a `b` c", str.upper) == "A `b` C"
    assert outside_code("a `b\n  c` d `e` f", str.upper) == "A `b\n  c` D `e` F"
    assert outside_code("a ``b`c`` d", str.upper) == "A ``b`c`` D"
    assert outside_code("it`s\n\nno `code`", str.upper) == "IT`S\n\nNO `code`"


def test_what_is_linked_becomes_part_of_the_site(links: RepositoryLinks) -> None:
    pages = {"evidence.md": "[a](../pyproject.toml) [b](../benchmarks/results/gains.json) [c](faq.md)"}
    found = links.linked_files(pages)
    assert set(found) == {"files/pyproject.toml.md", "files/benchmarks/results/gains.json"}
    assert (
        found["files/benchmarks/results/gains.json"] == (ROOT / "benchmarks/results/gains.json").read_bytes()
    )
    assert "~~~~toml\n[build-system]" in str(found["files/pyproject.toml.md"])


@pytest.mark.parametrize("link", ["../no_such_file.py", "../../outside.py", "../src"])
def test_a_dead_link_stops_the_build(links: RepositoryLinks, link: str) -> None:
    with pytest.raises(PluginError, match=r"docs/faq.md links to .*, which is no file of the project"):
        links.linked_files({"faq.md": f"[x]({link})"})
