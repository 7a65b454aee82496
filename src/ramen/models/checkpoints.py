"""Weights from files of any of the usual formats; nothing in a file is ever executed.

safetensors files hold numbers alone. Files of ``torch.save`` are read with ``weights_only=True``. TorchScript
archives, the format in which OpenAI distributes CLIP, hold a program and its weights. Here the weights are
read, with stand-ins for all that their pickle names (``ramen.utils.pickles``); the program is not executed.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramen.utils.pickles import Function, Sealed, read_pickle

_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "module")  # of training programs
_STORAGES = {
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.DoubleStorage": torch.float64,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file on the CPU, by name."""
    if not path.is_file():
        raise ValueError(f"pretrained: {path} is not a file")
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if is_torchscript(path):
        return read_torchscript(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        what = " ".join(str(error).split())[:300]
        raise ValueError(f"pretrained: {path} cannot be read as weights alone: {what}") from None
    weights = _state_dict(content)
    if not weights:
        raise ValueError(f"pretrained: {path} holds no weights by name, got {type(content).__name__}")
    return weights


def read_safetensors(path: Path, argument: str = "pretrained") -> dict[str, Tensor]:
    """The tensors of a safetensors file; an error names the argument that it was given as."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{argument}: {path} cannot be read: {error}") from None


def _state_dict(content: object) -> dict[str, Tensor]:
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        return {}
    weights = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if weights and all(name.startswith("module.") for name in weights):  # of DistributedDataParallel
        weights = {name.removeprefix("module."): value for name, value in weights.items()}
    return weights


# -- TorchScript ------------------------------------------------------------------------------------------


def is_torchscript(path: Path) -> bool:
    """Whether a file is a TorchScript archive."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def uses_quick_gelu(path: Path) -> bool:
    """Whether the program of a TorchScript archive has the constant of that activation; it is only read."""
    with zipfile.ZipFile(path) as archive:
        programs = [name for name in archive.namelist() if "/code/" in name and name.endswith(".py")]
        if any(b"1.702" in archive.read(name) for name in programs):
            return True
    found: dict[str, Tensor] = {}
    for number, constant in enumerate(_unpickle(path, "constants")):
        _collect(constant, str(number), found)
    return any(value.numel() == 1 and abs(float(value) - 1.702) < 1e-3 for value in found.values())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """The tensors of a TorchScript archive, by the names that its module has for them."""
    weights: dict[str, Tensor] = {}
    _collect(_unpickle(path, "data"), "", weights)
    if not weights:
        raise ValueError(f"pretrained: {path} is a TorchScript archive without weights")
    return weights


def _unpickle(path: Path, part: str) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            (entry,) = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith(f"/{part}.pkl")]
            module = type(
                "Module", (_Module,), {}
            )  # one of its own: a pickle may change a class that it names

            def stand_in(name: str) -> Any:
                if name.startswith("__torch__."):  # a class of the archive's program
                    return module
                if name in _STORAGES:
                    return Sealed(_STORAGES[name])
                if name in _FUNCTIONS:
                    return Function(_FUNCTIONS[name])
                raise ValueError(f"it asks for {name}, which weights do not need")

            stored = _Storages(archive, f"{entry.removesuffix('.pkl')}/")
            return read_pickle(archive.read(entry), stand_in, stored)
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"pretrained: {path} cannot be read as a TorchScript archive: {error}") from None


def _collect(part: object, prefix: str, found: dict[str, Tensor]) -> None:
    if isinstance(part, Sealed) and isinstance(part.value, Tensor):
        found[prefix] = part.value
    elif isinstance(part, _Module):
        for name, value in part.attributes.items():
            _collect(value, f"{prefix}.{name}" if prefix else str(name), found)


class _Module:
    """A module of the archive's program, of whatever class: its attributes by name."""

    def __new__(cls) -> "_Module":
        made = super().__new__(cls)
        made.attributes = {}
        return made

    attributes: dict[str, Any]

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise ValueError("it sets the state of a module to something that is not its attributes")
        self.attributes = state


class _Storages:
    """The numbers of tensors, each storage in a file of the archive."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self._archive, self._folder = archive, folder
        self._read: dict[str, Sealed] = {}

    def __call__(self, identity: Any) -> Sealed:
        kind, type_, key, _, count = identity
        if kind != "storage" or not isinstance(type_, Sealed) or not isinstance(type_.value, torch.dtype):
            raise ValueError(f"it refers to {identity!r}")
        if key not in self._read:
            entry = self._archive.getinfo(f"{self._folder}{key}")
            expected = int(count) * type_.value.itemsize
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size < expected:
                raise ValueError(f"{entry.filename} has {entry.file_size} bytes, not {expected}")
            data = bytearray(self._archive.read(entry))
            none = torch.empty(0, dtype=type_.value)
            self._read[key] = Sealed(torch.frombuffer(data, dtype=type_.value) if data else none)
        return self._read[key]


def _rebuilt(storage: object, offset: int, size: Any, stride: Any, *_: object) -> Sealed:
    if not isinstance(storage, Sealed) or not isinstance(storage.value, Tensor):
        raise ValueError("a tensor has no storage")
    return Sealed(storage.value.as_strided(tuple(size), tuple(stride), offset).clone())


def _first(value: Any, *_: object) -> Any:
    return value


# What the pickle of an archive calls; the lists are only given a type.
_FUNCTIONS = {
    "torch._utils._rebuild_tensor_v2": _rebuilt,
    "collections.OrderedDict": lambda *items: dict(*items),  # of the hooks of a parameter: empty
    "torch.jit._pickle.restore_type_tag": _first,
    **{f"torch.jit._pickle.build_{kind}list": _first for kind in ("int", "double", "bool", "tensor")},
}
