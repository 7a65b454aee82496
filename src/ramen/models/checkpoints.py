"""Weights from files: found in a cache or downloaded, and read in any of the usual formats.

Nothing in a file is ever executed. safetensors files hold numbers alone, and files of ``torch.save`` are read
with ``weights_only=True``. TorchScript archives, the format in which OpenAI distributes CLIP, hold a program
and its weights. Only the weights are read, with stand-ins for all that their pickle names
(``ramen.utils.pickles``).

Without a network, huggingface_hub tries again for about a minute before it gives up, once per file. One HEAD
request beforehand says at once what is missing. Nothing changes if the files are there or the network is.
"""

import os
import re
import ssl
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from ramen.utils.checks import one_line
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
        raise ValueError(f"pretrained: {path} cannot be read as weights alone: {one_line(error)}") from None
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


# -- where they come from --------------------------------------------------------------------------------

PATIENCE = 5.0  # seconds for one answer of any kind; looking up a host's name counts
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")
Folder = str | os.PathLike[str] | None


def check_downloads(model: str, tag: Mapping[str, Any], cache_dir: Folder) -> None:
    """Raise ConnectionError if open_clip would have to download something for a model, and cannot."""
    for what, address, cache in _missing(model, tag, cache_dir):
        _require(
            f"{what} of {model} is not in the cache {cache}",
            address,
            'give a checkpoint file: pretrained="weights.safetensors"',
            of_the_hub=address != tag.get("url"),
        )


def check_hub_repository(name: str, cache_dir: Folder) -> None:
    """Raise ConnectionError if a model of transformers, not all of it in the cache, cannot be downloaded."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HFValidationError

    try:
        address = hf_hub_url(name, "config.json")
    except HFValidationError:
        address = ""
    if name.count("/") != 1 or not address:
        raise ValueError(f"name_or_model: {name!r} is neither a folder nor a name on the Hub, OWNER/MODEL")
    missing = f"the model {name} is not, or not as a whole, in the cache {_hub_cache(cache_dir)}"
    _require(missing, address, "give a folder that save_pretrained wrote", of_the_hub=True)


def find_hub_file(repository: str, names: tuple[str, ...], cache_dir: Folder) -> Path:
    """The first of these alternatives that is in the cache, or else downloaded from the hub.

    The repository is ``NAME`` or ``NAME@REVISION``.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = repository.partition("@")
    options: dict[str, Any] = {"cache_dir": cache_dir, "revision": revision or None}
    for only_local in (True, False):
        if not only_local:
            check_hub_repository(repository, cache_dir)
        for name in names:
            try:
                return Path(hf_hub_download(repository, name, local_files_only=only_local, **options))
            except EntryNotFoundError:  # on the hub or, a LocalEntryNotFoundError, in the cache
                continue
    raise ValueError(f"{repository} on the Hub has none of {', '.join(names)}")


def find_web_file(address: str) -> Path:
    """A file that torch.hub has downloaded, or does now; the end of its name is checked against its hash."""
    from torch import hub

    file = Path(hub.get_dir()) / "checkpoints" / address.rpartition("/")[2]
    if not file.is_file():
        _require(f"{file.name} is not in {file.parent}", address, "name a checkpoint file", of_the_hub=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        stated = re.search(r"-([0-9a-f]{8,})\.", file.name)
        hub.download_url_to_file(address, str(file), stated and stated[1], progress=False)
    return file


def _missing(model: str, tag: Mapping[str, Any], cache_dir: Folder) -> Iterator[tuple[str, str, Path]]:
    """What is not in the caches, where it comes from, and the cache: the weights, and a tokenizer's files."""
    import open_clip
    from huggingface_hub import hf_hub_url, try_to_load_from_cache
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    wanted: list[tuple[str, str, tuple[str, ...]]] = []  # on the hub; the names are alternatives
    if model.startswith("hf-hub:"):
        wanted.append(("the configuration", model.removeprefix("hf-hub:"), ("open_clip_config.json",)))
    elif tag.get("hf_hub"):
        repository, _, name = tag["hf_hub"].rpartition("/")
        own = (str(Path(name).with_suffix(".safetensors")), name) if name else ()
        wanted.append(("the checkpoint", repository, (*own, HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME)))
    elif tag.get("url"):
        cache = Path("~/.cache/clip" if cache_dir is None else cache_dir).expanduser()
        if not (cache / tag["url"].rpartition("/")[2]).is_file():
            yield "the checkpoint", tag["url"], cache
    text = (open_clip.get_model_config(model.replace("/", "-")) or {}).get("text_cfg", {}) if tag else {}
    if text.get("hf_tokenizer_name"):
        wanted.append(("the tokenizer", text["hf_tokenizer_name"], _TOKENIZER_FILES))
    for what, repository, names in wanted:
        found = (try_to_load_from_cache(repository, n, cache_dir=_hub_cache(cache_dir)) for n in names)
        if not any(isinstance(file, str) for file in found):
            yield what, hf_hub_url(repository, names[0]), _hub_cache(cache_dir)


def _hub_cache(cache_dir: Folder) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE if cache_dir is None else cache_dir)


def _require(missing: str, address: str, instead: str, *, of_the_hub: bool) -> None:
    from huggingface_hub import constants

    reason = "HF_HUB_OFFLINE is set: it is not downloaded"
    if not (of_the_hub and constants.HF_HUB_OFFLINE):
        why = why_unreachable(address)
        if why is None:
            return
        reason = f"{address} cannot be reached: {why}"
    raise ConnectionError(
        f"{missing}, and {reason}. Load it once with a network and copy the cache here (cache_dir= or "
        f"HF_HOME says where it is), or {instead}"
    )


def why_unreachable(address: str, patience: float = PATIENCE) -> str | None:
    """Why nothing answers at the address within so many seconds; None if something does, whatever it says."""
    answer = [f"no answer in {patience:g} seconds"]

    def ask() -> None:
        try:
            urlopen(Request(address, method="HEAD"), timeout=patience).close()
            answer.clear()
        except (HTTPError, TimeoutError):  # an answer with an error, or a slow one
            answer.clear()
        except OSError as error:
            answer[:] = [str(error)]
            if isinstance(getattr(error, "reason", error), ssl.SSLError):  # only the library knows these
                answer.clear()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()  # a thread: looking up a name has no timeout
    asking.join(patience + 1)
    return next(iter(answer), None)
