"""Class embeddings as means of labelled images, and models of timm by name."""

from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import ramen
from ramen import AffineEncoder, Preprocess, ZeroShotClassifier, testing

TIMM = "vit_tiny_patch16_224"


def labelled(per_class: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 3, 32, 32, generator=generator)
    labels = torch.arange(4).repeat(per_class)
    return centres[labels] + 0.7 * torch.randn(len(labels), 3, 32, 32, generator=generator), labels


def test_prototypes_are_means_of_unit_embeddings() -> None:
    images, labels = labelled()
    tower = testing.small_tower()
    clf = ZeroShotClassifier.from_prototypes(tower, images, labels, ["a", "b", "c", "d"], batch_size=5)
    encoder = AffineEncoder(tower)
    for number in range(4):
        own = torch.cat([encoder(image[None]) for image in images[labels == number]])
        torch.testing.assert_close(clf.class_embeddings[number], F.normalize(own.mean(0), dim=0))
    assert clf.classes == ("a", "b", "c", "d")
    accuracy = (clf.logits(clf.encode(images)).argmax(1) == labels).float().mean()
    assert accuracy > 0.7
    assert ramen.create("ramen", clf).predict(images).logits.isfinite().all()


def test_the_scale_explains_images_that_were_left_out() -> None:
    images, labels = labelled()
    tower = testing.small_tower()
    found = ZeroShotClassifier.from_prototypes(tower, images, labels).logit_scale
    embeddings = AffineEncoder(tower)(images)

    def loss(scale: float) -> float:
        total = 0.0
        for index, label in enumerate(labels):
            others = torch.arange(len(labels)) != index
            means = torch.stack([embeddings[others & (labels == c)].mean(0) for c in range(4)])
            logits = scale * embeddings[index] @ F.normalize(means, dim=1).T
            total += float(F.cross_entropy(logits, label))
        return total

    assert 1 <= found <= 256
    assert loss(found) <= min(loss(found * 2 ** (1 / 4)), loss(found / 2 ** (1 / 4)), loss(100.0)) + 1e-5


def test_one_image_per_class_and_a_given_scale() -> None:
    images, labels = labelled(1)
    encoder = AffineEncoder(testing.small_tower())
    assert ZeroShotClassifier.from_prototypes(encoder, images, labels).logit_scale == 100
    clf = ZeroShotClassifier.from_prototypes(encoder, images, labels.tolist(), logit_scale=7.0)
    assert clf.logit_scale == 7
    assert clf.encoder is encoder


def test_images_that_are_not_preprocessed() -> None:
    pixels = torch.randint(0, 256, (4, 3, 40, 50), dtype=torch.uint8)
    tower, preprocess = testing.small_tower(), Preprocess(32)
    clf = ZeroShotClassifier.from_prototypes(tower, pixels, [0, 1, 0, 1], preprocess=preprocess)
    same = ZeroShotClassifier.from_prototypes(tower, preprocess(pixels), [0, 1, 0, 1])
    torch.testing.assert_close(clf.class_embeddings, same.class_embeddings)
    assert clf.can_preprocess


# -- timm -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("timm") / "weights.safetensors"
    save_file(timm.create_model(TIMM).state_dict(), path)
    return path


def test_a_tower_of_timm_with_class_embeddings(weights: Path) -> None:
    clf = ZeroShotClassifier.from_timm(TIMM, torch.randn(3, 192), list("abc"), pretrained=weights)
    tower = timm.create_model(TIMM, num_classes=0).eval()
    tower.load_state_dict({k: v for k, v in read(weights).items() if not k.startswith("head")})
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(clf.encode(images), F.normalize(tower(images), dim=1), rtol=0, atol=1e-5)
    assert clf.encoder.fused
    assert clf.logit_scale == 100
    assert clf.preprocess.resize_to == 248
    with pytest.raises(ValueError, match="class_embeddings"):
        ZeroShotClassifier.from_timm(TIMM, torch.randn(3, 5), pretrained=weights)


def test_a_network_of_timm_with_its_own_head(weights: Path) -> None:
    clf = ZeroShotClassifier.from_timm(TIMM, pretrained=weights)
    network = timm.create_model(TIMM).eval()
    network.load_state_dict(read(weights))
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = network(images)
        found = clf.logits(clf.encode(images))
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert clf.num_classes == 1000
    assert clf.encoder.fused


def read(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def test_a_model_of_timm_in_the_hubs_cache(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{TIMM}.augreg_in21k_ft_in1k"
    repository = timm.models.get_pretrained_cfg(name).hf_hub_id
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="is not, or not as a whole, in the cache"):
        ZeroShotClassifier.from_timm(name, cache_dir=tmp_path)
    folder = tmp_path / f"models--{repository.replace('/', '--')}"
    (folder / "snapshots" / "0123").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123")
    (folder / "snapshots" / "0123" / "model.safetensors").write_bytes(weights.read_bytes())
    clf = ZeroShotClassifier.from_timm(name, cache_dir=tmp_path)
    assert torch.equal(clf.encoder.base, ZeroShotClassifier.from_timm(TIMM, pretrained=weights).encoder.base)
