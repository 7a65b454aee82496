"""The state of a group of processes in one folder: a file per process, and a manifest that names them.

The manifest is written last and replaces the one before it in one step. So the folder always holds a whole
state: the new one, or the one before.
"""

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ramen.methods import _saved_state
from ramen.utils.atomic_files import make_folder, write_text
from ramen.utils.peers import GroupError, PeerFailedError, Peers
from ramen.utils.sealed_tensors import DamagedError

_MANIFEST = "state.json"
_FORMAT = "ramen group state"
_SUFFIX = ".share.safetensors"


def is_one(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a folder, and so must hold such a state."""
    return Path(path).is_dir()


def holds_state(path: str | os.PathLike[str]) -> bool:
    """Whether a whole state was written to this folder."""
    return (Path(path) / _MANIFEST).exists()


def write(
    folder: str | os.PathLike[str],
    state: Mapping[str, Tensor],
    peers: Peers,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write this process's share; returns when all have written theirs. All processes call it.

    If one of them fails, all raise an error, and the folder holds what it held before.

    Args:
        folder: Which all processes see.
        state: This process's share.
        peers: The group.
        facts: Plain values that become part of the state in the same step; those of the first process count.
    """
    path = Path(folder)
    token = peers.values(secrets.token_hex(8), "saving")[0]
    names = [f"{token}-{rank}-of-{peers.size}{_SUFFIX}" for rank in range(peers.size)]

    def write_share() -> None:
        make_folder(path)
        _saved_state.write_file(path / names[peers.rank], state)

    def write_manifest() -> None:
        if peers.rank == 0:
            manifest = {"format": _FORMAT, "version": 1, "files": names, "facts": dict(facts or {})}
            write_text(path / _MANIFEST, json.dumps(manifest))

    try:
        peers.attempt(write_share, "saving")
        peers.attempt(write_manifest, "saving")
    except Exception as error:
        # Processes that have lost each other do not know whether the first one completes the state, or has
        # done so: then a share stays. The next state that is written removes what no manifest names.
        lost = isinstance(error, GroupError) and not isinstance(error, PeerFailedError)
        if not lost and not _names(path, names):
            (path / names[peers.rank]).unlink(missing_ok=True)
        raise
    if peers.rank == 0:  # shares of states that were replaced, or never completed
        for file in path.glob(f"*{_SUFFIX}"):
            if file.name not in names:
                file.unlink(missing_ok=True)


def states(folder: str | os.PathLike[str]) -> Iterator[dict[str, Tensor]]:
    """The states of the processes, one after the other; ValueError if one is damaged or missing."""
    path = Path(folder)
    for name in _files(path):
        try:
            yield _saved_state.read_file(path / name)
        except FileNotFoundError as error:
            raise DamagedError(f"{path} is damaged: its manifest names {name}, which is missing") from error


def _names(path: Path, names: list[str]) -> bool:
    """Whether the manifest there names these files."""
    try:
        return _files(path) == names
    except (OSError, ValueError):
        return False


def remove(folder: str | os.PathLike[str]) -> None:
    """Remove a state, the manifest first: whatever happens meanwhile, no half of it is taken for a state."""
    path = Path(folder)
    (path / _MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def facts(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The plain values that were written with a state."""
    return dict(_manifest(Path(folder)).get("facts", {}))


def _files(path: Path) -> list[str]:
    names: list[str] = _manifest(path)["files"]
    return names


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} holds no saved state: it has no {_MANIFEST}, which is written last"
        ) from None
    except ValueError as error:
        raise DamagedError(f"{path / _MANIFEST} is damaged, or no manifest: {error}") from None
    match manifest:
        case {"format": str(kind), "version": 1, "files": [*names]} if kind == _FORMAT and names:
            if all(isinstance(name, str) and Path(name).name == name for name in names):
                return dict(manifest)
    raise DamagedError(f"{path / _MANIFEST} is damaged, or of another format or version")
