"""Weights from files of any of the usual formats; nothing in a file is ever executed.

safetensors files hold numbers alone. Files of ``torch.save`` are read with ``weights_only=True``. TorchScript
archives, the format in which OpenAI distributes CLIP, hold a program and its weights: here the weights are
read, by an unpickler that knows tensors, lists and dictionaries and refuses all else, and the program is not.
"""

import collections
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "module")  # of training programs
_LISTS = ("int", "double", "bool", "tensor")
_STORAGES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
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
            with archive.open(entry) as file:
                return _Unpickler(file, archive, f"{entry.removesuffix('.pkl')}/").load()
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        EOFError,
        RuntimeError,
    ) as error:
        raise ValueError(f"pretrained: {path} cannot be read as a TorchScript archive: {error}") from None


def _collect(part: object, prefix: str, found: dict[str, Tensor]) -> None:
    if isinstance(part, Tensor):
        found[prefix] = part
    elif isinstance(part, _Module):
        for name, value in part.attributes.items():
            _collect(value, f"{prefix}.{name}" if prefix else str(name), found)


class _Module:
    """Stands for every class of the archive's program: it keeps what the archive says of its attributes."""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError(f"a module has the state {type(state).__name__}")
        self.attributes = state


class _Unpickler(pickle.Unpickler):
    """Reads numbers, texts, lists, dictionaries, tensors and modules' attributes, and refuses all else."""

    def __init__(self, file: BinaryIO | Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self._archive, self._folder = archive, folder  # of the tensors' numbers
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch.jit._pickle", "restore_type_tag"): lambda value, _: value,
            **{("torch.jit._pickle", f"build_{kind}list"): list for kind in _LISTS},
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which weights do not need")
        return known[module, name]

    def persistent_load(self, identity: Any) -> Tensor:
        kind, dtype, key, _, count = identity
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError(f"it refers to {identity!r}")
        if key not in self._storages:
            entry = self._archive.getinfo(f"{self._folder}{key}")
            expected = int(count) * dtype.itemsize
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size < expected:
                raise pickle.UnpicklingError(f"{entry.filename} has {entry.file_size} bytes, not {expected}")
            data = bytearray(self._archive.read(entry))
            self._storages[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return self._storages[key]


def _rebuild_tensor(storage: Tensor, offset: int, size: Any, stride: Any, *_: object) -> Tensor:
    if not isinstance(storage, Tensor):
        raise pickle.UnpicklingError("a tensor has no storage")
    return storage.as_strided(tuple(size), tuple(stride), offset).clone()
