"""Text that strangers wrote, such as the names of files, in a form that a page can show."""

import re

from ramen.classify.files import readable
from ramen.utils.html import Markup, element

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")


def visible(text: str) -> str:
    r"""Text in which characters that nobody sees, and bytes that are no text, are written as escapes.

    >>> visible("two\nlines"), visible("caf\udce9")
    ('two\\x0alines', 'caf\\xe9')
    """
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", readable(text))


def name(text: str, **attributes: object) -> Markup:
    """A name as an element that cannot turn around the text beside it."""
    return element("bdi", visible(text), **attributes)
