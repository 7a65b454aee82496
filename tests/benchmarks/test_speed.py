"""The speed benchmark on a small tower, and its slow twin against the method."""

import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import ramen
from ramen import testing
from tests.helpers.benchmark_scripts import load_benchmark


@pytest.fixture
def speed(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    module = load_benchmark("speed")
    monkeypatch.setattr(
        module,
        "random_classifier",
        lambda setting, *_, **__: testing.small_classifier(classes=setting.classes),
    )
    return module


def test_every_part_is_timed(speed, monkeypatch, tmp_path):
    """By a clock that calls once: the real one has tests of its own."""
    timed = []

    def call_once(call):
        call()
        timed.append(call)
        return float(len(timed))

    monkeypatch.setattr(speed, "Clock", lambda *_: call_once)
    out = tmp_path / "speed.json"
    sizes = ["--classes", "3", "--capacity", "4", "--topk", "3", "--batch", "5"]
    words = ["--setting", "cifar10c", *sizes, "--repeats", "1", "--rounds", "1", "--plain-loop"]
    monkeypatch.setattr("sys.argv", ["speed.py", *words, "--out", str(out)])
    speed.main()
    (setting,) = json.loads(out.read_text())["settings"].values()
    rows = {row["what"]: row for row in setting["rows"]}
    (own_size,) = [row for name, row in rows.items() if name.startswith("forward") and "batch 8" in name]
    assert own_size["forwards"] == rows["forward, the module's own"]["forwards"] == 1
    assert rows.keys() >= {
        "ramen, a plain loop, batch 5",
        "ramen, sign",
        "ramen, fp16, cpu",
        "ramen, sign, split",
        "ramen, sign, split, not overlapped",
        "ramen, sign, batch 8",
        "ramen, sign, classes 12",
        "tent",
    }
    assert rows["ramen, sign"]["memory_bytes"] < rows["ramen, fp16"]["memory_bytes"]
    assert set(rows["ramen, sign"]["stages"]) >= {"forward and backward", "select", "aggregate"}
    stages = [stage for row in rows.values() for stage in row.get("stages", ())]
    assert len(timed) == len(rows) + len(stages)


def test_rows_are_speeds_and_multiples_of_the_last_reference(speed):
    """By a clock that says what a call takes: the numbers of the table can be worked out by hand."""
    arguments = SimpleNamespace(device="cpu", dtype="float32", repeats=1, rounds=1)
    added = []
    bench = speed.Bench(
        speed.Setting("", 3, 4, 2, 5), arguments, Console(quiet=True), lambda: added.append(len(bench.rows))
    )
    bench.clock = lambda call: call()
    bench.add("forward", lambda: 20.0, 10, reference=True)  # 2 ms an image
    bench.add("slow", lambda: 30.0, 5, memory_bytes=7)  # 6 ms an image
    bench.add("forward, batch 1", lambda: 3.0, 1, reference=True)
    bench.add("slow, batch 1", lambda: 12.0, 1)
    names = ("what", "milliseconds", "images_a_second", "forwards")
    assert [tuple(row[name] for name in names) for row in bench.rows] == [
        ("forward", 20.0, 500.0, 1.0),
        ("slow", 30.0, pytest.approx(166.67, abs=0.01), 3.0),
        ("forward, batch 1", 3.0, pytest.approx(333.33, abs=0.01), 1.0),
        ("slow, batch 1", 12.0, pytest.approx(83.33, abs=0.01), 4.0),
    ]
    assert bench.rows[1]["memory_bytes"] == 7
    assert added == [1, 2, 3, 4]


def test_a_run_that_is_cut_off_keeps_what_it_measured(speed, monkeypatch, tmp_path):
    out = tmp_path / "speed.json"
    words = ["--setting", "cifar10c", "--capacity", "4", "--topk", "3", "--batch", "2", "--repeats", "1"]
    monkeypatch.setattr("sys.argv", ["speed.py", *words, "--what", "codecs", "--out", str(out)])
    slow, full_ramen = [], speed.full_ramen

    def cut_off(classifier, setting, **parameters):
        slow.append(parameters["codec"])
        if len(slow) == 3:
            raise KeyboardInterrupt
        return full_ramen(classifier, setting, **parameters)

    monkeypatch.setattr(speed, "full_ramen", cut_off)
    with pytest.raises(KeyboardInterrupt):
        speed.main()
    (setting,) = json.loads(out.read_text())["settings"].values()
    assert [row["what"] for row in setting["rows"]] == ["ramen, fp32", "ramen, fp16"]


def test_results_are_shown_as_markdown(speed, monkeypatch, tmp_path, capsys):
    def row(what, milliseconds, images=100, **facts):
        speeds = {"milliseconds": milliseconds, "images_a_second": 1000 * images / milliseconds}
        return {"what": what, **speeds, "forwards": 1.0, "peak_bytes": None, **facts}

    plain = row("forward, the module's own", 12.5)
    compiled = row("forward, torch.compile, batch 100", 10.0)
    step = row("ramen", 25.0, memory_bytes=2**20, stages={"select": 0.25})
    of_one = row("ramen, batch 1", 2.0, images=1)

    def shown(rows):
        setting = vars(speed.SETTINGS["cifar100c"])
        path = tmp_path / "speed.json"
        path.write_text(json.dumps({"settings": {"cifar100c": {"setting": setting, "rows": rows}}}))
        monkeypatch.setattr("sys.argv", ["speed.py", "--show", str(path)])
        speed.main()
        return capsys.readouterr().out

    page = shown([plain, compiled, step, of_one])
    assert "cifar100c: ViT-B-16, 100 classes, capacity 750, topk 5, batch 100" in page
    assert "| compiled forwards (batch 100) |" in page
    assert "| ramen | 25.00 | 4,000 | 2.50 |  | 1.00 MiB |" in page
    assert "| forward, the module's own | 12.50 | 8,000 | 1.25 |" in page
    assert "| ramen, batch 1 | 2.00 | 500 | 20.00 |" in page  # per image, with the same reference
    assert "| ramen | 0.25 |" in page
    page = shown([plain, step])
    assert "| uncompiled forwards (batch 100) |" in page
    assert "| ramen | 25.00 | 4,000 | 2.00 |  | 1.00 MiB |" in page
    assert "| ramen | 25.00 | 4,000 |  |  | 1.00 MiB |" in shown([step])


def test_random_images_retrieve_different_entries(speed):
    tower, width = speed.random_tower("ViT-S-32-alt", "cpu")
    images = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        cosines = torch.nn.functional.normalize(tower(images), dim=1)
    assert cosines.shape == (8, width)
    assert (cosines @ cosines.T).fill_diagonal_(0).max() < 0.5


class FakeTime:
    """Stands in for the module ``time``: time passes when a call lets it pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_slow_calls_are_timed_less_often(speed, monkeypatch):
    """Four calls of a second do not count; ten of the 50 fit into a round of ten seconds."""
    clock, calls = FakeTime(), []
    monkeypatch.setattr(speed, "time", clock)

    def second_each() -> None:
        calls.append(clock.now)
        clock.now += 1.0

    assert speed.Clock(torch.device("cpu"), repeats=50, rounds=2, seconds=10.5)(second_each) == 1000
    assert len(calls) == 4 + 2 * 10
    calls.clear()
    assert speed.Clock(torch.device("cpu"), repeats=50, rounds=1, seconds=0.1)(second_each) == 1000
    assert len(calls) == 4 + 1  # one at least
    calls.clear()
    speed.Clock(torch.device("cpu"), repeats=3, rounds=1, seconds=10.5)(second_each)
    assert len(calls) == 4 + 3  # and no more than asked for


def test_the_best_round_counts(speed, monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr(speed, "time", clock)
    durations = iter([9.0, 9.0, 9.0, 1.0, 4.0, 2.0, 1.0, 3.0, 8.0, 8.0])  # four, then three rounds of two

    def varying() -> None:
        clock.now += next(durations)

    assert speed.Clock(torch.device("cpu"), repeats=2, rounds=3, seconds=2.5)(varying) == 2000


def test_the_memory_is_full_before_it_is_timed(speed):
    classifier = testing.small_classifier(classes=3)
    method = speed.full_ramen(classifier, speed.Setting("", 3, 7, 2, 5))
    assert len(method.memory) == 21


def test_the_plain_loop_is_ramen(speed):
    """It is the slow side of a ratio: it must do the same work."""
    classifier = testing.small_classifier(dtype="float64")
    method = ramen.create("ramen", classifier, capacity=4, topk=2, codec="fp32", beta=5.0, lr=1e-2)
    twin = speed.PlainRamen(classifier, 4, 2, beta=5.0, lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    same = []
    for _ in range(6):
        images = torch.randn(6, 3, 32, 32, generator=generator)
        same.append((method.predict(images).logits - twin.predict(images)).abs().amax(1))
    # the twin stores gradients in half precision, where a sign near zero may turn
    assert torch.cat(same).median() < 0.05
