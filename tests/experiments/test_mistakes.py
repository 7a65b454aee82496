"""What the room refuses: the kind of error, and the argument that it names."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ramen import scoring
from ramen.cli import app
from ramen.experiments.experiment import Experiment, plan
from ramen.experiments.presets import load_preset
from ramen.experiments.store import write_result
from ramen.experiments.tune import load_spaces, plan_search
from ramen.experiments.variations import parse_variation

BASE = Experiment("mint", "ViT-B-32/openai", "cifar10c", "DATA", {"severity": 5})
YES, ONE = torch.tensor([True, False]), torch.tensor([True])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": "mintt"}, "'mint'?"),
        ({"parameters": {"rate": 1}}, "'rate'"),
        ({"parameters": {"seed": 1}}, "'seed'"),
        ({"data": "cifar"}, "'cifar'"),
        ({"data_options": {"severty": 5}}, "'severity'?"),
        ({"root": None}, "root"),
        ({"data": "tiny", "data_options": {}}, "root"),
        ({"protocol": "mixd"}, "'mixed'?"),
        ({"protocol_parameters": {"length": 3}}, "'length'"),
        ({"seed": -1}, "seed"),
        ({"batch": 0}, "batch"),
        ({"batch": 7, "window": 6}, "window"),
        ({"dtype": "half"}, "dtype"),
        ({"templates": "seven"}, "templates"),
    ],
)
def test_settings_of_an_experiment(change, named):
    with pytest.raises(ValueError) as error:
        dataclasses.replace(BASE, **change)
    assert named in str(error.value)


def vary(text, method="ramen"):
    return parse_variation(text, plan([method], data="cifar100c", root="DATA")[0])


def planned(*settings):
    return plan(["ramen", "tent"], settings=settings)


@pytest.mark.parametrize(
    ("call", "kind", "named"),
    [
        (lambda: planned("tpk=2"), ValueError, "'topk'"),
        (lambda: planned("tent.topk=2"), ValueError, "'topk'"),
        (lambda: planned("mint.lr=2"), ValueError, "'mint'"),
        (lambda: planned("mnt.lr=2"), ValueError, "'mnt'"),
        (lambda: planned("topk"), ValueError, "--set"),
        (lambda: planned("topk=1", "topk=2"), ValueError, "topk"),
        (lambda: planned("seed=1"), ValueError, "--seed"),
        (lambda: plan(["ramen"], data="arrays", root="x.npz"), ValueError, "model"),
        (lambda: load_preset("cifar10"), ValueError, "'cifar10c'"),
        (lambda: load_preset("no.toml"), ValueError, "no.toml"),
        (lambda: vary("topkk"), ValueError, "'topk'"),
        (lambda: vary("capacity", "tent"), ValueError, "'capacity'"),
        (lambda: vary("ablation", "tent"), ValueError, "ramen"),
        (lambda: vary("codec"), ValueError, "--vary codec"),
        (lambda: vary("topk=5"), ValueError, "two values"),
        (lambda: vary("topk="), ValueError, "two values"),
        (lambda: vary("seed=1,2"), ValueError, "'seed'"),
        (lambda: vary("ablation=1,2"), ValueError, "'ablation'"),
        (lambda: load_spaces(Path("nothing.toml")), ValueError, "nothing.toml"),
        (lambda: search(seeds=(0, 1)), ValueError, "--seed"),
        (lambda: search(window=200), ValueError, "--window"),
        (lambda: search(settings=["tent.lr=0.5"]), ValueError, "--set tent.lr"),
        (lambda: scoring.changes(YES, ONE), ValueError, "zero_shot"),
        (lambda: scoring.changes(YES.float(), YES), TypeError, "correct"),
        (lambda: scoring.calibration_error(torch.tensor([0.5, 1.5]), YES), ValueError, "confidence"),
        (lambda: scoring.calibration_error(torch.tensor([0.5, math.nan]), YES), ValueError, "confidence"),
        (lambda: scoring.calibration_error(torch.rand(2), YES, 0), ValueError, "bins"),
        (lambda: scoring.calibration_error(torch.rand(0), YES[:0]), ValueError, "confidence"),
        (lambda: scoring.balanced_accuracy(YES, torch.tensor([0])), ValueError, "labels"),
    ],
)
def test_arguments(call, kind, named):
    with pytest.raises(kind) as error:
        call()
    assert named in str(error.value)


def search(**options):
    return plan_search(plan(["tent"], **options), load_spaces(), images=50)


@pytest.mark.parametrize(
    ("read", "content", "named"),
    [
        (load_preset, "[mixed", ""),
        (load_preset, "[mixt.tent]\nlr = 1", "'mixt'"),
        (load_preset, "bach = 3", "'batch'"),
        (load_preset, "[mixed.tant]\nlr = 1", "'tant'"),
        (load_preset, "[mixed.tent]\nrl = 1", "'rl'"),
        (load_preset, "[mixed.tent]\nseed = 1", "'seed'"),
        (load_preset, 'data = "cifar10c"', "data"),
        (load_spaces, "[tent]\nlr = [1.0]", "budget"),
        (load_spaces, "budget = 0", "budget"),
        (load_spaces, "budget = 2\n[tent]\nlr = [1.0]", "tent"),
        (load_spaces, "budget = 2\n[tent]\nlr = [1.0, 1.0]", "tent.lr"),
        (load_spaces, "budget = 2\n[tnet]\nlr = [1.0, 2.0]", "'tnet'"),
        (load_spaces, "budget = 2\n[tent]\nrate = [1.0, 2.0]", "'rate'"),
        (load_spaces, "budget = 2\n[tent]\nseed = [1, 2]", "'seed'"),
        (load_spaces, "budget = 2\n[tent]\nlr = 1.0", "tent"),
        (load_spaces, "budget = 2\ntent = 3", "tent"),
        (load_spaces, "budget =", ""),
    ],
)
def test_a_file_with_a_mistake_is_named(tmp_path, read, content, named):
    (tmp_path / "own.toml").write_text(content)
    with pytest.raises(ValueError) as error:
        read(str(tmp_path / "own.toml"))
    assert "own.toml" in str(error.value)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("result", "kind", "named"),
    [
        ({"schema": 1}, ValueError, "'schema'"),
        ({"a": {"b": [1, math.nan]}}, ValueError, "nan"),
        ({"a": math.inf}, ValueError, "inf"),
        ({"a": np.float32(1)}, TypeError, "float32"),
        ({"a": (1, 2)}, TypeError, "result"),
        ({"a": {1: 2}}, TypeError, "result"),
    ],
)
def test_values_that_would_not_come_back(tmp_path, result, kind, named):
    with pytest.raises(kind) as error:
        write_result(tmp_path / "one.json", result)
    assert named in str(error.value)
    assert not list(tmp_path.iterdir())


VARY = ("sweep", "--vary", "topk=1,2")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", "--method", "tnt"), "'tnt'"),
        (("run", "--set", "tpk=1"), "'topk'"),
        (("run", "--protocol", "mixd"), "'mixd'"),
        (("run", "--data", "cifar10c"), "root"),
        (("run", "--data", "arrays", "--root", "x.npz"), "model"),
        (("run", "--seed", "1", "--seeds", "2"), "--seeds"),
        (("run", "--preset", "cifar"), "'cifar'"),
        (("run", "--data-set", "pictures"), "--data-set"),
        (("run", "--device", "cuda:99"), "CUDA"),
        (("compare",), "--run"),
        (("compare", "nowhere"), "nowhere"),
        (("compare", "--table", "speed", "."), "--table"),
        (("compare", "--format", "html", "."), "--format"),
        (("compare", "--format", "csv", "--table", "all", "."), "--table"),
        (("compare", "--run", "--method", "tnet"), "'tent'"),
        (("compare", "--run", "--jobs", "2", "--ray", "local"), "--ray"),
        (("compare", "--run", "--ray", "local", "--gpus-per-run", "1", "--device", "cpu"), "--gpus-per-run"),
        (("compare", ".", "--jobs", "2"), "--run"),
        ((*VARY, "--gpus-per-run", "0.5"), "--gpus-per-run"),
        ((*VARY, "--ray", "local", "--device", "cuda:1"), "--device"),
        (("sweep", "--vary", "topkk"), "'topk'"),
        (("tune", "--domain", "fog"), "--domain"),
        (("tune", "--data", "pacs", "--root", "x", "--model", "tiny"), "--domain"),
        (("tune", "--method", "tnet"), "'tnet'"),
        (("tune", "--method", "tent", "--set", "lr=1"), "--set tent.lr"),
        (("tune", "--spaces", "nothing.toml"), "nothing.toml"),
        (("tune", "--images", "5"), "--images"),
        (("tune", "--without-labels", "--seed", "1", "--seed", "2"), "--seed"),
        (("tune", "--without-labels", "--ray", "local", "--method", "ensemble"), "--ray"),
        (("demo", "--quick", "--classes", "giraffe,zebra"), "classes"),
        (("demo", "--quick", "--classes", "cat,cat"), "cat"),
        (("demo", "--quick", "--classes", ","), "classes"),
        (("demo", "--quick", "--method", "ramne"), "'ramne'"),
        (("demo", "--quick", "--seed", "-1"), "seed"),
    ],
)
def test_commands_refuse_mistakes_before_anything_is_written(tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)  # where all of them write by default
    found = CliRunner().invoke(app, list(words), env={"COLUMNS": "300", "TERM": "dumb"})
    assert found.exit_code == 2
    assert named in " ".join(found.stderr.replace("│", " ").split())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
