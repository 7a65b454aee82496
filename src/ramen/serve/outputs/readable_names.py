"""File names as text. A name is a string of bytes, which need not be UTF-8; what we write always is."""

import re

_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_SURROGATES = re.compile("[\udc80-\udcff]+")


def readable(name: str) -> str:
    r"""The name as text: bytes that are not UTF-8 become ``\xff``, all other names stay as they are.

    A backslash that could be mistaken for the start of such a byte is itself written as ``\x5c``.

    >>> readable("caf\udce9.jpg"), readable("café.jpg")
    ('caf\\xe9.jpg', 'café.jpg')
    """
    name = _ESCAPED.sub(r"\\x5cx\1", name)
    return _SURROGATES.sub(lambda found: "".join(f"\\x{ord(c) - 0xDC00:02x}" for c in found[0]), name)


def original(text: str) -> str:
    r"""The name that ``readable`` was given.

    >>> original("caf\\xe9.jpg") == "caf\udce9.jpg"
    True
    """
    return _ESCAPED.sub(lambda found: _from_byte(int(found[1], 16)), text)


def _from_byte(value: int) -> str:
    return chr(value) if value < 0x80 else chr(0xDC00 + value)
