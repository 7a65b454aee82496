"""What only a GPU can show: the same answers as on the CPU, and no waiting for the device."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import ramen
from ramen import testing
from ramen.images import resize
from ramen.memory import codecs
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory, weighted_sums
from ramen.models.prefetch import prefetch
from tests.helpers.device_waits import no_waiting

pytestmark = pytest.mark.gpu


def batches(count: int, batch: int = 40, queues: int = 6, seed: int = 0) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield {
            "queues": torch.randint(queues, (batch,), generator=generator),
            "embeddings": torch.nn.functional.normalize(torch.randn(batch, 8, generator=generator), dim=-1),
            "gradients": torch.randn(batch, 33, generator=generator),
            "entropies": torch.rand(batch, generator=generator),
            "tags": torch.randint(9, (batch,), generator=generator),
            "keep": torch.rand(batch, generator=generator) > 0.1,
        }


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("fifo", ["exact", "float16"])
@pytest.mark.parametrize("gradient_device", ["cuda", "cpu"])
def test_the_memory_answers_as_on_the_cpu(codec: str, fifo: str, gradient_device: str) -> None:
    there = Memory(
        MemoryPlan(6, 9, 8, 33, codec=codec, fifo=fifo, device="cuda", gradient_device=gradient_device)
    )
    here = Memory(MemoryPlan(6, 9, 8, 33, codec=codec, fifo=fifo))
    tolerance = 1e-2 if codec == "sign" else 1e-5  # a mean may round to the next bfloat16
    for batch in batches(8):
        here.insert(here.stage(**batch))
        there.insert(there.stage(**{name: tensor.cuda() for name, tensor in batch.items()}))
        a, b = here.select(batch["embeddings"], 4), there.select(batch["embeddings"].cuda(), 4)
        width = a.rows.shape[2]
        assert torch.equal(a.valid, b.valid.cpu()[..., :width])
        assert torch.equal(a.numbers[a.valid], b.numbers.cpu()[..., :width][a.valid])
        torch.testing.assert_close(a.distances[a.valid], b.distances.cpu()[..., :width][a.valid])
        sums = [m.aggregate(s, torch.exp(-5 * s.distances)) for m, s in ((here, a), (there, b))]
        torch.testing.assert_close(sums[0], sums[1].cpu(), rtol=0, atol=tolerance)
    assert len(here) == len(there)
    # what was written where a GPU writes by itself is what was to be written
    state, other = here.state(), there.state()
    if codec != "sign":
        assert torch.equal(state["gradients"][1:], other["gradients"][1:].cpu())
    again = Memory(
        MemoryPlan(6, 9, 8, 33, codec=codec, fifo=fifo, device="cuda", gradient_device=gradient_device)
    )
    again.restore(other)
    sums = [m.aggregate(b, torch.exp(-5 * b.distances)) for m in (there, again)]
    torch.testing.assert_close(*sums, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_small_weights_keep_their_digits(dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    codec = codecs.create(dtype, 65)
    stored, scales = codec.encode(torch.randn(300, 65, generator=generator))
    rows = torch.randint(300, (17, 40), generator=generator)
    weights = torch.rand(17, 40, generator=generator) * 1e-6
    spread = torch.zeros(17, 300, dtype=torch.float64).scatter_add_(1, rows, weights.double())
    expected = spread @ codec.decode(stored, scales).double()
    arguments = (tensor.cuda() for tensor in (stored, scales, rows, weights))
    result = weighted_sums(codec, *arguments)
    assert result.dtype == torch.float32
    torch.testing.assert_close(
        result.cpu().double(), expected, rtol=0, atol=1e-6 * expected.abs().max().item()
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"visibility": "causal"},
        {"codec": "sign"},
        {"codec": "sign", "visibility": "causal"},
    ],
    ids=str,
)
def test_a_steady_stream_does_not_wait_for_the_device(dtype: str, parameters: dict) -> None:
    clf = testing.small_classifier(dtype=dtype, device="cuda")
    method = ramen.create("ramen", clf, capacity=5, topk=2, **parameters)
    images = torch.randn(10, 20, 3, 32, 32, device="cuda")
    for batch in images:  # until the pool is as large as it will ever be
        method.predict(batch)
    with no_waiting():
        out = method.predict(images[0])
    assert out.logits.isfinite().all()


@pytest.mark.parametrize("name", ramen.list_methods())
def test_answers_are_those_of_the_cpu(name: str) -> None:
    parameters = {"ramen": {"capacity": 6, "topk": 2}, "watt": {"rounds": 1, "steps": 1}}.get(name, {})
    here = ramen.create(name, testing.small_classifier(), **parameters)
    there = ramen.create(name, testing.small_classifier(device="cuda"), **parameters)
    images = torch.randn(5, 30, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pairs = [(here.predict(batch), there.predict(batch)) for batch in images]
    assert all(b.logits.device.type == "cpu" for _, b in pairs)  # where the images came from
    same = torch.cat([a.labels == b.labels for a, b in pairs])
    assert same.float().mean() > 0.98


@pytest.mark.parametrize("codec", ["fp16", "sign"])
@pytest.mark.parametrize("placement", ["encoder", "cpu", "split"])
def test_placements(placement: str, codec: str) -> None:
    clf = testing.small_classifier(device="cuda")
    images = torch.randn(5, 30, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    places = "encoder", placement
    a, b = (ramen.create("ramen", clf, capacity=6, topk=2, codec=codec, placement=p) for p in places)
    same = torch.cat([a.predict(x).labels == b.predict(x).labels for x in images])
    assert same.float().mean() > 0.98
    expected = {"encoder": {"cuda"}, "cpu": {"cpu"}, "split": {"cuda", "cpu"}}[placement]
    assert {device.type for device in b.memory.max_bytes()} == expected


@pytest.mark.parametrize("placement", ["encoder", "cpu", "split"])
def test_random_entries_are_the_same_everywhere(placement: str) -> None:
    images = torch.randn(3, 30, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    settings = {"capacity": 6, "topk": 2, "consistency": False}
    here = ramen.create("ramen", testing.small_classifier(), **settings)
    there = ramen.create("ramen", testing.small_classifier(device="cuda"), placement=placement, **settings)
    for batch in images:
        a, b = (m.predict(batch, return_support=True).support for m in (here, there))
        width = a.numbers.shape[1]
        assert torch.equal(a.numbers.sort(1).values, b.numbers[:, :width].sort(1).values)


def test_under_another_default_device() -> None:
    images = torch.randn(4, 3, 32, 32)
    expected = ramen.create("ramen", testing.small_classifier()).predict(images).labels
    classifier = testing.small_classifier()
    torch.set_default_device("cuda")
    try:
        assert torch.equal(ramen.create("ramen", classifier).predict(images).labels, expected)
        classifier.preprocess(torch.zeros(1, 3, 40, 40, dtype=torch.uint8, device="cpu"))
    finally:
        torch.set_default_device(None)


def test_a_state_moves_between_devices() -> None:
    here = ramen.create("ramen", testing.small_classifier(), capacity=6, topk=2)
    there = ramen.create("ramen", testing.small_classifier(device="cuda"), capacity=6, topk=2)
    images = torch.randn(4, 30, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for batch in images[:3]:
        there.predict(batch)
    here.load_state_dict(there.state_dict())
    assert (here.predict(images[3]).labels == there.predict(images[3]).labels).float().mean() > 0.95


# -- preprocessing ----------------------------------------------------------------------------------


@pytest.fixture(params=["float32", "TF32"])
def matrix_products(request: pytest.FixtureRequest) -> Iterator[None]:
    """With and without the switch that rounds factors to eleven bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param == "TF32"
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def noise(count: int, height: int, width: int, extreme: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(height * width)
    pixels = torch.randint(256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    return torch.where(pixels > 127, 255, 0).to(torch.uint8) if extreme else pixels


@pytest.mark.usefixtures("matrix_products")
@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "lanczos", "nearest"])
@pytest.mark.parametrize("extreme", [False, True])
def test_preprocessing_gives_the_numbers_of_the_cpu(mode: str, interpolation: str, extreme: bool) -> None:
    for size, old in [
        (224, (32, 32)),
        (224, (375, 500)),
        (224, (900, 301)),
        (64, (33, 2000)),
        (224, (10, 3000)),  # of which Pillow would enlarge 15 million pixels
        ((48, 32), (57, 91)),
    ]:
        preprocess = ramen.Preprocess(size, interpolation=interpolation, resize_mode=mode, fill_color=7)
        batch = noise(6, *old, extreme)
        there = preprocess.pixels(batch, device="cuda")
        assert there.device.type == "cuda"
        assert torch.equal(there.cpu(), preprocess.pixels(batch))
        assert torch.equal(preprocess(batch.cuda()).cpu(), preprocess(batch))
        assert torch.equal(
            preprocess(batch, device="cuda", dtype="float16").cpu(), preprocess(batch, dtype="float16")
        )


def test_a_large_batch_is_resized_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    preprocess, batch = ramen.Preprocess(64), noise(50, 32, 32).cuda()
    whole = preprocess(batch)
    monkeypatch.setattr(resize, "_DEVICE_WORKSPACE", 2**20)
    assert torch.equal(preprocess(batch), whole)


@pytest.mark.parametrize("pinned", [False, True])
def test_preprocessing_does_not_wait_for_the_device(pinned: bool) -> None:
    clf = testing.small_classifier(device="cuda")
    batches = [noise(8, 40, 44).roll(i, 3) for i in range(4)]
    expected = [clf.preprocess(batch).cpu() for batch in batches]  # also warms up
    buffer = torch.empty_like(batches[0], pin_memory=pinned)
    with no_waiting():
        torch.cuda._sleep(100_000_000)  # the device is busy while the caller writes to its buffer again
        results = [clf.preprocess(buffer.copy_(batch)) for batch in batches]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(results, expected, strict=True))


def test_workers_for_a_device(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(5)]
    for path, image in zip(paths, noise(5, 40, 50), strict=True):
        Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0))).save(path)
    clf = testing.small_classifier(device="cuda", dtype="float16")
    batches = [paths[:3], paths[3:]]
    results = list(prefetch(batches, clf, workers=2, dtype=clf.dtype))
    assert all(result.device.type == "cuda" for result in results)
    assert all(
        torch.equal(a, clf.preprocess(b, dtype=clf.dtype)) for a, b in zip(results, batches, strict=True)
    )


@pytest.mark.parametrize("placement", ["encoder", "cpu", "split"])
def test_a_group_of_one_process(placement: str, tmp_path: Path) -> None:
    """NCCL's operations, the passes' recordings and a memory of a group, on one GPU."""
    import torch.distributed as dist

    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        clf = testing.small_classifier(device="cuda")
        settings = {"capacity": 6, "topk": 2, "beta": 5.0, "lr": 1e-2, "placement": placement}
        one = ramen.create("ramen", clf, **settings)
        shared = ramen.create("ramen", clf, group=dist.group.WORLD, **settings)
        for number in range(5):  # the passes are recorded on the way
            images = torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(number)).cuda()
            expected, found = (method.predict(images, return_support=True) for method in (one, shared))
            assert found.support is not None
            assert expected.support is not None
            width = min(found.support.numbers.shape[1], expected.support.numbers.shape[1])
            assert width > 0
            for name in ("numbers", "valid"):
                sets = [
                    torch.where(out.support.valid, getattr(out.support, name), -1).sort(1, descending=True)
                    for out in (expected, found)
                ]
                assert torch.equal(sets[0].values[:, :width], sets[1].values[:, :width])
            torch.testing.assert_close(found.logits, expected.logits, rtol=1e-3, atol=1e-3)
        shared.save(tmp_path / "state")
        one.reset()
        one.load(tmp_path / "state")
        assert one.images_seen == 35
    finally:
        dist.destroy_process_group()
