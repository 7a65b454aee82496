from hypothesis import example, given
from hypothesis import strategies as st

from ramen.classify.files import original, readable

NAMES = st.binary(min_size=1, max_size=20) | st.text(alphabet="\\x5cf0é", max_size=12).map(str.encode)


@given(NAMES)
@example(rb"a\xff.jpg")
@example(b"a\xff.jpg")
@example(rb"\x5c\x5cx41")
def test_every_name_survives_and_is_utf8(raw: bytes) -> None:
    name = raw.decode("utf-8", "surrogateescape")
    text = readable(name)
    text.encode()
    assert original(text) == name


def test_two_names_never_become_the_same_text() -> None:
    assert readable("a\udcff.jpg") == r"a\xff.jpg"
    assert readable(r"a\xff.jpg") == r"a\x5cxff.jpg"


def test_ordinary_names_stay() -> None:
    for name in ("IMG 0001.jpg", 'fotos\\é\n"x".png', "\N{SLICE OF PIZZA}.webp"):
        assert readable(name) == name
