"""The result of a check, and a way to run checks so that one that fails does not stop the others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of checking one thing.

    Attributes:
        about: What was checked, in a word or two.
        level: "ok"; "warning": it works, but slowly or not for everything; "problem": it does not work.
        text: What was found.
        advice: What to do about it; empty if nothing needs to be done.
    """

    about: str
    level: Level
    text: str
    advice: str = ""


Check = Callable[[], Iterator[Finding]]


def findings_of(check: Check) -> Iterator[Finding]:
    """Yield the findings of a check; an error in the check becomes a finding as well.

    An ImportError is only a warning here: the check of packages already reports the one that does not load.
    """
    about = check.__name__.replace("_", " ")
    try:
        yield from check()
    except ImportError as error:
        yield Finding(about, "warning", f"could not be checked: {brief(error)}")
    except Exception as error:  # anything can be broken on this machine
        yield Finding(about, "problem", f"the check failed: {brief(error)}")


def brief(error: BaseException, limit: int = 300) -> str:
    """The type and message of an error on one line, cut after ``limit`` characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit else f"{text[:limit]} ..."
