"""The page: sections, table of contents, style and script, all in one file."""

from dataclasses import dataclass, field
from importlib import resources

from ramen.experiments.html import Markup, element


@dataclass
class Page:
    """Sections in order, and their entries in the table of contents."""

    sections: list[Markup] = field(default_factory=list)
    contents: list[Markup] = field(default_factory=list)

    def add(self, anchor: str, title: str, *parts: Markup) -> None:
        """Append a section."""
        self.contents.append(element("li", element("a", title, href=f"#{anchor}")))
        self.sections.append(element("section", element("h2", title), *parts, id=anchor))


def document(title: str, summary: str, page: Page) -> str:
    """The whole page as text."""
    header = element(
        "header",
        element("h1", title),
        element("p", summary, class_="soft"),
        element("nav", element("ul", *page.contents), aria_label="Contents"),
    )
    search = element(
        "div",
        element("label", "Show methods", for_="filter"),
        element("input", id="filter", type="search", placeholder="ramen, tent", aria_label="Methods to show"),
        element("span", id="filter-state", class_="soft", role="status"),
    )
    body = element(
        "body",
        header,
        element("div", search, class_="bar"),
        element("main", *page.sections),
        element("script", Markup(_asset("report.js"))),
    )
    return whole_page(title, style_sheet(), body)


def style_sheet() -> str:
    """The style that our pages share."""
    return _asset("report.css")


def whole_page(title: str, style: str, body: Markup) -> str:
    """A self-contained page as text: it asks nothing of the network."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(style)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    assets = resources.files("ramen.experiments.report").joinpath("assets")
    return assets.joinpath(name).read_text(encoding="utf-8")
