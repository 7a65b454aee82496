"""What a check says, and how it is kept from stopping the others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: What it is, in a word or two.
        level: "ok"; "warning": it works, but slowly or not for everything; "problem": it does not work.
        text: What was found.
        advice: What to do about it.
    """

    about: str
    level: Level
    text: str
    advice: str = ""


Check = Callable[[], Iterator[Finding]]


def findings_of(check: Check) -> Iterator[Finding]:
    """All that a check finds; what breaks it is a finding, too.

    A package that does not load is told where packages are looked at: here it only hides the rest.
    """
    about = check.__name__.replace("_", " ")
    try:
        yield from check()
    except ImportError as error:
        yield Finding(about, "warning", f"could not be looked at: {brief(error)}")
    except Exception as error:  # whatever is broken on this machine
        yield Finding(about, "problem", f"the check broke: {brief(error)}")


def brief(error: BaseException, limit: int = 300) -> str:
    """An error's kind and message in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit else f"{text[:limit]} ..."
