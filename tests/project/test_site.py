"""The site builds strictly: notebooks run, links lead somewhere, nothing is loaded from elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ramen
from tests.helpers.html_pages import BuiltPage, dead_links, is_elsewhere, read_pages, urls_of_css

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "docs/notebooks").glob("*.py"))
# One worker builds it, once.
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, BuiltPage]:
    found = read_pages(site)
    assert len(found) > 50
    return found


def test_links_lead_somewhere(site: Path, pages: dict[str, BuiltPage]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert dead_links(site, pages) == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, BuiltPage]) -> None:
    assert sum(len(page.loaded) for page in pages.values()) > 100
    loaded = [(page.path, url) for page in pages.values() for url in page.loaded]
    sheets = list(site.rglob("*.css")) + list(site.rglob("*.svg"))
    loaded += [(path.name, url) for path in sheets for url in urls_of_css(path.read_text(encoding="utf-8"))]
    assert [(where, url) for where, url in loaded if is_elsewhere(url)] == []
    # The theme's script would fetch a library for diagrams of this kind.
    assert not [page.path for page in pages.values() if "mermaid" in page.classes]


def test_every_method_command_and_public_name_is_there(site: Path, pages: dict[str, BuiltPage]) -> None:
    own = {path.stem for path in (ROOT / "src/ramen/methods").glob("*.py")} & set(ramen.list_methods())
    assert len(own) > 12
    for name in own:
        text = (site / f"methods/{name}/index.html").read_text(encoding="utf-8")
        assert ramen.describe(name).paper in text
        assert "The algorithm" in text
    commands = (site / "commands/index.html").read_text(encoding="utf-8")
    assert all(f"ramen {name}" in commands for name in ("classify", "serve", "data verify", "token create"))
    reference = pages["reference/ramen/index.html"].ids
    for name in ("ZeroShotClassifier", "create", "adapt", "Predictor", "AffineEncoder"):
        assert [one for one in reference if one.endswith(f".{name}")], name


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_were_run(site: Path, name: str) -> None:
    text = (site / f"notebooks/{name}/index.html").read_text(encoding="utf-8")
    assert 'class="language-text highlight"' in text or "language-text" in text  # outputs of cells
    assert (site / f"notebooks/{name}.ipynb").is_file()


def test_pages_show_measurements_of_methods_that_have_some(site: Path) -> None:
    measured = (site / "methods/tent/index.html").read_text(encoding="utf-8")
    assert "cost_vit_b_16_h200_fp16.json" in measured
    table = (site / "choosing/index.html").read_text(encoding="utf-8")
    assert all(f'href="../methods/{name}/"' in table for name in ("tent", "ramen"))
    assert "made: all methods" not in table
