"""The accuracy benchmark on files in its formats."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import load_benchmark
from open_clip.transformer import VisionTransformer
from safetensors.torch import save_file
from torch import Tensor

import ramen
from ramen.methods import registry

CLASSES = ["cat", "dog", "fire_truck"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    architecture = {
        "image_size": 32,
        "patch_size": 8,
        "width": 16,
        "layers": 1,
        "heads": 2,
        "mlp_ratio": 2.0,
        "output_dim": 8,
    }
    torch.manual_seed(0)
    save_file(VisionTransformer(**architecture).half().state_dict(), tmp_path / "vision.safetensors")
    save_file({"pets": torch.randn(3, 8, 8)}, tmp_path / "text_features.safetensors")
    config = {
        "architecture": architecture,
        "logit_scale": 20.0,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "pets": {"classes": CLASSES},
        "templates": [f"template {i} {{}}." for i in range(7)] + ["a photo of a {}."],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    pixels = {
        name: rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8) for name in ("clean", "fog", "snow")
    }
    np.savez(tmp_path / "stream.npz", labels=rng.integers(0, 3, 20), **pixels)
    return tmp_path, tmp_path / "stream.npz"


@pytest.fixture
def benchmark(files, tmp_path, monkeypatch) -> Callable[..., dict]:
    """Runs the script with more arguments, and returns what it wrote as JSON."""
    module = load_benchmark("accuracy")
    known = {name: registry.get_method(name) for name in ramen.list_methods()}
    monkeypatch.setattr(registry, "_METHODS", known)  # what a test registers is forgotten

    def run(*arguments: str) -> dict:
        out = tmp_path / "out.json"
        command = [*map(str, files), "--text", "pets", "--batch", "7", "--out", str(out), *arguments]
        monkeypatch.setattr(sys, "argv", ["accuracy.py", *command])
        module.main()
        return json.loads(out.read_text())

    return run


def test_prints_a_table_and_writes_json(benchmark, capsys) -> None:
    runs = ["ensemble", "clip", "tent", "ramen:capacity=5,topk=2,visibility=causal"]
    record = benchmark("--seeds", "2", *(word for run in runs for word in ("--run", run)))
    printed = capsys.readouterr()
    assert "40 images of 2 domains, mixed, 2 seed(s)" in printed.out
    assert printed.err.count("tent  lr=2e-05  ") == 1  # as soon as it is done
    assert [r["method"] for r in record["results"]] == ["ensemble", "clip", "tent", "ramen"]
    ours = record["results"][3]
    assert ours["given"] == {"capacity": 5, "topk": 2, "beta": 5.0, "lr": 0.01, "visibility": "causal"}
    assert {**ours["parameters"], "seed": 0} == {**ramen.describe("ramen").defaults, **ours["given"]}
    assert set(ours["seeds"][0]["per_domain"]) == {"fog", "snow"}
    assert 0 < ours["seeds"][0]["same_domain"] < 100
    assert ours["seeds"][0]["milliseconds_an_image"] > 0
    zero_shot = [seed["accuracy"] for seed in record["results"][0]["seeds"]]
    assert zero_shot[0] == pytest.approx(zero_shot[1])  # the order of the stream does not matter to it
    assert record["hardware"]["torch"] == torch.__version__
    assert record["settings"] == {"protocol": "mixed", "batch": 7, "dtype": "float32", "images": 40}


@pytest.mark.parametrize("protocol", ["mixed", "single"])
def test_accuracies(benchmark, files, protocol: str) -> None:
    """Each domain's share of right answers, and their mean, against a plain pass over the pictures."""
    (result,) = benchmark("--protocol", protocol, "--run", "ensemble")["results"]
    module = load_benchmark("accuracy")
    classifier, _ = module.load_classifier(files[0], "pets", "cpu", "float32")
    expected = {}
    with np.load(files[1]) as arrays:
        for domain in ("fog", "snow"):
            images = torch.from_numpy(arrays[domain]).permute(0, 3, 1, 2) / 255
            labels = classifier.logits(classifier.encode((images - 0.5) / 0.25)).argmax(1).numpy()
            expected[domain] = 100 * (labels == arrays["labels"]).mean()
    assert expected["fog"] != expected["snow"]
    assert result["seeds"][0]["per_domain"] == pytest.approx(expected)
    assert result["seeds"][0]["accuracy"] == pytest.approx((expected["fog"] + expected["snow"]) / 2)


@pytest.mark.parametrize("protocol", ["mixed", "single"])
def test_every_registered_method_runs_by_default(benchmark, protocol: str) -> None:
    record = benchmark("--protocol", protocol, "--limit", "10")
    assert [r["method"] for r in record["results"]] == ramen.list_methods()
    for result in record["results"]:
        assert ("seeds" in result) != ("error" in result)
        assert set(result["given"]) <= set(result["parameters"])
    own = [r for r in record["results"] if r["method"] in ("clip", "dmn", "ensemble", "ramen", "tda", "tent")]
    assert all("error" not in result for result in own)


class Recorder(ramen.Method):
    """Notes what comes, and how far its stream is."""

    calls: ClassVar[list[tuple[int, int, list[int]]]] = []

    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> ramen.Answer:
        self.calls.append((self.seed, self.images_seen, tags.tolist()))
        logits = self.classifier.logits(self.classifier.encode(images))
        return ramen.Answer(logits, logits, usable)


def enter(cls: type[ramen.Method]) -> None:
    facts = {"title": "t", "venue": "", "paper": "p", "updates": "nothing", "predicts_with": "it"}
    ramen.register(ramen.MethodInfo("own", **facts, batch_dependent=False, forwards=1, backwards=0))(cls)


def test_single_domains_are_separate_streams(benchmark) -> None:
    enter(Recorder)
    Recorder.calls.clear()
    record = benchmark("--protocol", "single", "--seeds", "2", "--run", "own")
    expected = [(seed, seen, domain) for seed in (0, 1) for domain in (0, 1) for seen in (0, 7, 14)]
    assert [(seed, seen, tags[0]) for seed, seen, tags in Recorder.calls] == expected
    assert all(len(set(tags)) == 1 for _, _, tags in Recorder.calls)
    assert [len(tags) for _, _, tags in Recorder.calls] == [7, 7, 6] * 4
    assert record["settings"]["images"] == 40

    Recorder.calls.clear()
    benchmark("--protocol", "mixed", "--run", "own")
    assert [seen for _, seen, _ in Recorder.calls] == [0, 7, 14, 21, 28, 35]
    assert any(len(set(tags)) == 2 for _, _, tags in Recorder.calls)


def test_the_orders_of_images(files) -> None:
    module = load_benchmark("accuracy")
    stream = module.Stream(files[1], [0.5] * 3, [0.25] * 3, None)
    (mixed,) = stream.parts("mixed", 3)
    assert torch.equal(mixed, stream.order(3))
    fog, snow = stream.parts("single", 3)
    assert sorted(fog.tolist()) == list(range(20))
    assert sorted(snow.tolist()) == list(range(20, 40))
    assert not torch.equal(fog, snow - 20)
    assert not torch.equal(fog, stream.parts("single", 4)[0])
    assert torch.equal(fog, stream.parts("single", 3)[0])
    stream.limit = 5
    assert torch.equal(torch.cat(stream.parts("single", 3)), torch.cat([fog[:5], snow[:5]]))


def test_the_later_word_counts() -> None:
    """Presets of the protocol, then --set, then the run itself."""
    module = load_benchmark("accuracy")

    def lrs(protocol: str, *settings: str) -> list[float]:
        runs = module.plan(["tent", "tent:lr=0.5"], settings, protocol, module.PRESETS)
        return [run.given["lr"] for run in runs]

    assert lrs("mixed") == [2e-5, 0.5]
    assert lrs("single") == [1e-4, 0.5]
    assert lrs("single", "tent.lr=0.25", "ramen.lr=1") == [0.25, 0.5]
    (run,) = module.plan(["ramen"], ["ramen.capacity=750"], "mixed", module.PRESETS)
    assert run.given == {"capacity": 750, "topk": 50, "beta": 5.0, "lr": 1e-2}
    assert (
        run.parameters
        == {k: v for k, v in ramen.describe("ramen").defaults.items() if k != "seed"} | run.given
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "tentt"], "there is no method 'tentt'; did you mean 'tent'?"),
        (["--run", "tent:rate=1"], "method 'tent' has no parameter 'rate'; it has lr, statistics, seed"),
        (["--set", "tent.rate=1"], "method 'tent' has no parameter 'rate'; it has lr, statistics, seed"),
        (["--set", "tentt.lr=1"], "there is no method 'tentt'; did you mean 'tent'?"),
        (["--set", "lr=1"], "--set must be METHOD.PARAMETER=VALUE, got 'lr=1'"),
        (["--set", "tent.lr"], "--set must be METHOD.PARAMETER=VALUE, got 'tent.lr'"),
    ],
)
def test_wrong_names_are_told_before_anything_runs(benchmark, capsys, arguments, message) -> None:
    with pytest.raises(SystemExit):
        benchmark(*arguments)
    assert message in capsys.readouterr().err


class NeedsText(Recorder):
    """Writes a prompt that the files have no embedding of."""

    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> ramen.Answer:
        self.classifier.encode_text(["a cat or dog"])
        return super().adapt(images, usable, tags, want_support)


def test_a_method_that_the_model_cannot_serve(benchmark, tmp_path, capsys) -> None:
    """Among all methods it has a row that says why; asked for by name it is an error. Earlier rows stay."""
    enter(NeedsText)
    record = benchmark("--limit", "10")
    (row,) = [r for r in record["results"] if r["method"] == "own"]
    assert row["error"] == "there is no text encoder, and no embedding of 'a cat or dog', in the folder"
    assert record["results"][-1]["method"] == ramen.list_methods()[-1]
    assert "own  not on this model: there is no text encoder" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no embedding of 'a cat or dog'"):
        benchmark("--run", "ensemble", "--run", "own")
    assert [r["method"] for r in json.loads((tmp_path / "out.json").read_text())["results"]] == ["ensemble"]


def test_infinity_in_json(benchmark) -> None:
    class Endless(Recorder):
        def __init__(self, classifier, prior: float = 1.0, *, seed: int = 0) -> None:
            super().__init__(classifier, seed=seed)
            assert prior == float("inf")

    enter(Endless)
    record = benchmark("--run", "own:prior=inf")
    assert record["results"][0]["parameters"] == {"prior": "inf"}
