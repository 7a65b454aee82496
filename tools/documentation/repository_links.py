"""Links of pages to files outside ``docs/``: on a code host they lead to the file, on the site to a page."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mkdocs.exceptions import PluginError

# Files outside docs/ that are pages of the site.
HOMES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "deploy/README.md": "deployment.md",
}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
# Blocks between fences, and spans between as many backticks; a span may cross a line, but not a paragraph.
_CODE = re.compile(
    r"^(```|~~~).*?^\1[ \t]*$|(?<!`)(`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)\2(?!`)", re.MULTILINE | re.DOTALL
)
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


class RepositoryLinks:
    """Where links of the pages lead.

    Args:
        root: The checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.homes = HOMES
        self._origins = {page: source for source, page in HOMES.items()}

    def origin(self, page: str) -> str:
        """The file of the checkout that a page of the site was written in."""
        if page.startswith("notebooks/"):
            return f"docs/{posixpath.splitext(page)[0]}.py"
        if page.startswith("files/"):
            return page.removeprefix("files/")
        return self._origins.get(page, f"docs/{page}")

    def target(self, source: str) -> str:
        """The place on the site of a file of the checkout."""
        if source in self.homes:
            return self.homes[source]
        if source.startswith("docs/notebooks/") and source.endswith(".py"):
            return f"{source.removeprefix('docs/').removesuffix('.py')}.md"
        if source.startswith("docs/"):
            return source.removeprefix("docs/")
        return f"files/{source}.md" if posixpath.splitext(source)[1] in _LANGUAGES else f"files/{source}"

    def rewrite(self, page: str, markdown: str) -> str:
        """The page with links to places on the site."""

        def lead(match: re.Match[str]) -> str:
            source = self._source(page, match[1])
            if source == self.origin(page):  # a notebook that links to its own file
                return match[0]
            target = self.target(source)
            relative = posixpath.relpath(target, posixpath.dirname(page) or ".")
            return f"{relative}{match[2] or ''}"

        return outside_code(markdown, lambda text: _LINK.sub(lead, text))

    def linked_files(self, pages: Mapping[str, str]) -> dict[str, str | bytes]:
        """What pages link to outside ``docs/``, as pages or files of the site."""
        found: dict[str, str | bytes] = {}
        for page, markdown in pages.items():
            for link in self._links(markdown):
                source = self._source(page, link)
                if source.startswith("docs/") or source in self.homes:
                    continue
                path = self.root / source
                if not path.is_file() or not path.resolve().is_relative_to(self.root):
                    raise PluginError(f"{self.origin(page)} links to {link}, which is no file of the project")
                target = self.target(source)
                found[target] = _as_page(source, path) if target.endswith(".md") else path.read_bytes()
        return found

    def _source(self, page: str, link: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.origin(page)), link))

    def _links(self, markdown: str) -> Iterator[str]:
        found: list[str] = []

        def collect(text: str) -> str:
            found.extend(match[1] for match in _LINK.finditer(text))
            return text

        outside_code(markdown, collect)
        yield from found


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """A page with ``change`` applied to everything that is not code."""
    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [change(markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, change(markdown[end:])])


def _as_page(source: str, path: Path) -> str:
    text = path.read_text(encoding="utf-8").rstrip("\n")
    if source.endswith(".md"):
        return f"{text}\n"
    language = _LANGUAGES[posixpath.splitext(source)[1]]
    return f"---\nsearch:\n  exclude: true\n---\n# {source}\n\n~~~~{language}\n{text}\n~~~~\n"
