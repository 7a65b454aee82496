"""Which packages are there, whether they load, and whether they fit each other."""

import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator

from ramen import __version__
from ramen.doctor.findings import Finding, brief

PYTHON = (3, 11)
# The package's own requirements: distribution, module, oldest version.
REQUIRED = (
    ("torch", "torch", "2.8"),
    ("torchvision", "torchvision", ""),  # open_clip brings it
    ("open_clip_torch", "open_clip", "3.0"),
    ("ftfy", "ftfy", ""),  # open_clip's tokenizer
    ("numpy", "numpy", "1.26"),
    ("pillow", "PIL", "12.3"),
    ("typer", "typer", "0.12"),
    ("rich", "rich", "13"),
    ("matplotlib", "matplotlib", "3.8"),
)
OPTIONAL = {
    "triton": "faster kernels on NVIDIA devices; torch for CUDA brings it",
    "transformers": "text towers with a tokenizer of their own, as SigLIP has: ramen-tta[transformers]",
    "sentencepiece": "the same",
    "imagecorruptions": "the published photographs of frost; without them frost is generated",
}
_MISMATCH = "torchvision::nms"  # what torch says it lacks when torchvision was built for another torch


def python_version() -> Iterator[Finding]:
    """The interpreter, and this package."""
    text = f"{platform.python_version()} ({sys.executable}), ramen {__version__}"
    if sys.version_info < PYTHON:
        yield Finding("python", "problem", text, f"Python {'.'.join(map(str, PYTHON))} or newer is needed")
    else:
        yield Finding("python", "ok", text)


def required_packages() -> Iterator[Finding]:
    """Whether what is needed is there, new enough, and loads."""
    for distribution, module, oldest in REQUIRED:
        yield _required(distribution, module, oldest)


def _required(distribution: str, module: str, oldest: str) -> Finding:
    wanted = f"{distribution}>={oldest}" if oldest else distribution
    version = installed(distribution)
    if version is None:
        return Finding(distribution, "problem", "not installed", f"pip install '{wanted}'")
    try:
        importlib.import_module(module)
    except Exception as error:  # a package that is half there raises anything
        return _broken(distribution, version, error)
    if _numbers(version) < _numbers(oldest):
        return Finding(distribution, "problem", f"{version} is too old", f"pip install --upgrade '{wanted}'")
    return Finding(distribution, "ok", version)


def _broken(distribution: str, version: str, error: Exception) -> Finding:
    if _MISMATCH in str(error):
        return Finding(
            distribution,
            "problem",
            f"{version} does not load: torchvision and torch do not fit each other ({brief(error, 120)}); "
            f"torchvision {installed('torchvision')} was built for {_torch_of_torchvision()}, here is torch "
            f"{installed('torch')}",
            "install both again, together, from the same place: "
            "pip install --force-reinstall torch torchvision",
        )
    advice = f"pip install --force-reinstall '{distribution}'"
    return Finding(distribution, "problem", f"{version} does not load: {brief(error)}", advice)


def _torch_of_torchvision() -> str:
    """The torch that torchvision states it needs."""
    try:
        needs = importlib.metadata.requires("torchvision") or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    found = (need.partition(";")[0].replace(" ", "") for need in needs if re.match(r"torch\b", need))
    return next(found, "another torch")


def torch_and_torchvision() -> Iterator[Finding]:
    """Whether torchvision's operators are known to torch; open_clip needs them to load."""
    import torch

    try:
        import torchvision  # type: ignore[import-untyped]

        torch.ops.torchvision.nms  # noqa: B018 - looking it up is the test
        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except Exception as error:
        mismatch = _MISMATCH if _MISMATCH in str(error) else f"{_MISMATCH} fails: {error}"
        yield _broken("torchvision", installed("torchvision") or "-", RuntimeError(mismatch))
        return
    yield Finding("torch and torchvision", "ok", "fit each other")


def optional_packages() -> Iterator[Finding]:
    """What may be there beside."""
    for distribution, purpose in OPTIONAL.items():
        text = installed(distribution) or f"not installed, not needed: {purpose}"
        yield Finding(distribution, "ok", text)


def installed(distribution: str) -> str | None:
    """The version of a distribution, None if it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
