"""Tensors as bytes that cannot be damaged unnoticed: a safetensors file with a checksum per tensor.

Any safetensors reader reads it. The checksums are in its metadata: ``sha256:NAME`` over the name, dtype,
shape and bytes of each tensor, and ``sha256`` over the header itself, which is written in one way only. So
every changed byte is found, wherever it is.
"""

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_BLANK = "0" * 64  # in place of the header's checksum while that is computed
_MOST_HEADER = 100_000_000  # bytes, as in other readers of the format
_IN_THREADS = 1 << 20  # bytes from which on checksums are computed side by side


class DamagedError(ValueError):
    """Bytes that are not what was sealed."""


def seal(tensors: Mapping[str, Tensor], facts: Mapping[str, str] | None = None) -> list[memoryview]:
    """Pieces that one after the other are a safetensors file of these tensors.

    Args:
        tensors: On the CPU. Their bytes are not copied: they must not change before the pieces are written.
        facts: Texts that go along, under names that no checksum has.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    views = {name: _bytes(tensors[name]) for name in order}
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + len(views[name])
        dtype, shape = _NAMES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    sums = _checksums(header, views)
    header[_METADATA] = {**(facts or {}), **sums, "sha256": _BLANK}
    header[_METADATA]["sha256"] = sha256(_written(header)).hexdigest()
    written = _written(header)
    return [memoryview(len(written).to_bytes(8, "little") + written), *(views[name] for name in order)]


def unseal(data: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and facts of what ``seal`` wrote; DamagedError if a single byte is different.

    The tensors share a writable buffer; bytes are copied.
    """
    view = memoryview(bytearray(data) if isinstance(data, bytes) else data).cast("B")
    length = int.from_bytes(view[:8], "little")
    if len(view) < 8 or length > min(_MOST_HEADER, len(view) - 8):
        raise DamagedError("it ends within its header")
    header = _read_header(bytes(view[8 : 8 + length]))
    try:
        return _read_content(header, view[8 + length :])
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise DamagedError(f"its header describes no tensors: {error!r}") from error


def _read_content(header: dict[str, Any], content: memoryview) -> tuple[dict[str, Tensor], dict[str, str]]:
    metadata: dict[str, str] = header.pop(_METADATA)
    views = {name: _part(name, entry, content) for name, entry in header.items()}
    if sum(map(len, views.values())) != len(content):
        raise DamagedError(f"its tensors have {sum(map(len, views.values()))} bytes, found {len(content)}")
    for name, checksum in _checksums(header, views).items():
        if metadata.pop(name, None) != checksum:
            raise DamagedError(f"the checksum of {name.removeprefix('sha256:')!r} is wrong")
    del metadata["sha256"]
    return {name: _tensor(entry, views[name]) for name, entry in header.items()}, metadata


def _written(header: Mapping[str, Any]) -> bytes:
    """The one way in which a header is written; its length is a multiple of 8."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _read_header(written: bytes) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(written)
        stated = header[_METADATA]["sha256"]
        blank = {**header, _METADATA: {**header[_METADATA], "sha256": _BLANK}}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DamagedError("its header cannot be read") from None
    if _written(header) != written or sha256(_written(blank)).hexdigest() != stated:
        raise DamagedError("the checksum of its header is wrong")
    return header


def _checksums(header: Mapping[str, Any], views: Mapping[str, memoryview]) -> dict[str, str]:
    def checksum(name: str) -> str:
        entry = header[name]
        digest = sha256(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
        digest.update(views[name])
        return digest.hexdigest()

    if sum(map(len, views.values())) < _IN_THREADS:
        return {f"sha256:{name}": checksum(name) for name in views}
    with ThreadPoolExecutor() as pool:  # large buffers are hashed without Python's lock
        return dict(zip((f"sha256:{name}" for name in views), pool.map(checksum, views), strict=True))


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().contiguous().reshape(-1)
    if not flat.numel():
        return memoryview(b"")
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is a buffer


def _part(name: str, entry: Mapping[str, Any], content: memoryview) -> memoryview:
    start, end = entry["data_offsets"]
    part = content[start:end]
    if len(part) != end - start:
        raise DamagedError(f"it ends within {name!r}")
    return part


def _tensor(entry: Mapping[str, Any], part: memoryview) -> Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(part, dtype=dtype).view(shape)


def total_bytes(pieces: Sequence[memoryview]) -> int:
    return sum(map(len, pieces))
