"""What built pages load and link to."""

import posixpath
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser fetches by itself; of ``link``, if its ``rel`` is one of those below.
_LOADED = {
    "script": ["src"],
    "img": ["src", "srcset"],
    "source": ["src", "srcset"],
    "iframe": ["src"],
    "embed": ["src"],
    "object": ["data"],
    "video": ["src", "poster"],
    "audio": ["src"],
    "input": ["src"],
    "use": ["href", "xlink:href"],
    "image": ["href", "xlink:href"],
}
_LOADED_LINKS = {
    "stylesheet",
    "icon",
    "shortcut",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
}


@dataclass
class BuiltPage:
    """A page of the site."""

    path: str  # of its file, in the site
    loaded: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self, page: BuiltPage) -> None:
        super().__init__()
        self.page = page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.page.classes.update(given.get("class", "").split())
        self.page.loaded += urls_of_css(given.get("style", ""))
        if "id" in given:
            self.page.ids.add(given["id"])
        if tag == "a" and given.get("name"):
            self.page.ids.add(given["name"])
        if tag == "a" and "href" in given:
            self.page.links.append(given["href"])
        if tag == "link" and _LOADED_LINKS & set(given.get("rel", "").split()):
            self.page.loaded.append(given["href"])
        for attribute in _LOADED.get(tag, ()):
            if attribute in given:
                value = given[attribute]
                self.page.loaded += re.split(r"[\s,]+", value) if attribute == "srcset" else [value]


def read_pages(site: Path) -> dict[str, BuiltPage]:
    """All pages of a built site, by path."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        page = BuiltPage(path.relative_to(site).as_posix())
        _Reader(page).feed(path.read_text(encoding="utf-8"))
        pages[page.path] = page
    return pages


def urls_of_css(text: str) -> list[str]:
    """The addresses that a style sheet loads."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    urls = re.findall(r"url\(\s*['\"]?(.*?)['\"]?\s*\)", text)
    urls += re.findall(r"@import\s+['\"](.*?)['\"]", text)
    return [url for url in urls if not url.startswith("data:")]


def is_elsewhere(url: str) -> bool:
    """Whether an address is on another host."""
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "ftp", "ws", "wss")


def dead_links(site: Path, pages: dict[str, BuiltPage]) -> list[str]:
    """Links and resources of pages, inside the site, that lead nowhere; anchors included."""
    dead = []
    for page in pages.values():
        for url in [*page.links, *page.loaded]:
            parts = urlsplit(url)
            if (
                is_elsewhere(url) or parts.scheme or page.path == "404.html"
            ):  # that one has absolute addresses
                continue
            target = page.path
            if parts.path:
                target = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), unquote(parts.path)))
                if (site / target).is_dir():
                    target = posixpath.normpath(posixpath.join(target, "index.html"))
            missing = not (site / target).is_file()
            anchor = unquote(parts.fragment)
            if missing or (anchor and target in pages and anchor not in pages[target].ids):
                dead.append(f"{page.path}: {url}")
    return dead
