"""Python files of the user, with methods or models: imported once, from exactly the bytes that are hashed."""

import hashlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_loaded: dict[Path, "UserFile"] = {}


@dataclass(frozen=True)
class UserFile:
    """A file that was imported.

    Attributes:
        path: Its full path.
        module: What it defines.
        sha256: Of its content.
    """

    path: Path
    module: ModuleType
    sha256: str


def load_file(argument: str, given: str | Path) -> UserFile:
    """Import a Python file, once per process; ValueError that names the file if that fails.

    Args:
        argument: What named the file, for messages.
        given: Its path.
    """
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
        raise ValueError(f"{argument}: {given} cannot be imported: {_in_words(error, path)}") from error
    _loaded[path] = UserFile(path, module, hashlib.sha256(source).hexdigest())
    return _loaded[path]


def forget_file(given: str | Path) -> None:
    """Import the file again when it is asked for: its content was of no use."""
    file = _loaded.pop(Path(given).expanduser().absolute(), None)
    if file is not None:
        sys.modules.pop(file.module.__name__, None)


def _in_words(error: BaseException, path: Path) -> str:
    """The error, and the line of the file that it comes from."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # which names the line
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    return f"{text} (line {lines[-1]})" if lines else text
