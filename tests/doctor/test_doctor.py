"""``ramen doctor``: what it says when all is well, and each check when something is broken."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ramen import doctor, testing
from ramen.cli import app
from ramen.doctor import machine, packages, trial, weights
from ramen.doctor.findings import Finding, findings_of
from ramen.methods.ramen import Ramen
from ramen.models import by_name
from ramen.models.classifier import ZeroShotClassifier
from tests.helpers.tiny_models import TINY_VIT, add_tiny_model

ROOT = Path(__file__).resolve().parents[2]


def finding_about(about, check):
    """The one finding of a check that is about something."""
    (finding,) = [finding for finding in findings_of(check) if finding.about == about]
    return finding


def raise_always(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.fixture
def two_checks(monkeypatch):
    """Two checks that pass, in place of all."""

    def first():
        yield Finding("first", "ok", "1.0")

    def second():
        yield Finding("second", "warning", "slow", "hurry")

    monkeypatch.setattr(doctor, "CHECKS", (first, second))


# -- the whole --------------------------------------------------------------------------------------


def test_here_everything_works():
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0, shown.output
    for word in (
        "python",
        "torch",
        "open_clip_torch",
        "threads",
        "tiny model",
        "zero-shot",
        "speed",
        "imagecorr",
    ):
        assert word in shown.output
    assert "problems: 0" in shown.output


@pytest.mark.usefixtures("two_checks")
def test_machine_output():
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == {
        "ok": 1,
        "warning": 1,
        "problem": 0,
        "findings": [
            {"about": "first", "level": "ok", "text": "1.0", "advice": ""},
            {"about": "second", "level": "warning", "text": "slow", "advice": "hurry"},
        ],
    }


@pytest.mark.usefixtures("two_checks")
def test_a_broken_check_stops_no_other(monkeypatch):
    def broken_thing():
        yield Finding("half", "ok", "fine so far")
        raise RuntimeError("no\nway")

    def needs_a_package():
        raise ModuleNotFoundError("No module named 'torch'")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (broken_thing, needs_a_package, *doctor.CHECKS))
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 1
    lines = shown.output.splitlines()
    assert lines[0].split() == ["ok", "half:", "fine", "so", "far"]
    assert "problem  broken thing: the check failed: RuntimeError: no way" in lines[1]
    assert "warning  needs a package: could not be checked: ModuleNotFoundError" in lines[2]
    assert "ok       first: 1.0" in lines[3]
    assert lines[-1] == "problems: 1, warnings: 2"


def test_without_torch_it_still_reports():
    code = "import sys; sys.modules['torch'] = None\nfrom ramen.cli import app\napp(['doctor', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)["findings"]
    levels = {finding["about"]: finding["level"] for finding in found}
    assert levels["torch"] == "problem"
    assert levels["numpy"] == levels["disk"] == levels["tiny model"] == "ok"
    assert levels["self test"] == "warning"


# -- packages ---------------------------------------------------------------------------------------


def test_the_oldest_versions_are_those_of_the_package():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {name: oldest for name, _, oldest in packages.REQUIRED if oldest}
    assert required == dict(dependency.split(">=") for dependency in stated["dependencies"])
    assert stated["requires-python"] == f">={'.'.join(map(str, packages.PYTHON))}"


def test_an_old_python(monkeypatch):
    Version = namedtuple("Version", "major minor micro")
    monkeypatch.setattr(packages.sys, "version_info", Version(3, 10, 1))
    finding = finding_about("python", packages.python_version)
    assert (finding.level, finding.advice) == ("problem", "Python 3.11 or newer is needed")


@pytest.mark.parametrize(
    ("version", "level", "text"),
    [(None, "problem", "not installed"), ("2.7.1+cu128", "problem", "2.7.1+cu128 is too old")]
    + [(version, "ok", version) for version in ("2.8", "2.8.0", "2.10.0", "3.0a1")],
)
def test_versions(monkeypatch, version, level, text):
    monkeypatch.setattr(packages, "installed", lambda name: version)
    finding = packages._check_required("torch", "torch", "2.8")
    assert (finding.level, finding.text) == (level, text)
    assert ("torch>=2.8" in finding.advice) == (level == "problem")


def test_a_package_that_does_not_load(monkeypatch):
    monkeypatch.setattr(
        packages.importlib, "import_module", raise_always(OSError("libcudart.so.12: cannot open"))
    )
    finding = finding_about("numpy", packages.required_packages)
    assert finding.level == "problem"
    assert "does not load: OSError: libcudart.so.12" in finding.text
    assert finding.advice == "pip install --force-reinstall 'numpy'"


def test_torchvision_of_another_torch(monkeypatch):
    error = RuntimeError("operator torchvision::nms does not exist")
    monkeypatch.setattr(packages.importlib, "import_module", raise_always(error))
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["numpy", "torch (==2.8.0)", "pillow"])
    finding = finding_about("torchvision", packages.required_packages)
    assert finding.level == "problem"
    assert "torchvision does not match torch" in finding.text
    assert "was built for torch(==2.8.0), installed is torch" in finding.text
    assert "together" in finding.advice
    # torchvision loads, but its operators do not work
    monkeypatch.undo()
    import torchvision

    monkeypatch.setattr(torchvision.ops, "nms", raise_always(NotImplementedError("no kernel")))
    finding = finding_about("torchvision", packages.torch_and_torchvision)
    assert finding.level == "problem"
    assert "no kernel" in finding.text


def test_optional_packages_are_no_problem(monkeypatch):
    monkeypatch.setattr(packages, "installed", lambda name: None)
    found = list(findings_of(packages.optional_packages))
    assert [finding.about for finding in found] == list(packages.OPTIONAL)
    assert all(finding.level == "ok" and "not needed" in finding.text for finding in found)


# -- the machine ------------------------------------------------------------------------------------


def test_devices(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(machine, "_NVIDIA", tmp_path / "none")
    assert finding_about("cuda", machine.devices).level == "ok"
    monkeypatch.setattr(machine, "_NVIDIA", tmp_path)
    assert "sees no device" in finding_about("cuda", machine.devices).text
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**30, 2**31))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Some GPU")
    assert finding_about("cuda:0", machine.devices).text == "Some GPU, 1.00 GiB of 2.00 GiB free"


@pytest.mark.parametrize(
    ("threads", "setting", "level"),
    [(2, None, "ok"), (3, None, "warning"), (1, "8", "warning"), (1, "1", "ok")],
)
def test_threads(monkeypatch, threads, setting, level):
    for name in machine.THREAD_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    finding = finding_about("threads", machine.threads)
    assert finding.level == level
    assert ("OMP_NUM_THREADS=2" in finding.advice) == (level == "warning")


def test_cores_of_a_control_group(monkeypatch):
    read = Path.read_text
    content = "150000 100000"
    monkeypatch.setattr(
        Path, "read_text", lambda self: content if str(self).endswith("cpu.max") else read(self)
    )
    monkeypatch.setattr("ramen.data.make.worker_processes.available_cores", lambda: 16)
    assert machine.available_cores() == 2
    content = "max 100000"
    assert machine.available_cores() == 16


@pytest.mark.parametrize(
    ("free", "level"), [(None, "ok"), (machine.LITTLE_MEMORY - 1, "warning"), (2**40, "ok")]
)
def test_memory(monkeypatch, free, level):
    monkeypatch.setattr("ramen.utils.devices.free_bytes", lambda device: free)
    assert finding_about("memory", machine.memory).level == level


def test_disk(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Usage = namedtuple("Usage", "total used free")
    for free, level in ((2**20, "warning"), (2**40, "ok")):
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda path, free=free: Usage(2**50, 0, free))
        assert finding_about("disk", machine.disk).level == level
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written to" in finding_about("disk", machine.disk).text


# -- weights ----------------------------------------------------------------------------------------


def test_the_tiny_weights(monkeypatch, tmp_path):
    assert finding_about("tiny model", weights.tiny_weights).level == "ok"
    monkeypatch.setattr(weights, "_tiny_folder", lambda: tmp_path)
    finding = finding_about("tiny model", weights.tiny_weights)
    assert (finding.level, finding.advice) == ("problem", "reinstall ramen-tta")
    assert "is missing" in finding.text
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"damaged")
    (tmp_path / "MODEL_CARD.md").write_text(f"| SHA-256 | `{'0' * 64}` |")
    assert "is damaged" in finding_about("tiny model", weights.tiny_weights).text


def test_weights_of_presets(monkeypatch, tmp_path):
    cached = {("timm/vit_base_patch16_clip_224.openai", "open_clip_model.safetensors")}
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda *key: "a file" if key in cached else None
    )
    monkeypatch.setattr(weights, "_url_cache", lambda: tmp_path)
    (tmp_path / "RN101.pt").write_bytes(b"")
    here, missing = findings_of(weights.pretrained_weights)
    assert here.level == "ok"
    assert here.text.startswith("downloaded: RN101/openai, ViT-B-16/openai (in ")
    assert missing.level == "warning"
    assert "ViT-B-32/openai" in missing.text
    assert "ViT-B-16" not in missing.text


# -- trial runs --------------------------------------------------------------------------------------


def test_wrong_answers_are_a_problem(monkeypatch):
    assert trial._zero_shot_finding(24, 24).level == "ok"
    finding = trial._zero_shot_finding(20, 24)
    assert (finding.level, finding.text) == ("problem", "20 of 24 drawings are classified correctly")


def test_a_refused_batch_is_a_problem(monkeypatch):
    adapt = Ramen.adapt

    def spoilt(self, *given):
        answer = adapt(self, *given)
        answer.usable[2] = False
        return answer

    monkeypatch.setattr(Ramen, "adapt", spoilt)
    finding = finding_about("ramen", trial.self_test)
    assert finding.level == "problem"
    assert finding.text.startswith("1 of 24 images were refused")


def test_a_slow_machine():
    assert trial._speed_finding(1.5, 9.0).level == "ok"
    finding = trial._speed_finding(26.0, 90.0)
    assert finding.level == "warning"
    assert "threads" in finding.advice


def test_a_model(tmp_path):
    name = add_tiny_model(tmp_path, "doctor-vit", TINY_VIT)
    found = list(trial.model_check(f"random:{name}"))
    assert found[0].text == (
        "6 norm layers with 384 parameters are adapted: ln_pre (1), transformer.resblocks.*.ln_1 (2), "
        "transformer.resblocks.*.ln_2 (2), ln_post (1); 32x32 pixels"
    )
    assert found[1].text == "fused"
    (finding,) = trial.model_check("ViT-B-1/openai")
    assert finding.level == "problem"
    assert "did you mean" in finding.text


def test_a_layer_that_is_not_adapted_is_reported(monkeypatch):
    tower = testing.small_tower()
    tower.odd = torch.nn.InstanceNorm2d(3, affine=True)

    def load(name, classes):
        return ZeroShotClassifier(tower, torch.eye(2, 16))

    monkeypatch.setattr(by_name, "load_model", load)
    found = list(trial.model_check("mine"))
    assert found[-1].level == "warning"
    assert "norm layer 'odd'" in found[-1].text
