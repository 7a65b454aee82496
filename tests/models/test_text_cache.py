import pytest
import torch
from torch import Tensor

from ramen import prompts
from ramen.models.text import TextCache


class Counting:
    """A text encoder that writes down what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> Tensor:
        self.asked += list(dict.fromkeys(texts))  # a call may be filled up with copies
        return torch.stack([torch.tensor([len(t), ord(t[0]), ord(t[-1]), 3.0]) for t in texts])


def cache(encode: Counting, capacity: int = 100) -> TextCache:
    return TextCache(encode, "a {}", capacity, torch.zeros((), dtype=torch.float64))


def test_embeddings_are_those_of_the_texts_in_order() -> None:
    encode = Counting()
    words = [f"{'x' * n}{n}" for n in range(40)]
    texts = [words[i] for i in (3, 0, 3, 39, 17)] + words
    embeddings = cache(encode)(texts)
    expected = torch.nn.functional.normalize(Counting()([f"a {t}" for t in texts]), dim=1)
    assert embeddings.dtype == torch.float64
    torch.testing.assert_close(embeddings, expected.double(), rtol=0, atol=1e-7)
    assert sorted(encode.asked) == sorted(f"a {word}" for word in words)


def test_the_least_recently_used_go() -> None:
    """A table of questions to a cache of three, and what each costs."""
    encode = Counting()
    texts = cache(encode, capacity=3)
    for asked, encoded in [
        (["p", "q"], ["p", "q"]),
        (["r"], ["r"]),
        (["p", "q", "r"], []),
        (["p"], []),  # q is now the oldest
        (["s"], ["s"]),  # in its place
        (["p", "r", "s"], []),
        (["q"], ["q"]),  # p is gone
        (["r", "s", "q"], []),
        (["t", "u", "v", "w", "q"], ["t", "u", "v", "w"]),  # more than fit; q and the last two stay
        (["q", "v", "w"], []),
        (["t"], ["t"]),
    ]:
        encode.asked.clear()
        assert len(texts(asked)) == len(asked)
        assert encode.asked == [f"a {text}" for text in encoded], asked
        assert len(texts) <= 3


def test_an_embedding_does_not_depend_on_what_else_is_asked_for(tiny_model: str) -> None:
    """To the last bit, with a real text tower: answers must not depend on what a cache holds."""
    from ramen.models.open_clip import load_open_clip, load_tokenizer, text_encoder

    torch.manual_seed(0)
    encode_text = text_encoder(load_open_clip(tiny_model, None), load_tokenizer(tiny_model))
    words = [f"cat or dog or {n}" for n in range(21)]
    like = torch.zeros(())
    whole = TextCache(encode_text, "a photo of a {}", 99, like)(words)
    apart = TextCache(encode_text, "a photo of a {}", 99, like)
    assert torch.equal(whole, torch.cat([apart([word]) for word in reversed(words)]).flip(0))
    direct = prompts.embed_classes(encode_text, words, ["a photo of a {}"])[:, 0]
    torch.testing.assert_close(whole, direct, rtol=0, atol=1e-6)


@pytest.mark.parametrize("capacity", [0, 1])
@pytest.mark.parametrize("count", [2, 16, 17])
def test_a_capacity_below_one_call(capacity: int, count: int) -> None:
    encode = Counting()
    texts, words = cache(encode, capacity), [str(n) for n in range(count)]
    assert torch.equal(texts(words), texts(words))
    assert len(texts) == capacity
    assert len(encode.asked) == 2 * count - capacity  # the last one stays, if there is room
