"""``ramen.adapt``: a method where a model stood."""

import copy

import pytest
import torch
from torch import nn

import ramen
from ramen.testing import small_classifier, small_tower


@pytest.fixture
def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, 32, 32, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("name", ["tent", "ramen", "tda"])
def test_it_answers_as_the_method_does(name: str, batches: list[torch.Tensor]) -> None:
    adapted = ramen.adapt(small_classifier(), name)
    method = ramen.create(name, small_classifier())
    for images in batches:
        logits = adapted(images)
        expected = method.predict(images)
        assert torch.equal(logits, expected.logits)
        assert torch.equal(adapted.last.zero_shot_logits, expected.zero_shot_logits)
    assert adapted.method.images_seen == 16


def test_ramen_is_the_default() -> None:
    assert ramen.adapt(small_classifier()).method.info.name == "ramen"


def test_an_encoder_with_class_embeddings(batches: list[torch.Tensor]) -> None:
    texts = torch.eye(3, 16)
    adapted = ramen.adapt(
        small_tower(), "ensemble", class_embeddings=texts, logit_scale=7.0, classes=["a", "b", "c"]
    )
    classifier = ramen.ZeroShotClassifier(small_tower(), texts, 7.0)
    assert torch.equal(adapted(batches[0]), classifier.logits(classifier.encode(batches[0])).detach())
    assert adapted.method.classifier.classes == ("a", "b", "c")


def test_a_classification_network_answers_with_its_own_logits(batches: list[torch.Tensor]) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()
    adapted = ramen.adapt(network, "tent", classes=["a", "b", "c", "d"], image_size=32, lr=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(adapted(batches[0]), network(batches[0]), rtol=0, atol=1e-5)
    assert adapted.method.classifier.classes == ("a", "b", "c", "d")


def test_a_method_that_exists(batches: list[torch.Tensor]) -> None:
    method = ramen.create("tent", small_classifier(), lr=1e-3)
    adapted = ramen.adapt(method)
    adapted(batches[0])
    assert adapted.method is method
    assert method.images_seen == 4


def test_a_loop_needs_no_care(batches: list[torch.Tensor]) -> None:
    """Modes change nothing, there is no gradient, and an optimizer finds nothing to change."""
    adapted, other = (ramen.adapt(small_classifier(), "tent", lr=1e-3) for _ in range(2))
    adapted.train()
    other.eval()
    with torch.enable_grad():
        first = adapted(batches[0].clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(first, other(batches[0]))
    assert not first.requires_grad
    assert list(adapted.parameters()) == list(adapted.buffers()) == []
    assert torch.equal(adapted(batches[1]), other(batches[1]))


def test_reset_is_fresh(batches: list[torch.Tensor]) -> None:
    adapted = ramen.adapt(small_classifier(), "tent", lr=1e-2)
    first = adapted(batches[0])
    assert not torch.equal(adapted(batches[0]), first)
    adapted.reset()
    assert adapted.last is None
    assert torch.equal(adapted(batches[0]), first)


@pytest.mark.parametrize("name", ["tent", "ramen"])
def test_a_state_continues_inside_other_modules_too(name: str, batches: list[torch.Tensor], tmp_path) -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(ramen.adapt(small_classifier(), name), nn.Linear(5, 2))

    whole = model()
    whole(batches[0])
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    other = model()
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other[0].method.images_seen == 4
    assert torch.equal(other(batches[1]), whole(batches[1]))


def test_states_of_something_else_are_refused(batches: list[torch.Tensor]) -> None:
    tent, entmin = (ramen.adapt(small_classifier(), name) for name in ("tent", "entmin"))
    tent(batches[0])
    with pytest.raises(RuntimeError, match="it is of method 'entmin', this is 'tent'"):
        tent.load_state_dict(entmin.state_dict())
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "header"'):
        tent.load_state_dict({})
    assert tent.method.images_seen == 4


def test_a_copy_is_independent(batches: list[torch.Tensor]) -> None:
    adapted = ramen.adapt(small_classifier(), "tent", lr=1e-2)
    adapted(batches[0])
    twin = copy.deepcopy(adapted)
    expected = copy.deepcopy(adapted)(batches[1])
    adapted(batches[2])
    assert torch.equal(twin(batches[1]), expected)


def test_it_stays_where_its_classifier_is() -> None:
    adapted = ramen.adapt(small_classifier(), "tent")
    assert adapted.to("cpu").float() is adapted
    with pytest.raises(RuntimeError, match=r"\(cpu, torch.float32\), cannot become cpu, torch.float16"):
        nn.Sequential(adapted).half()


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (lambda: 3, {}, "model"),
        (lambda: ramen.AffineEncoder(small_tower()), {}, "class_embeddings"),
        (small_tower, {"class_embeddings": torch.eye(3, 16), "image_size": 32}, "image_size: only for a"),
        (small_classifier, {"logit_scale": 1.0}, "logit_scale: the ZeroShotClassifier"),
        (small_classifier, {"classes": ["a"]}, "classes: the ZeroShotClassifier"),
        (lambda: ramen.create("tent", small_classifier()), {"lr": 1.0}, "lr: the method that was given"),
        (
            lambda: ramen.create("tent", small_classifier()),
            {"method": "ramen"},
            "method: the method that was",
        ),
        (small_classifier, {"method": "tent", "step": 1}, "method 'tent' has no parameter 'step'"),
    ],
)
def test_wrong_arguments(model, options: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ramen.adapt(model(), **options)


def test_repr_says_what_it_is() -> None:
    text = repr(ramen.adapt(small_classifier(), "tent"))
    assert text.startswith("AdaptedModule(tent, ZeroShotClassifier(5 classes")
