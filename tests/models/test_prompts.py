import torch
from torch import Tensor

from ramen import prompts


def test_class_embeddings_are_normalised_averaged_normalised() -> None:
    vectors = {
        "a x.": [3.0, 0.0],
        "the x.": [0.0, 5.0],
        "a y.": [1.0, 0.0],
        "the y.": [-0.6, 0.8],
    }

    def encode_text(texts: list[str]) -> Tensor:
        return torch.tensor([vectors[text] for text in texts])

    embeddings = prompts.embed_classes(encode_text, ["x", "y"], ["a {}.", "the {}."])
    assert embeddings.shape == (2, 2, 2)
    torch.testing.assert_close(embeddings[0], torch.eye(2))
    half = 2**-0.5
    expected = torch.tensor([[half, half], [0.2, 0.4]]) / torch.tensor([[1.0], [0.2**0.5]])
    torch.testing.assert_close(prompts.average_templates(embeddings), expected)


def test_many_prompts_are_encoded_in_parts() -> None:
    asked = []

    def encode_text(texts: list[str]) -> Tensor:
        asked.append(len(texts))
        return torch.tensor([[float(len(text)), 1.0] for text in texts])

    names = [f"{'x' * i}" for i in range(1, 301)]
    embeddings = prompts.embed_classes(encode_text, names, ["{}", "a {}"])
    assert sum(asked) == 600
    assert max(asked) <= 256
    torch.testing.assert_close(embeddings[299, 1, 0] / embeddings[299, 1, 1], torch.tensor(302.0))


def test_generators_are_taken() -> None:
    assert prompts.check_classes(name for name in ("a", "b")) == ("a", "b")
    assert prompts.check_templates(t for t in ("a {}",)) == ("a {}",)
