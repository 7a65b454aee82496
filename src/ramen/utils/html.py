"""HTML elements. Text is escaped wherever it is inserted; what is HTML already has the type ``Markup``."""

import html

_VOID = {"br", "hr", "img", "input", "link", "meta", "source"}


class Markup(str):
    """HTML, which is not escaped again."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """An element; an attribute that is None or False is left out, ``class_`` and ``data_x`` are as expected.

    >>> element("a", "<b>", href="#1", class_="x", data_sort=None)
    '<a href="#1" class="x">&lt;b&gt;</a>'
    """
    opening = "".join(
        f" {_attribute(name)}" if value is True else f' {_attribute(name)}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{tag}{opening}>")
    return Markup(f"<{tag}{opening}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """The children one after the other."""
    return Markup(
        "".join(str(child) if isinstance(child, Markup) else html.escape(child) for child in children)
    )


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


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
