"""What commands share when something fails: one message, and an exit code that says whose fault it was."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from ramen.utils.file_locks import LockedError
from ramen.utils.stopping import StoppedError


@contextmanager
def exit_on_error(*failures: type[Exception]) -> Iterator[None]:
    """Turn errors into messages and exit codes.

    2 for a mistake in what the user wrote, with the usage of the command; 1 for what the system refuses (a
    full disk, no permission, no memory, a lock that another process holds); 130 for Ctrl-C, 143 for SIGTERM
    if the work treats that as a request to stop.

    Args:
        failures: Other errors whose message is enough, with exit code 1.
    """
    others: tuple[type[Exception], ...] = (LockedError, MemoryError, *failures)
    try:
        yield
    except KeyboardInterrupt as stop:
        raise typer.Exit(stop.exit_code if isinstance(stop, StoppedError) else 130) from None
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # whoever read the output has enough of it
        if isinstance(error, FileNotFoundError) and error.errno is None:
            # our own: an input that is not there
            raise typer.BadParameter(str(error)) from None
        _fail(_in_words(error))
    except others as error:
        _fail(str(error) or "not enough memory")


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1) from None


def _in_words(error: OSError) -> str:
    """The file and the reason, without the number.

    >>> _in_words(OSError(28, "No space left on device", "page.html"))
    'page.html: No space left on device'
    """
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
