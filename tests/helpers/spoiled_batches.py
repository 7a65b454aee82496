"""Images that a method has to refuse, in a stream that it trains on: they must leave no trace."""

import torch

from ramen.methods import Method
from tests.oracles.mutable_model import stream


def check_refused_images(with_bad: Method, without: Method, bad: float) -> None:
    """Answer a stream with a bad image in every batch, and the same stream without them.

    Args:
        with_bad: Gets the bad images, too.
        without: A method like it.
        bad: The pixels of a bad image.
    """
    for images in (batch.float() for batch in stream(4)):
        spoiled = torch.cat([images[:2], torch.full_like(images[:1], bad), images[2:]])
        a, b = with_bad.predict(spoiled), without.predict(images)
        assert a.fallback.tolist() == [False, False, True, False, False, False]
        torch.testing.assert_close(a.logits[[0, 1, 3, 4, 5]], b.logits, rtol=0, atol=1e-3)


def check_same_content(one: Method, other: Method, atol: float) -> None:
    """Both have learned the same, up to rounding."""
    for name, tensor in other.content().items():
        torch.testing.assert_close(one.content()[name], tensor, rtol=1e-3, atol=atol)


def check_unusable_batch_changes_nothing(method: Method) -> None:
    """A batch of images that are all refused, after one that was not."""
    method.predict(stream(1)[0].float())
    before = method.content()
    method.predict(torch.full((3, 3, 32, 32), torch.nan))
    after = method.content()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
