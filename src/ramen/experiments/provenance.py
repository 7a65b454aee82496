"""Everything that is needed to repeat a run, in addition to the experiment itself."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

import ramen
from ramen.data.dataset import Dataset
from ramen.data.streams.stream import Stream
from ramen.experiments.experiment import Experiment
from ramen.experiments.values import plain
from ramen.methods._method import Method
from ramen.models.classifier import ZeroShotClassifier

_PACKAGES = {
    "torchvision": "torchvision",
    "open_clip": "open_clip_torch",
    "numpy": "numpy",
    "pillow": "pillow",
}


def now() -> str:
    """The current time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def block(classifier: ZeroShotClassifier, stream: Stream, root: str | None, started: str) -> dict[str, Any]:
    """What every record says of where its numbers come from."""
    return {
        "classifier": classifier_block(classifier),
        "stream": plain(stream.identity()),
        "dataset": dataset_block(stream.dataset, root),
        "versions": versions(),
        "hardware": hardware(classifier.device),
        "commit": commit(),
        "started": started,
        "finished": now(),
    }


def classifier_block(classifier: ZeroShotClassifier) -> dict[str, Any]:
    """The model, its prompts and its preprocessing."""
    encoder = classifier.encoder
    return {
        "classes": classifier.num_classes,
        "class_names": _hash(list(classifier.classes)),
        "weights": f"sha256:{classifier.fingerprint()['encoder']}",
        "logit_scale": classifier.logit_scale,
        "templates": list(classifier.templates or ()),
        "dtype": str(classifier.dtype).removeprefix("torch."),
        "preprocess": plain(classifier.preprocess.settings()) if classifier.can_preprocess else None,
        "affine_parameters": len(classifier.encoder.base),
        "path": "fused" if encoder.fused else f"plain: {encoder.plain_reason}",  # they agree to rounding
    }


def dataset_block(dataset: Dataset, root: str | None) -> dict[str, Any]:
    """The images of a data set."""
    digest = hashlib.sha256()
    for domain in dataset.domains:
        digest.update(domain.name.encode() + b"\0" + domain.labels.astype("<i8").tobytes())
    return {
        "name": dataset.name,
        "root": None if root is None else str(Path(root).expanduser().resolve()),
        "domains": {domain.name: len(domain) for domain in dataset.domains},
        "class_names": _hash(list(dataset.classes)),
        "labels": f"sha256:{digest.hexdigest()}",
        "identity": plain(dataset.identity),
    }


def method_block(experiment: Experiment, method: Method, stream: Stream) -> dict[str, Any]:
    """The method with all of its parameters."""
    return {
        "title": method.info.title,
        **({"origin": dict(method.info.origin)} if method.info.origin else {}),
        "predicts_with": method.info.predicts_with,
        "batch_dependent": method.batch_dependent,
        "reset": reset_policy(stream),
        "parameters": experiment.all_parameters(),
        # what the method chose itself in place of "auto"
        "chosen": {
            name: {"value": plain(method.parameters[name]), "why": why}
            for name, why in sorted(method.parameters.why.items())
        },
    }


def reset_policy(stream: Stream) -> str:
    """When the method is reset, in words."""
    return f"before each of {len(stream.resets)} domains" if stream.resets else "never within the stream"


def hardware(device: torch.device) -> dict[str, Any]:
    """The hardware of a run."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    return {
        "device": str(device),
        "name": name,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
    }


@cache
def versions() -> dict[str, str | None]:
    """Versions of this package and of those that decide its numbers."""
    return {
        "ramen": ramen.__version__,
        "torch": str(torch.__version__),  # with the build, unlike the package's version
        **{name: _version(package) for name, package in _PACKAGES.items()},
        "python": platform.python_version(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """The commit of the checkout that this package is imported from; None if it is installed."""
    folder = Path(ramen.__file__).parent
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # a repository around an installed package is not ours
    head = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if not head else f"{head}+changes" if changed else head


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _hash(names: Sequence[str]) -> str:
    return f"sha256:{hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()}"
