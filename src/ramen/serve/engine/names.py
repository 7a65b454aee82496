"""Names that clients choose: of streams and of their classes."""

import re
from collections.abc import Sequence

from ramen.models.prompts import check_classes
from ramen.serve.engine.errors import BadRequestError

_STREAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_CLASSES = 10_000
_LONGEST_CLASS = 200  # characters
_QUOTED = 80  # characters of a wrong name that a message repeats


def check_stream_name(name: object) -> str:
    """``name``, if a stream may have it: it is also the name of a folder.

    >>> check_stream_name("camera-1")
    'camera-1'
    """
    if not isinstance(name, str) or not _STREAM_NAME.fullmatch(name):
        raise BadRequestError(
            "a stream's name must be 1 to 64 letters, digits, '.', '_' or '-', the first one a letter or a "
            f"digit, got {_quoted(name)}"
        )
    return name


def check_class_names(classes: object) -> tuple[str, ...]:
    """``classes`` as the classifier will call them, if a stream may have them."""
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise BadRequestError(f"classes must be a list of names, got {type(classes).__name__}")
    if len(classes) > _MOST_CLASSES:
        raise BadRequestError(f"classes must be at most {_MOST_CLASSES}, got {len(classes)}")
    for name in classes:
        if isinstance(name, str) and len(name) > _LONGEST_CLASS:
            raise BadRequestError(
                f"classes must have names of at most {_LONGEST_CLASS} characters, got one of {len(name)}: "
                f"{_quoted(name)}"
            )
    try:
        return check_classes(classes)
    except (TypeError, ValueError) as error:
        raise BadRequestError(str(error)) from None


def _quoted(name: object) -> str:
    text = repr(name)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
