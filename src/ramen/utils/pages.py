"""HTML pages: one Jinja environment for all packages, whose templates extend ``utils/base.html.j2``.

A page is one file that asks nothing of the network. Text is escaped wherever a template inserts it.
"""

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **facts: Any) -> str:
    """A page as text.

    Args:
        template: A file of the package, such as ``experiments/page.html.j2``.
        facts: What the template inserts; a name that it needs and does not find is an error.
    """
    return _environment().get_template(template).render(facts)


def asset(name: str) -> str:
    """The text of a file of the package, such as ``utils/style.css``: the style that all pages share."""
    return resources.files("ramen").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ramen", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = lambda name: Markup(asset(name))
    return environment
