"""Pillow's warnings are ignored in the block, all others are not, and the filters are as before."""

import threading
import warnings

import pytest
from PIL import Image

from ramen.images.file_checks import no_pillow_warnings


def warn_from_pillow() -> None:
    Image._decompression_bomb_check((10_000, 10_000))


def test_only_pillows_are_ignored() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with no_pillow_warnings():
            warn_from_pillow()
            with pytest.raises(UserWarning, match="mine"):
                warnings.warn("mine", stacklevel=1)
        with pytest.raises(Image.DecompressionBombWarning):
            warn_from_pillow()


def test_the_last_of_several_threads_restores_the_filters() -> None:
    """The first to enter leaves first, while the second is inside: with separate copies, one would stay."""
    before = list(warnings.filters)
    second_is_in, first_is_out = threading.Event(), threading.Event()
    quiet: list[bool] = []

    def second() -> None:
        with no_pillow_warnings():
            second_is_in.set()
            first_is_out.wait(10)
            warn_from_pillow()
            quiet.append(True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = list(warnings.filters)
        thread = threading.Thread(target=second)
        with no_pillow_warnings():
            thread.start()
            second_is_in.wait(10)
        first_is_out.set()
        thread.join()
        assert quiet == [True]
        assert warnings.filters == inside
    assert warnings.filters == before
