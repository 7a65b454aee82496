"""Files: those that exist completely or not at all, locks, and Python files of the user."""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

_LOCK_BYTES = 1024
_IN_USE = ".in-use"


@contextmanager
def atomic_write(
    path: Path | str, *, staging: Path | None = None, durable: bool = True
) -> Iterator[IO[bytes]]:
    """A binary file that takes the name ``path`` once the block has ended well.

    Whoever reads ``path`` meanwhile finds the old file or the new one. If the block fails, the old file stays
    and nothing else is left behind.

    Args:
        path: The file; missing parent folders are created.
        staging: Folder on the same file system in which the file is written; its own folder by default.
        durable: Wait until the disk has the content, so that a power cut cannot leave an empty file.
    """
    path = Path(path)
    folder = path.parent if staging is None else staging
    make_folder(folder)
    # In the same file system: only there can a file be replaced in one step.
    temporary = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        # A failed write names no file, the others name a file that nobody has heard of.
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they are missing; an error says if one of them is a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(one for one in (folder, *folder.parents) if one.exists())
        raise NotADirectoryError(
            errno.ENOTDIR, "this is a file, and a folder is expected", str(file)
        ) from None


@contextmanager
def private_files() -> Iterator[None]:
    """A block in which files and folders that this process creates are for its user alone.

    It holds for all threads, and for processes that are started.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


class TemporaryFolder:
    """A folder for as long as this process uses it, and those of its kind that killed processes have left.

    Args:
        prefix: Its name begins so, in the system's folder for temporary files.

    Attributes:
        path: The folder, for this user alone.
        left: What was removed: folders of processes that no longer exist.
    """

    def __init__(self, prefix: str) -> None:
        self.left = [path for path in Path(tempfile.gettempdir()).glob(f"{prefix}*") if _remove_left(path)]
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = ExitStack()
        self._lock.enter_context(file_lock(self.path / _IN_USE, "uses this folder"))

    def close(self) -> None:
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _remove_left(path: Path) -> bool:
    """Remove a folder unless somebody uses it, or may: without the lock it is not known to be ours."""
    try:
        if path.is_symlink() or path.stat().st_uid != os.getuid() or not (path / _IN_USE).exists():
            return False
        with file_lock(path / _IN_USE, "removes this folder"):
            shutil.rmtree(path)
    except (OSError, LockedError):
        return False
    return True


def write_text(path: Path | str, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


class LockedError(RuntimeError):
    """Another process holds a lock."""


@contextmanager
def file_lock(
    file: Path, doing: str, *, trust_hosts: bool = False, owner: str | None = None
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Hold the lock that ``file`` stands for; LockedError if another process holds it.

    The system releases the lock when a process ends. The block gets a function that writes facts into the
    file, beside those about the holder.

    Args:
        file: Created if it is missing, and removed at the end.
        doing: What the holder does, for the message: "is running this experiment".
        trust_hosts: Also respect a file that names another host, even if it is not locked here: not every
            shared folder passes locks on between hosts.
        owner: Whoever holds the lock, in one process after the other, perhaps on several hosts. It knows that
            its earlier process has ended: the name of that process's host does not keep it out.
    """
    make_folder(file.parent)
    handle = _acquire(file, doing, trust_hosts, owner)
    try:
        holder = {"pid": os.getpid(), "host": socket.gethostname()}
        if owner is not None:
            holder["owner"] = owner

        def write(facts: Mapping[str, Any]) -> None:
            # always as long, in one call: a reader finds all of it
            os.pwrite(handle, json.dumps({**holder, **facts}).encode().ljust(_LOCK_BYTES), 0)

        os.ftruncate(handle, 0)
        write({})
        yield write
    finally:
        file.unlink(missing_ok=True)  # still locked: whoever has just opened it sees that it is gone
        os.close(handle)


def _acquire(file: Path, doing: str, trust_hosts: bool, owner: str | None) -> int:
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(handle)
            os.close(handle)
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            raise LockedError(f"{who} {doing} ({file}): wait for it, or stop it") from None
        holder = _holder(handle)
        elsewhere = holder.get("host", socket.gethostname()) != socket.gethostname()
        if trust_hosts and elsewhere and (owner is None or holder.get("owner") != owner):
            os.close(handle)
            who = f"process {holder.get('pid', '?')} on {holder['host']}"
            raise LockedError(f"{who} {doing}; if it has ended, remove {file}")
        if _is_same_file(handle, file):
            return handle
        os.close(handle)  # its last owner removed it in the meantime


def _is_same_file(handle: int, file: Path) -> bool:
    try:
        there = file.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_ino, own.st_dev) == (there.st_ino, there.st_dev)


def _holder(handle: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


# -- Python files of the user, with methods or models -------------------------------------------------------

_loaded: dict[Path, "UserFile"] = {}


@dataclass(frozen=True)
class UserFile:
    """A file that was imported once, from exactly the bytes that are hashed."""

    path: Path  # its full path
    module: ModuleType  # what it defines
    sha256: str  # of its content


def load_file(argument: str, given: str | Path) -> UserFile:
    """Import a Python file, once per process; a ValueError names the argument and the file."""
    path = Path(given).expanduser().absolute()
    if path in _loaded:
        return _loaded[path]
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{argument}: {given} cannot be read: {error.strerror}") from None
    name = f"ramen_file_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # where dataclasses and type hints look for it
    try:
        # not by Python's own loader: it may take an older version from __pycache__
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(f"{argument}: {given} cannot be imported: {in_words(error, path)}") from error
    _loaded[path] = UserFile(path, module, hashlib.sha256(source).hexdigest())
    return _loaded[path]


def forget_file(given: str | Path) -> None:
    """Import the file again when it is asked for: its content was of no use."""
    file = _loaded.pop(Path(given).expanduser().absolute(), None)
    if file is not None:
        sys.modules.pop(file.module.__name__, None)


def in_words(error: BaseException, path: Path) -> str:
    """The error, and the line of the file that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    place = f" (line {lines[-1]})" if lines and not isinstance(error, SyntaxError) else ""
    return f"{type(error).__name__}: {error}".rstrip(": ") + place
