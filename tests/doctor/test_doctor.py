"""``ramen doctor``: what it reports when all is well, and each check when something is broken."""

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from typer.testing import CliRunner

from ramen import doctor, testing
from ramen.cli import app
from ramen.doctor import Finding, examine
from ramen.methods.ramen import Ramen
from ramen.models import names as model_names
from ramen.models.classifier import ZeroShotClassifier
from tests.helpers.tiny_models import TINY_VIT, add_tiny_model


def finding_about(about, check):
    """The one finding of a check that is about something."""
    (finding,) = [finding for finding in examine(checks=(check,)) if finding.about == about]
    return finding


def raise_always(error):
    def fail(*_, **__):
        raise error

    return fail


def test_here_everything_works():
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["problem"] == 0
    about = {finding["about"]: finding for finding in found["findings"]}
    assert {"python", "torch", "torchvision", "open_clip_torch", "pillow", "ray"} <= about.keys()
    assert {"threads", "memory", "tiny model", "zero-shot", "ramen", "speed"} <= about.keys()
    assert about["torch"]["text"] == torch.__version__.partition("+")[0]
    text = CliRunner().invoke(app, ["doctor"]).output
    assert text.splitlines()[-1].startswith("problems: 0, warnings: ")


def test_a_broken_check_stops_no_other():
    def broken_thing():
        yield Finding("half", "ok", "fine so far")
        raise RuntimeError("no\nway")

    def needs_a_package():
        raise ModuleNotFoundError("No module named 'torch'")
        yield

    def last():
        yield Finding("last", "warning", "slow", "hurry")

    found = list(examine(checks=(broken_thing, needs_a_package, last)))
    assert [(one.about, one.level) for one in found] == [
        ("half", "ok"),
        ("broken thing", "problem"),
        ("needs a package", "warning"),
        ("last", "warning"),
    ]
    assert "RuntimeError: no way" in found[1].text


def test_without_torch_it_still_reports():
    code = "import sys; sys.modules['torch'] = None\nfrom ramen.cli import app\napp(['doctor', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 1, done.stderr
    levels = {finding["about"]: finding["level"] for finding in json.loads(done.stdout)["findings"]}
    assert levels["torch"] == "problem"
    assert levels["numpy"] == levels["tiny model"] == "ok"
    assert levels["self test"] == "warning"


def test_an_old_python(monkeypatch):
    monkeypatch.setattr(platform, "python_version", lambda: "3.10.1")
    finding = finding_about("python", doctor.python_version)
    assert finding.level == "problem"
    assert "3.11" in finding.advice


@pytest.mark.parametrize(
    ("version", "level"),
    [("2.7.1+cu128", "problem"), ("2.8", "ok"), ("2.8.0", "ok"), ("2.10.0", "ok"), ("3.0a1", "ok")],
)
def test_versions(monkeypatch, version, level):
    known = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version if name == "torch" else known(name)
    )
    finding = finding_about("torch", doctor.required_packages)
    assert finding.level == level
    assert version in finding.text
    assert ("torch>=2.8" in finding.advice) == (level == "problem")


def test_packages_that_are_not_installed(monkeypatch):
    monkeypatch.setattr(
        importlib.metadata, "version", raise_always(importlib.metadata.PackageNotFoundError("none"))
    )
    assert finding_about("numpy", doctor.required_packages).level == "problem"
    found = list(examine(checks=(doctor.optional_packages,)))
    assert [finding.about for finding in found] == list(doctor.OPTIONAL)
    assert all(finding.level == "ok" for finding in found)


def test_packages_that_do_not_load(monkeypatch):
    error = OSError("libcudart.so.12: cannot open")
    monkeypatch.setattr(importlib, "import_module", raise_always(error))
    finding = finding_about("numpy", doctor.required_packages)
    assert finding.level == "problem"
    assert "libcudart.so.12" in finding.text
    assert "numpy" in finding.advice


@pytest.mark.parametrize("loads", [True, False], ids=["loads", "does not load"])
def test_torchvision_of_another_torch(monkeypatch, loads):
    error = RuntimeError("operator torchvision::nms does not exist")
    if loads:
        monkeypatch.setattr(torchvision.ops, "nms", raise_always(error))
    else:
        monkeypatch.setattr(importlib, "import_module", raise_always(error))
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda name: ["numpy", "torch (==2.8.0)", "torchvision"]
    )
    finding = next(one for one in doctor.required_packages() if one.about == "torchvision")
    assert finding.level == "problem"
    assert "torch(==2.8.0)" in finding.text
    assert "torch torchvision" in finding.advice


def test_devices(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    driver = tmp_path / "version"
    assert next(doctor.devices(driver)).level == "ok"
    driver.touch()
    assert next(doctor.devices(driver)).level == "warning"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**30, 2**31))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Some GPU")
    assert finding_about("cuda:0", doctor.devices).text == "Some GPU, 1.00 GiB of 2.00 GiB free"


@pytest.mark.parametrize(
    ("threads", "setting", "level"),
    [(1, None, "ok"), (2**20, None, "warning"), (1, "1000000", "warning"), (1, "1", "ok")],
)
def test_threads(monkeypatch, threads, setting, level):
    for name in doctor.THREADS:
        monkeypatch.delenv(name, raising=False)
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    finding = finding_about("threads", doctor.threads)
    assert finding.level == level
    assert ("OMP_NUM_THREADS=" in finding.advice) == (level == "warning")


def test_cores_of_a_control_group(monkeypatch):
    read = Path.read_text
    content = "150000 100000"
    monkeypatch.setattr(
        Path, "read_text", lambda self: content if str(self).endswith("cpu.max") else read(self)
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16))
    assert doctor.available_cores() == 2
    content = "max 100000"
    assert doctor.available_cores() == 16


def test_the_tiny_weights(tmp_path):
    assert finding_about("tiny model", doctor.tiny_weights).level == "ok"
    missing = next(doctor.tiny_weights(tmp_path))
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"damaged")
    (tmp_path / "MODEL_CARD.md").write_text(f"| SHA-256 | `{'0' * 64}` |")
    damaged = next(doctor.tiny_weights(tmp_path))
    assert missing.level == damaged.level == "problem"
    assert missing.text != damaged.text


def test_a_refused_batch_is_a_problem(monkeypatch):
    adapt = Ramen.adapt

    def spoilt(self, *given):
        answer = yield from adapt(self, *given)
        answer.usable[2] = False
        return answer

    monkeypatch.setattr(Ramen, "adapt", spoilt)
    finding = finding_about("ramen", doctor.self_test)
    assert finding.level == "problem"
    assert "1 were refused" in finding.text


def test_a_model(tmp_path):
    name = add_tiny_model(tmp_path, "doctor-vit", TINY_VIT)
    found = list(examine(f"random:{name}", checks=()))
    assert found[0].text == (
        "6 norm layers with 384 parameters are adapted: ln_pre (1), transformer.resblocks.*.ln_1 (2), "
        "transformer.resblocks.*.ln_2 (2), ln_post (1); 32x32 pixels"
    )
    assert found[1].text == "fused"
    (finding,) = examine("ViT-B-1/openai", checks=())
    assert finding.level == "problem"
    assert "did you mean" in finding.text


def test_a_layer_that_is_not_adapted_is_reported(monkeypatch):
    tower = testing.small_tower()
    tower.odd = torch.nn.InstanceNorm2d(3, affine=True)
    monkeypatch.setattr(
        model_names, "load_model", lambda *given, **options: ZeroShotClassifier(tower, torch.eye(2, 16))
    )
    found = list(examine("mine", checks=()))
    assert found[-1].level == "warning"
    assert "norm layer 'odd'" in found[-1].text
