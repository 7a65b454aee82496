"""``ramen doctor``: what is installed, what is missing, what is slow."""

import importlib
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import typer

from ramen import __version__
from ramen.utils.checks import readable_bytes
from ramen.utils.workers import available_cores

Level = Literal["ok", "warning", "problem"]
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}

DISTRIBUTION = "ramen-tta"
MODULES = {"open_clip_torch": "open_clip", "pillow": "PIL"}  # all others: the distribution's own name
INDIRECT = ("torchvision", "ftfy")  # open_clip needs both
OPTIONAL = {
    "triton": "faster kernels on NVIDIA devices; comes with CUDA builds of torch",
    "transformers": "models of transformers, and tokenizers such as SigLIP's: ramen-tta[transformers]",
    "sentencepiece": "the same as transformers",
    "onnxruntime": "ramen export: ramen-tta[export]",
    "ray": "many experiments at once on a cluster: ramen-tta[ray]",
    "imagecorruptions": "the published photographs of frost; without it frost is generated",
}
LITTLE_MEMORY = 2 * 2**30
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
NVIDIA = Path("/proc/driver/nvidia/version")
EXPECTED = 0.9  # on the drawings; normally at most one or two are wrong
SLOW_MS = 25.0  # per image in the tiny model; one core normally needs one or two
_SEED = (2026,)
_MISMATCH = "torchvision::nms"  # the operator that torch misses if torchvision was built for another torch
_TRY_ANOTHER_TORCH = "torch gives wrong results on this machine: try another version"
_TINY = Path(__file__).parent / "models/tiny_clip/weights"  # the module loads torch, which may be broken


@dataclass(frozen=True)
class Finding:
    """The result of checking one thing, and what to do about it."""

    about: str
    level: Level  # "warning": it works, but slowly or not for everything; "problem": it does not work
    text: str
    advice: str = ""


def _judged(about: str, text: str, bad: bool, advice: str, level: Level = "warning") -> Finding:
    return Finding(about, level, text, advice) if bad else Finding(about, "ok", text)


Check = Callable[[], Iterator[Finding]]


def python_version() -> Iterator[Finding]:
    oldest = importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"].removeprefix(">=")
    text = f"{platform.python_version()} ({sys.executable}), ramen {__version__}"
    old = _numbers(platform.python_version()) < _numbers(oldest)
    yield _judged("python", text, old, f"Python {oldest} or newer is needed", "problem")


def required_packages() -> Iterator[Finding]:
    for requirement in (*(importlib.metadata.requires(DISTRIBUTION) or ()), *INDIRECT):
        if "extra ==" not in requirement:
            yield _required(*requirement.replace(" ", "").partition(";")[0].partition(">=")[::2])


def _required(distribution: str, oldest: str) -> Finding:
    requirement = f"{distribution}>={oldest}" if oldest else distribution
    version = _installed(distribution)
    if version is None:
        return Finding(distribution, "problem", "not installed", f"pip install '{requirement}'")
    try:
        module = importlib.import_module(MODULES.get(distribution, distribution.replace("-", "_")))
        if distribution == "torchvision":  # it may load although its operators are for another torch
            torch = importlib.import_module("torch")
            module.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except Exception as error:  # a half-installed package may raise anything
        return _does_not_load(distribution, version, error)
    old = _numbers(version) < _numbers(oldest)
    text = f"{version} is too old" if old else version
    return _judged(distribution, text, old, f"pip install --upgrade '{requirement}'", "problem")


def _does_not_load(distribution: str, version: str, error: Exception) -> Finding:
    if distribution != "torchvision" and _MISMATCH not in str(error):
        advice = f"pip install --force-reinstall '{distribution}'"
        return Finding(distribution, "problem", f"{version} does not load: {_brief(error)}", advice)
    needs = importlib.metadata.requires("torchvision") if _installed("torchvision") else None
    found = (need.partition(";")[0].replace(" ", "") for need in needs or () if re.match(r"torch\b", need))
    text = f"{version} does not load: torchvision does not match torch ({_brief(error, 120)}); it was built "
    text += f"for {next(found, 'another torch')}, installed is torch {_installed('torch')}"
    advice = "reinstall both together from the same index: pip install --force-reinstall torch torchvision"
    return Finding(distribution, "problem", text, advice)


def optional_packages() -> Iterator[Finding]:
    for name, purpose in OPTIONAL.items():
        yield Finding(name, "ok", _installed(name) or f"not installed, not needed: {purpose}")


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def devices(driver: Path = NVIDIA) -> Iterator[Finding]:
    import torch

    for index in range(torch.cuda.device_count()):
        free, total = map(readable_bytes, torch.cuda.mem_get_info(index))
        yield Finding(f"cuda:{index}", "ok", f"{torch.cuda.get_device_name(index)}, {free} of {total} free")
    if not torch.cuda.device_count():
        advice = "there is an NVIDIA driver: install a CUDA build of torch that supports it, and check "
        text = f"torch {torch.__version__} sees no device: everything runs on the CPU"
        yield _judged("cuda", text, driver.exists(), f"{advice}CUDA_VISIBLE_DEVICES")


def threads() -> Iterator[Finding]:
    import torch

    cores, count = available_cores(), torch.get_num_threads()
    given = {name: os.environ[name] for name in THREADS if name in os.environ}
    listed = f" ({', '.join(f'{name}={value}' for name, value in given.items())})" if given else ""
    many = max(count, *(int(value) for value in given.values() if value.isdigit()), 0) > cores
    advice = f"more threads than cores are slow: set OMP_NUM_THREADS={cores}"
    yield _judged("threads", f"{count} threads on {cores} cores{listed}", many, advice)


def memory() -> Iterator[Finding]:
    import torch

    from ramen.utils import devices

    free = devices.free_bytes(torch.device("cpu"))
    text = "the system does not report how much is free" if free is None else f"{readable_bytes(free)} free"
    little = free is not None and free < LITTLE_MEMORY
    yield _judged("memory", text, little, "a large model may not fit: close other programs, lower capacity")


def bfloat16() -> Iterator[Finding]:
    """How fast two blocks of a ViT-B/32 are in the dtypes between which ``--dtype auto`` decides on a CPU."""
    import torch
    from open_clip.transformer import VisionTransformer

    from ramen.encoder.encoder import AffineEncoder
    from ramen.utils.devices import bfloat16_unit

    tower = VisionTransformer(224, 32, width=768, layers=2, heads=12, mlp_ratio=4, output_dim=512)
    images = torch.randn(8, 3, 224, 224)
    milliseconds = {}
    for name in ("float32", "bfloat16"):
        encoder = AffineEncoder(tower, dtype=name)
        milliseconds[name] = _milliseconds(partial(encoder, images), len(images))
    unit = bfloat16_unit()
    chosen = "float32 on this CPU" if unit is None else f"bfloat16 for transformers on this CPU ({unit})"
    measured = ", ".join(f"{value:.1f} ms in {name}" for name, value in milliseconds.items())
    slower = unit is not None and milliseconds["bfloat16"] > milliseconds["float32"]
    text = f"{chosen}; two blocks of a ViT-B/32 take {measured} per image"
    yield _judged("--dtype auto", text, slower, "bfloat16 is slower here: use --dtype float32")


def _milliseconds(call: Callable[[], object], images: int) -> float:
    call()  # a warm-up
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started) / images


def tiny_weights(folder: Path = _TINY) -> Iterator[Finding]:
    """Whether the weights of the tiny model are the ones that its model card describes."""
    try:
        found = sha256((folder / "open_clip_model.safetensors").read_bytes()).hexdigest()
        card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
        wrong, text = f"| SHA-256 | `{found}`" not in card, f"the sha256 of its weights is {found[:12]}"
    except OSError as error:
        wrong, text = True, f"its weights cannot be read: {error}"
    yield _judged("tiny model", text, wrong, f"not its model card's: reinstall {DISTRIBUTION}", "problem")


def self_test() -> Iterator[Finding]:
    """Classify a drawing of every object zero-shot, then as one batch with Ramen."""
    import torch

    from ramen.data.drawings.shapes import OBJECTS
    from ramen.data.drawings.styles import TRAINED
    from ramen.data.drawings.tiny import draw_images
    from ramen.methods._registry import create
    from ramen.models.tiny_clip.model import load_tiny

    names = list(OBJECTS)
    classifier = load_tiny(names)
    pixels = draw_images(names, [next(iter(TRAINED))] * len(names), _SEED).pixels
    images = classifier.preprocess(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    zero_shot, method = create("ensemble", classifier), create("ramen", classifier)
    correct = int((zero_shot.predict(images).labels == torch.arange(len(names))).sum())
    text, wrong = (
        f"{correct} of {len(names)} drawings are classified correctly",
        correct < EXPECTED * len(names),
    )
    yield _judged("zero-shot", text, wrong, _TRY_ANOTHER_TORCH, "problem")
    prediction = method.predict(images)
    refused = int(prediction.fallback.sum())
    infinite = bool(refused) or not prediction.logits.isfinite().all()
    text = f"adapts to a batch of {len(names)} images; {refused} were refused as infinite or NaN"
    yield _judged("ramen", text, infinite, _TRY_ANOTHER_TORCH, "problem")
    ms = [_milliseconds(partial(one.predict, images), len(names)) for one in (zero_shot, method)]
    text = f"{ms[0]:.2f} ms per image with the tiny model, {ms[1]:.2f} ms with Ramen, on the CPU"
    advice = "slow for such a small model: check the number of threads, and what else is running"
    yield _judged("speed", text, ms[0] > SLOW_MS, advice)


def model_check(name: str) -> Iterator[Finding]:
    """Which norm layers of a model's image tower are adapted, and how its forward pass is computed."""
    from ramen.models import names

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            try:
                loaded = names.load_model(name, None, numbered=True)
            except ValueError:  # it brings no classes, or there is no such model
                loaded = names.load_model(name, ["cat", "dog"])
        except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
            yield Finding(name, "problem", f"cannot be loaded: {error}", "see `ramen models list`")
            return
    encoder = loaded.encoder
    # one entry for the same layer of all blocks: transformer.resblocks.*.ln_1
    layers = {piece.layer: re.sub(r"\b\d+\b", "*", piece.layer) for piece in encoder.layout}
    groups = ", ".join(f"{group} ({count})" for group, count in Counter(layers.values()).items())
    size = "x".join(map(str, loaded.image_size or ("any",)))
    counted = f"{len(layers)} norm layers with {len(encoder.base):,} parameters are adapted"
    yield Finding(name, "ok", f"{counted}: {groups}; {size} pixels")
    compilable = f'plain: {encoder.plain_reason}; fused="compile" would compile it'
    yield Finding("path", "ok", "fused" if encoder.fused else compilable)
    for message in (str(warning.message) for warning in caught):
        if "norm layer" in message:
            yield Finding(name, "warning", message)


CHECKS: tuple[Check, ...] = (python_version, required_packages, optional_packages, devices, threads, memory)
CHECKS += (bfloat16, tiny_weights, self_test)


def examine(model: str | None = None, checks: tuple[Check, ...] = CHECKS) -> Iterator[Finding]:
    """Yield the findings of all checks as they are made; a check that fails does not stop the others."""
    named: list[tuple[str, Check]] = [(check.__name__.replace("_", " "), check) for check in checks]
    named += [] if model is None else [("model", partial(model_check, model))]
    for about, check in named:
        try:
            yield from check()
        except ImportError as error:  # required_packages reports the package that does not load
            yield Finding(about, "warning", f"could not be checked: {_brief(error)}")
        except Exception as error:  # anything can be broken on this machine
            yield Finding(about, "problem", f"the check failed: {_brief(error)}")


def _brief(error: BaseException, limit: int = 300) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit else f"{text[:limit]} ..."


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Also check this model: which of its norm layers are adapted.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print findings as JSON; all else goes to standard error.")
    ] = False,
) -> None:
    """Show what is installed, what is missing and what is slow; exits with status 1 on a problem."""
    findings, counts = [], dict.fromkeys(_COLOURS, 0)
    for finding in examine(model):
        findings.append(asdict(finding))
        counts[finding.level] += 1
        if not json_output:
            advice = f"\n{'':8} -> {finding.advice}" if finding.advice else ""
            level = typer.style(f"{finding.level:8}", fg=_COLOURS[finding.level])
            typer.echo(f"{level} {finding.about}: {finding.text}{advice}")
    summary = f"problems: {counts['problem']}, warnings: {counts['warning']}"
    typer.echo(json.dumps({**counts, "findings": findings}, indent=2) if json_output else summary)
    raise typer.Exit(1 if counts["problem"] else 0)
