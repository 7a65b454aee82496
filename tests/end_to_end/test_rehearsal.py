"""Weights and data as somebody would bring them to repeat published numbers, through their readers.

The image tower is OpenAI's, in the three formats in which it is distributed; its text tower is not at hand,
so that here one of random weights is beside it and class embeddings that the real one made are used instead.
"""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from ramen import ZeroShotClassifier
from ramen.data import catalogue, verification
from ramen.data.downloads import unpack
from ramen.experiments.reproduce import model_of
from ramen.models.names import load_model
from tests.fakes.layouts import write_cifar_c, write_image
from tests.helpers.shared_files import REAL_CLIP
from tests.helpers.slow_tests import full

PHOTOGRAPHS = full(530, 10)
KNOWN_ACCURACY = full(85.47, 90.0)  # of the photographs, into the 80 names of COCO
ARCHITECTURE = "ViT-B-16"


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(REAL_CLIP.path / name) as file:
        return dict(file)


@pytest.fixture(scope="module")
def clip() -> nn.Module:
    """OpenAI's image tower, its weights rounded to 8 bits, beside a text tower of random weights."""
    import open_clip

    stored = arrays("vitb16_int8_a.npz") | arrays("vitb16_int8_b.npz")
    tower = {
        name: torch.from_numpy(value.astype(np.float32) * stored.get(f"{name}::scale", np.float32(1)))
        for name, value in stored.items()
        if not name.endswith("::scale")
    }
    torch.manual_seed(0)
    model: nn.Module = open_clip.create_model(f"{ARCHITECTURE}-quickgelu", pretrained=None)
    model.get_submodule("visual").load_state_dict(tower)
    return model.eval()


@pytest.fixture(scope="module")
def photographs() -> tuple[Tensor, Tensor]:
    stored = arrays("coco_imagenet.npz")
    data, ends, labels = stored["data"], stored["offsets"], stored["labels"].astype(np.int64)
    chosen = np.linspace(0, len(labels) - 1, PHOTOGRAPHS).round().astype(int)
    pixels = [Image.open(io.BytesIO(data[ends[i] : ends[i + 1]].tobytes())).convert("RGB") for i in chosen]
    return torch.from_numpy(np.stack([np.asarray(one) for one in pixels])).permute(
        0, 3, 1, 2
    ), torch.from_numpy(labels[chosen])


def write_torchscript(clip: nn.Module, folder: Path) -> str:
    """OpenAI's ``.pt``: a program with its weights, the large ones in float16, and three numbers."""
    clip = deepcopy(clip)
    for name, number in (("input_resolution", 224), ("context_length", 77), ("vocab_size", 49408)):
        vars(clip).pop(name, None)
        clip.register_buffer(name, torch.tensor(number))
    inputs = {"encode_image": torch.ones(1, 3, 224, 224), "encode_text": torch.zeros(1, 77, dtype=torch.int)}
    with torch.no_grad():
        program = torch.jit.trace_module(clip, inputs, check_trace=False)
    for parameter in program.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.half()
    torch.jit.save(program, folder / f"{ARCHITECTURE}.pt")
    return f"{folder}/{ARCHITECTURE}.pt"


def write_checkpoint(clip: nn.Module, folder: Path) -> str:
    """What open_clip's training writes."""
    state = {f"module.{name}": value for name, value in clip.state_dict().items()}
    torch.save({"epoch": 1, "name": "clip", "state_dict": state}, folder / "epoch_1.pt")
    return f"{ARCHITECTURE}-quickgelu/{folder}/epoch_1.pt"


def write_folder(clip: nn.Module, folder: Path) -> str:
    """What ``save_pretrained`` of transformers writes."""
    transformers = pytest.importorskip("transformers")
    from tests.helpers.transformers_models import processor

    vision = {"patch_size": 16, "hidden_act": "quick_gelu"}
    model = transformers.CLIPModel(transformers.CLIPConfig(vision_config=vision, projection_dim=512))
    tower = dict(renamed(clip.get_submodule("visual").state_dict()))
    left = model.load_state_dict(tower, strict=False)
    assert not left.unexpected_keys
    assert all("text" in name or name == "logit_scale" for name in left.missing_keys)
    model.save_pretrained(folder)
    processor("CLIP", pillow=True, size=224).save_pretrained(folder)
    return str(folder)


def renamed(state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The names that transformers has for the weights of open_clip's tower."""
    whole = {
        "class_embedding": "embeddings.class_embedding",
        "conv1.weight": "embeddings.patch_embedding.weight",
        "positional_embedding": "embeddings.position_embedding.weight",
    }
    parts = {"ln_pre": "pre_layrnorm", "ln_post": "post_layernorm", "transformer.resblocks": "encoder.layers"}
    parts |= {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn": "self_attn"}
    parts |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    for name, value in state.items():
        if name == "proj":
            yield "visual_projection.weight", value.T.contiguous()
            continue
        new = whole.get(name, name)
        for old, other in parts.items():
            new = new.replace(old, other)
        if "in_proj" not in new:
            yield f"vision_model.{new}", value
            continue
        for letter, third in zip("qkv", value.chunk(3), strict=True):
            yield f"vision_model.{new.replace('in_proj_', f'{letter}_proj.')}", third.clone()


@pytest.mark.testbed_clip
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "write", full([write_torchscript, write_checkpoint, write_folder], [write_torchscript])
)
def test_weights_in_their_usual_formats(clip, photographs, tmp_path, write) -> None:
    weights = write(clip, tmp_path)  # what `ramen reproduce --weights` is given
    loaded = load_model(model_of(ARCHITECTURE, weights), ["cat", "dog"], "single")
    stored = arrays("openai_vitb16_text.npz")
    names, text = stored["coco80_names"].tolist(), torch.from_numpy(stored["coco80"].astype(np.float32))
    classifier = ZeroShotClassifier(loaded.encoder, text, 100.0, classes=names, preprocess=loaded.preprocess)
    pixels, labels = photographs
    plain, steps = clip.get_submodule("visual"), loaded.preprocess
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (steps.mean, steps.std))
    logits = torch.cat([classifier.logits(classifier.encode(steps(some))) for some in pixels.split(10)])
    with torch.no_grad():
        embeddings = F.normalize(plain((pixels[:10] / 255 - mean) / std), dim=1)
    expected = 100 * embeddings @ F.normalize(text, dim=1).T
    torch.testing.assert_close(logits[:10], expected, rtol=0, atol=0.05)  # the archive's weights are rounded
    accuracy = 100 * (logits.argmax(1) == labels).float().mean()
    assert accuracy == pytest.approx(KNOWN_ACCURACY, abs=0.1)


# -- data ---------------------------------------------------------------------------------------------------


def unpacked(name: str, source: Path, root: Path) -> None:
    """Each archive of a release, made of what it holds, unpacked as a downloaded one is."""
    info = catalogue.describe(name)
    folder = root / info.folders[0]
    root.mkdir(exist_ok=True)
    for archive in info.archives:
        with tarfile.open(source / archive.file, "w") as tar:
            for part in archive.holds or (folder.name,):
                tar.add(source / part, part)
        unpack(info, archive, source / archive.file, folder)


@pytest.mark.parametrize(("name", "classes"), [("cifar10c", 10), ("cifar100c", 100)])
def test_archives_of_cifar_c(tmp_path: Path, name: str, classes: int) -> None:
    info = catalogue.describe(name)
    labels = write_cifar_c(tmp_path / "source" / info.folders[0], count=3, classes=classes)
    unpacked(name, tmp_path / "source", tmp_path / "data")
    data = catalogue.load(name, tmp_path / "data", severity=4)
    assert len(data.classes) == classes
    assert len(data) == 45
    assert data.domains[0].labels.tolist() == labels[9:12].tolist()
    assert (data.domains[2].images.read([1])[:, 1] == 4).all()


def test_archives_of_imagenet_c(tmp_path: Path) -> None:
    """Five archives of corruption/severity/class/image, here of three classes that a file names."""
    info, source = catalogue.describe("imagenetc"), tmp_path / "source"
    for corruption in (part for archive in info.archives for part in archive.holds):
        for severity in range(1, 6):
            for number, wnid in enumerate(("n01440764", "n01443537", "n01484850")):
                image = source / corruption / str(severity) / wnid / f"ILSVRC2012_val_{number:08d}.JPEG"
                write_image(image, colour=(40 * severity, 0, 0))
    root = tmp_path / "data"
    root.mkdir()
    (root / "classnames.txt").write_text("n01440764 tench\nn01443537 goldfish\nn01484850 great white shark\n")
    unpacked("imagenetc", source, root)
    data = catalogue.load("imagenetc", root, severity=3)
    assert data.classes == ("tench", "goldfish", "great white shark")
    assert len(data) == 45
    (path,) = data.domains[14].images.read([2])
    assert path == root / "ImageNet-C" / "jpeg_compression/3/n01484850/ILSVRC2012_val_00000002.JPEG"
    assert verification.verify("imagenetc", root, deep=True, severity=3).ok


def test_archives_of_domainnet(tmp_path: Path) -> None:
    """One zip for each domain, all unpacked in one folder."""
    info = catalogue.describe("domainnet")
    root = tmp_path / "data" / "domain_net"
    for domain in info.counts:
        with zipfile.ZipFile(tmp_path / f"{domain}.zip", "w") as archive:
            for number in range(345):
                content = io.BytesIO()
                Image.new("RGB", (8, 6), (number % 256, 0, 0)).save(content, "JPEG")
                archive.writestr(
                    f"{domain}/class_{number:03d}/{domain}_{number:03d}_000001.jpg", content.getvalue()
                )
        with zipfile.ZipFile(tmp_path / f"{domain}.zip") as archive:
            archive.extractall(root)
    data = catalogue.load("domainnet", tmp_path / "data", domains=["sketch", "real"])
    assert [len(domain) for domain in data.domains] == [345, 345]
    assert len(data.classes) == 345
