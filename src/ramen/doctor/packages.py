"""Which packages are installed, whether they load, and whether their versions match."""

import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator

from ramen import __version__
from ramen.doctor.findings import Finding, brief

PYTHON = (3, 11)
# The package's own requirements: distribution, module, oldest supported version.
REQUIRED = (
    ("torch", "torch", "2.8"),
    ("torchvision", "torchvision", ""),  # a dependency of open_clip
    ("open_clip_torch", "open_clip", "3.0"),
    ("ftfy", "ftfy", ""),  # open_clip's tokenizer
    ("numpy", "numpy", "1.26"),
    ("pillow", "PIL", "12.3"),
    ("typer", "typer", "0.16"),
    ("rich", "rich", "13"),
    ("matplotlib", "matplotlib", "3.8"),
)
OPTIONAL = {
    "triton": "faster kernels on NVIDIA devices; comes with CUDA builds of torch",
    "transformers": "models of transformers, and tokenizers such as SigLIP's: ramen-tta[transformers]",
    "sentencepiece": "the same as transformers",
    "onnxruntime": "ramen export: ramen-tta[export]",
    "ray": "many experiments at once on a cluster: ramen-tta[ray]",
    "imagecorruptions": "the published photographs of frost; without it frost is generated",
}
_MISMATCH = "torchvision::nms"  # the operator that torch misses if torchvision was built for another torch


def python_version() -> Iterator[Finding]:
    """The versions of Python and of this package."""
    text = f"{platform.python_version()} ({sys.executable}), ramen {__version__}"
    if sys.version_info < PYTHON:
        yield Finding("python", "problem", text, f"Python {'.'.join(map(str, PYTHON))} or newer is needed")
    else:
        yield Finding("python", "ok", text)


def required_packages() -> Iterator[Finding]:
    """Whether each required package is installed, new enough, and loads."""
    for distribution, module, oldest in REQUIRED:
        yield _check_required(distribution, module, oldest)


def _check_required(distribution: str, module: str, oldest: str) -> Finding:
    requirement = f"{distribution}>={oldest}" if oldest else distribution
    version = installed(distribution)
    if version is None:
        return Finding(distribution, "problem", "not installed", f"pip install '{requirement}'")
    try:
        importlib.import_module(module)
    except Exception as error:  # a half-installed package may raise anything
        return _does_not_load(distribution, version, error)
    if _numbers(version) < _numbers(oldest):
        advice = f"pip install --upgrade '{requirement}'"
        return Finding(distribution, "problem", f"{version} is too old", advice)
    return Finding(distribution, "ok", version)


def _does_not_load(distribution: str, version: str, error: Exception) -> Finding:
    if _MISMATCH in str(error):
        return Finding(
            distribution,
            "problem",
            f"{version} does not load: torchvision does not match torch ({brief(error, 120)}); torchvision "
            f"{installed('torchvision')} was built for {_torch_of_torchvision()}, installed is torch "
            f"{installed('torch')}",
            "reinstall both together from the same index: pip install --force-reinstall torch torchvision",
        )
    advice = f"pip install --force-reinstall '{distribution}'"
    return Finding(distribution, "problem", f"{version} does not load: {brief(error)}", advice)


def _torch_of_torchvision() -> str:
    """The torch version that torchvision requires."""
    try:
        needs = importlib.metadata.requires("torchvision") or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    found = (need.partition(";")[0].replace(" ", "") for need in needs if re.match(r"torch\b", need))
    return next(found, "another torch")


def torch_and_torchvision() -> Iterator[Finding]:
    """Whether torch knows torchvision's operators, without which open_clip does not load."""
    import torch

    try:
        import torchvision

        torch.ops.torchvision.nms  # noqa: B018 - looking it up is the test
        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except Exception as error:
        mismatch = _MISMATCH if _MISMATCH in str(error) else f"{_MISMATCH} fails: {error}"
        yield _does_not_load("torchvision", installed("torchvision") or "-", RuntimeError(mismatch))
        return
    yield Finding("torch and torchvision", "ok", "match")


def optional_packages() -> Iterator[Finding]:
    """The optional packages, and what each is good for."""
    for distribution, purpose in OPTIONAL.items():
        text = installed(distribution) or f"not installed, not needed: {purpose}"
        yield Finding(distribution, "ok", text)


def installed(distribution: str) -> str | None:
    """The version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
