"""What commands share: exit codes that tell usage errors from system errors, options of a request, torchrun.

The options of a command are the fields of a dataclass, each annotated as Typer takes it:

    @dataclass(frozen=True)
    class Request:
        batch: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 100
        names: Annotated[tuple[str, ...], Read(str, split), typer.Option(help="...")] = ()
        cache: Cache | None = None  # without Typer's annotation: no option

    @with_options(request=Request)
    def command(*, request: Request, quiet: Annotated[bool, typer.Option()] = False) -> None: ...
"""

import errno
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from ramen.utils import checks
from ramen.utils.files import LockedError
from ramen.utils.signals import StoppedError

if TYPE_CHECKING:
    from ramen.utils.distributed import Group

IMPORT = typer.Option(
    "--import",
    metavar="FILE|MODULE",
    help="A Python file, or an installed module, that registers methods of your own. Repeatable.",
)
Imports = Annotated[list[str] | None, IMPORT]


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


@dataclass(frozen=True)
class Read:
    """In the annotation of a field: the option's own type, and how the field's value follows from it."""

    kind: Any  # what Typer parses; None is added where the option may be missing
    # gets the given value; a ValueError becomes a usage error. A missing option leaves the field's default
    convert: Callable[[Any], Any]


@dataclass(frozen=True)
class FieldsOf:
    """In the annotation of a field with a dict: the given ones of another dataclass's fields, by name."""

    kind: type


def with_options(*own: str, **kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of dataclasses as options, in place of one parameter each.

    Args:
        own: Fields that are no options of this command: it declares them itself, or has no use for them.
        kinds: The dataclass that each of these parameters of the command stands for.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        asked = inspect.signature(command).parameters
        options = {name: _options(kind, own) for name, kind in kinds.items()}

        @functools.wraps(command)
        def with_requests(**given: Any) -> None:
            requests = {}
            for name, parts in options.items():
                values: dict[str, Any] = {part.inside: {} for part in parts if part.inside is not None}
                for part in parts:
                    into = values if part.inside is None else values[part.inside]
                    with exit_on_error():
                        into |= part.value(given.pop(part.parameter.name))
                with exit_on_error():
                    requests[name] = kinds[name](**values)
            command(**requests, **given)

        parameters: list[inspect.Parameter] = []
        for parameter in asked.values():
            if parameter.name in options:
                parameters += [part.parameter for part in options[parameter.name]]
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        with_requests.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads both
        with_requests.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_requests

    return decorate


@dataclass(frozen=True)
class _Option:
    parameter: inspect.Parameter
    may_miss: bool  # None leaves the field's default
    convert: Callable[[Any], Any] | None
    inside: str | None  # a field with a dict

    def value(self, given: Any) -> dict[str, Any]:
        if given is None and self.may_miss:
            return {}
        return {self.parameter.name: given if self.convert is None else self.convert(given)}


def _options(kind: type, own: tuple[str, ...], inside: str | None = None) -> list[_Option]:
    """The fields of a dataclass that Typer has an annotation for."""
    hints = get_type_hints(kind, include_extras=True)
    found: list[_Option] = []
    for one in fields(kind):
        hint = hints[one.name]
        if one.name in own or get_origin(hint) is not Annotated:
            continue
        typed, *extras = get_args(hint)
        by_kind = {type(extra): extra for extra in extras}
        if FieldsOf in by_kind:
            found += _options(by_kind[FieldsOf].kind, own, one.name)
            continue
        shown = next((extra for extra in extras if isinstance(extra, ParameterInfo)), None)
        if shown is None:
            continue
        read: Read | None = by_kind.get(Read)
        is_required = inside is None and one.default is MISSING and one.default_factory is MISSING
        may_miss = not is_required and (read is not None or inside is not None)
        typed = typed if read is None else read.kind
        parameter = inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if is_required else None if may_miss else one.default,
            annotation=Annotated[typed | None if may_miss else typed, shown],
        )
        found.append(_Option(parameter, may_miss, None if read is None else read.convert, inside))
    return found


def without_workspaces() -> None:
    """Let cuBLAS multiply without workspaces, which it would clear before every product.

    For programs, before their first product on a GPU: torch reads these settings once. What the environment
    already says is kept.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "0")


_STARTED_BY = "TORCHELASTIC_RUN_ID"  # torchrun names each of its runs


def under_torchrun() -> bool:
    return _STARTED_BY in os.environ


def is_first_process() -> bool:
    """Whether this process reports: the only one, or the first that ``torchrun`` has started."""
    return not under_torchrun() or _number("RANK") == 0


def refuse_torchrun(command: str, instead: str) -> None:
    """ValueError if ``torchrun`` has started several processes of a command that does not share its work.

    The first process raises it and says what to do instead, and the others end.
    """
    if under_torchrun() and _number("WORLD_SIZE") > 1:
        if not is_first_process():
            raise SystemExit(2)
        raise ValueError(f"{command} does not share its work between the processes of torchrun: {instead}")


@contextmanager
def torchrun_group(device: str) -> "Iterator[Group]":
    """The group of all processes that ``torchrun`` has started, within the block; None without it.

    On GPUs each process uses the one with its local number, as plain ``"cuda"``. Processes wait for each
    other no longer than ``ramen.utils.distributed.chosen_timeout``, also on GPUs and while they meet.

    Args:
        device: Where the command computes.

    Raises:
        GroupError: They did not find each other.
    """
    if not under_torchrun():
        yield None
        return
    import torch
    import torch.distributed as dist

    from ramen.utils.distributed import chosen_timeout, meeting

    if device not in ("cpu", "cuda"):
        raise ValueError(
            f"device must be 'cpu' or 'cuda' under torchrun, which deals out GPUs, got {device!r}"
        )
    if device == "cuda":
        local, there = _number("LOCAL_RANK"), torch.cuda.device_count()
        if local >= there:
            raise ValueError(f"--nproc-per-node must be at most {there}, the number of GPUs here, got more")
        torch.cuda.set_device(local)
    seconds = chosen_timeout()
    with meeting(seconds):
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    yield dist.group.WORLD
    # Only after success: a process that fails must not wait for others.
    dist.destroy_process_group()


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise ValueError(
            f"the environment variable {name} must be the number that torchrun sets, got {text!r}"
        )
    return checks.integer(name, int(text), 0)
