"""Weights from files of any of the usual formats; nothing in a file is ever executed.

safetensors files hold numbers alone. Files of ``torch.save`` are read with ``weights_only=True``. TorchScript
archives, the format in which OpenAI distributes CLIP, hold a program and its weights. Here the weights are
read, by an interpreter that knows tensors, lists and dictionaries and refuses all else
(``ramen.utils.pickle_instructions``); the program is not executed.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramen.utils.pickle_instructions import PickleInterpreter

_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "module")  # of training programs
_FUNCTIONS = {
    "torch._utils._rebuild_tensor_v2",
    "collections.OrderedDict",
    "torch.jit._pickle.restore_type_tag",
    *(f"torch.jit._pickle.build_{kind}list" for kind in ("int", "double", "bool", "tensor")),
}
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
        return _of_safetensors(path)
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


def _of_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"pretrained: {path} cannot be read: {error}") from None


def _state_dict(content: object) -> dict[str, Tensor]:
    """The weights in what a training program saved."""
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
    constants = [value for value in _unpickle(path, "constants") if isinstance(value, Tensor)]
    return any(value.numel() == 1 and abs(float(value) - 1.702) < 1e-3 for value in constants)


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """The tensors of a TorchScript archive, by the names that its module has for them."""
    weights: dict[str, Tensor] = {}
    _collect(_unpickle(path, "data"), "", weights)
    if not weights:
        raise ValueError(f"pretrained: {path} is a TorchScript archive without weights")
    return weights


def _unpickle(path: Path, part: str) -> Any:
    """What an archive says of its ``data`` or its ``constants``."""
    try:
        with zipfile.ZipFile(path) as archive:
            (entry,) = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith(f"/{part}.pkl")]
            return _ArchiveReader(archive, f"{entry.removesuffix('.pkl')}/").read(archive.read(entry))
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"pretrained: {path} cannot be read as a TorchScript archive: {error}") from None


def _collect(part: object, prefix: str, found: dict[str, Tensor]) -> None:
    if isinstance(part, Tensor):
        found[prefix] = part
    elif isinstance(part, _Module):
        for name, value in part.attributes.items():
            _collect(value, f"{prefix}.{name}" if prefix else str(name), found)


@dataclass
class _Module:
    """A module of the archive's program, of whatever class: its attributes by name."""

    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Name:
    """Something that the archive names; it is never looked up."""

    text: str

    @property
    def is_class_of_the_program(self) -> bool:
        return self.text.startswith("__torch__.")


class _ArchiveReader(PickleInterpreter):
    """Builds numbers, texts, lists, dictionaries, tensors and modules' attributes, and refuses all else."""

    kind = "TorchScript archive"
    further = frozenset({"NEWOBJ", "BINPERSID", "BINFLOAT"})

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__()
        self._archive, self._folder = archive, folder  # where the tensors' numbers are
        self._storages: dict[str, Tensor] = {}

    def named(self, module: str, name: str) -> _Name:
        """A class of the program, a kind of storage, or one of a few functions."""
        found = _Name(f"{module}.{name}")
        if found.is_class_of_the_program or found.text in _FUNCTIONS or found.text in _STORAGES:
            return found
        raise ValueError(f"it asks for {found.text}, which weights do not need")

    def called(self, function: Any, arguments: Any) -> Any:
        """A tensor of its storage, or the list that the function would only give a type."""
        text = function.text if isinstance(function, _Name) else ""
        if text == "torch._utils._rebuild_tensor_v2":
            return _rebuilt(*arguments)
        if text == "collections.OrderedDict":  # of the hooks of a parameter: empty
            return dict(*arguments)
        if text in _FUNCTIONS:
            return arguments[0]
        raise ValueError("it calls something that is not a function")

    def created(self, class_: Any, arguments: Any) -> _Module:
        """A module, empty as yet."""
        if not isinstance(class_, _Name) or not class_.is_class_of_the_program or arguments:
            raise ValueError("it creates an object of something that is not a class of its program")
        return _Module()

    def given_state(self, target: Any, state: Any) -> None:
        """The attributes of a module."""
        if not isinstance(target, _Module) or not isinstance(state, dict):
            raise ValueError("it sets the state of something that is not a module")
        target.attributes = state

    def stored_elsewhere(self, identity: Any) -> Tensor:
        """The numbers of a storage, in a file of the archive."""
        kind, type_, key, _, count = identity
        if kind != "storage" or not isinstance(type_, _Name) or type_.text not in _STORAGES:
            raise ValueError(f"it refers to {identity!r}")
        if key not in self._storages:
            dtype = _STORAGES[type_.text]
            entry = self._archive.getinfo(f"{self._folder}{key}")
            expected = int(count) * dtype.itemsize
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size < expected:
                raise ValueError(f"{entry.filename} has {entry.file_size} bytes, not {expected}")
            data = bytearray(self._archive.read(entry))
            self._storages[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return self._storages[key]


def _rebuilt(storage: object, offset: int, size: Any, stride: Any, *_: object) -> Tensor:
    if not isinstance(storage, Tensor):
        raise ValueError("a tensor has no storage")
    return storage.as_strided(tuple(size), tuple(stride), offset).clone()
