"""What mkdocs calls while it builds the site: pages that are made, and links that leave ``docs/``.

Nothing is listed by hand. A method, a command, a public name or a notebook has its page because it exists.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]  # `mkdocs` as a command does not look here

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files, InclusionLevel  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

from tools.documentation import command_pages, method_pages, notebooks, reference_pages  # noqa: E402
from tools.documentation.repository_links import RepositoryLinks  # noqa: E402

DOCS = ROOT / "docs"
LINKS = RepositoryLinks(ROOT)
RUN_NOTEBOOKS = "RAMEN_DOCS_RUN_NOTEBOOKS"  # 0 shows them without outputs, while writing pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add to the navigation the made pages, and those in ``docs/`` that nobody has listed."""
    sections: dict[str, list[Any]] = {}
    for section in config.nav or []:
        sections.update(section)
    listed = set(_paths(config.nav))
    unlisted = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    sections["Guides"] += [path for path in unlisted if path not in listed]
    sections["Methods"] += [{name: path} for name, path in method_pages.paths().items()]
    sections["Notebooks"] += [{title: path} for title, path in notebooks.paths(ROOT).items()]
    sections["Reference"] += [{name: path} for name, path in reference_pages.paths().items()]
    return config


def _paths(nav: Any) -> Iterator[str]:
    """The pages that a part of the navigation lists."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _paths(part)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make pages from the program, run the notebooks, and take up what pages link to outside ``docs/``."""
    made: dict[str, str | bytes] = {}
    for source, path in LINKS.homes.items():
        made[path] = (ROOT / source).read_text(encoding="utf-8")
    made |= method_pages.pages() | command_pages.pages() | reference_pages.pages()
    made |= notebooks.pages(ROOT, execute=os.environ.get(RUN_NOTEBOOKS) != "0")
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for path, content in LINKS.linked_files(texts).items():
        files.append(File.generated(config, path, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables that are made, and lead links that leave ``docs/`` to pages of the site."""
    path = page.file.src_uri
    markdown = method_pages.fill_in(path, markdown)
    return LINKS.rewrite(path, markdown)
