"""The dashboard as one self-contained page, and the policy that lets it run nothing else."""

import base64
import hashlib
from functools import cache

from ramen.utils.html import Markup, element, whole_page
from ramen.utils.pages import asset

# in this order
_SCRIPTS = ("words", "service", "charts", "overview", "streams", "selected", "trying", "start")


@cache
def dashboard_page() -> str:
    """The page as text: it holds no data, and asks only the server that it came from."""
    content = Markup(_asset("dashboard.html"))
    return whole_page("Ramen", _style(), element("body", content, element("script", Markup(_script()))))


@cache
def dashboard_csp() -> str:
    """The value of the page's Content-Security-Policy header.

    The browser then runs the page's own script and style and no others, connects to the page's own server
    alone, and refuses text that is parsed as HTML: class names and keys come from strangers.
    """
    policy = {
        "default-src": "'none'",
        "script-src": _hash(_script()),
        "style-src": _hash(_style()),
        "img-src": "data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return "; ".join(f"{name} {value}" for name, value in policy.items())


@cache
def _script() -> str:
    return "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)


@cache
def _style() -> str:
    """The style of all our pages, that of the cards with changed images, and the dashboard's own."""
    cards = asset("classify/page.css")
    return asset("utils/style.css") + cards + _asset("dashboard.css")


def _asset(name: str) -> str:
    return asset(f"serve/http/dashboard_assets/{name}")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
