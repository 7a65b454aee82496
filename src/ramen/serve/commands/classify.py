"""``ramen classify``: your images, your classes, one command."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.serve.commands import options
from ramen.utils.exit_codes import exit_on_error
from ramen.utils.torchrun import is_first_process, torchrun_group, under_torchrun

if TYPE_CHECKING:
    from rich.console import Console

    from ramen.serve.classify_request import ClassifyRequest, ServerTarget
    from ramen.serve.classify_run import ClassifyReport

EPILOG = (
    "Exit codes: 0 every file has an answer, or --watch was stopped; 1 the machine failed (no weights, no "
    "service, disk full, output in use); 2 wrong usage; 3 all done, but some files failed and have an error "
    "in the output; 130 Ctrl-C, 143 SIGTERM: what was done is saved, and the same command continues. A "
    "second Ctrl-C stops at once."
)
WARNING = (
    "warning: without --model the tiny model of the package is used. It knows drawings of 24 objects, no "
    "photographs: for those use --model ViT-B-16/openai, which downloads its weights."
)
# Options that are up to a service, by the names of the parameters.
_NOT_WITH_SERVER = {
    "model": "--model",
    "method": "--method",
    "settings": "--set",
    "templates": "--templates",
    "state": "--state",
    "device": "--device",
    "dtype": "--dtype",
    "workers": "--workers",
    "formats": "--formats",
    "max_pixels": "--max-pixels",
    "no_orient": "--no-orient",
}
_ONLY_WITH_SERVER = {"token": "--token", "stream": "--stream"}


def classify(
    ctx: typer.Context,
    photos: Annotated[
        list[str],
        typer.Argument(
            metavar="PHOTOS...",
            help="Files, folders, patterns such as 'a/**/*.jpg', or - for a list on standard input.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The labels: .csv, .jsonl or .parquet. If it exists, only what is missing is added."
        ),
    ],
    classes: Annotated[str | None, typer.Option(help="Class names, separated by commas.")] = None,
    classes_file: options.ClassesFile = None,
    model: options.Model = None,
    method: options.MethodName = "ramen",
    settings: options.MethodSettings = None,
    templates: options.Templates = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write a page that shows what adaptation changed.")
    ] = None,
    sort_into: Annotated[
        Path | None, typer.Option(help="Also link the files into one folder per class, in this folder.")
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="With --sort-into: copy instead of linking.")] = False,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="A folder, or a URL, that keeps what is learned from one run to the next."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep following the folders among PHOTOS until stopped (Ctrl-C).")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.01, help="With --watch: seconds from one look to the next.")
    ] = 1.0,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try files again that have an error in the output.")
    ] = False,
    device: options.Device = None,
    dtype: options.DType = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Files per batch. Default: 32, or fewer if a service takes fewer."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode images. Default: as many as help.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            help="Image formats to accept, separated by commas. Default: JPEG,PNG,WEBP,BMP,GIF,TIFF."
        ),
    ] = None,
    max_pixels: options.MaxPixels = None,
    no_orient: Annotated[
        bool, typer.Option("--no-orient", help="Do not turn images as their EXIF orientation says.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Let a service answer, such as http://localhost:8000; it has the model and what is learned.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="With --server: who you are. Better in the environment variable RAMEN_TOKEN, where other "
            "users of this machine do not see it."
        ),
    ] = None,
    stream: Annotated[
        str, typer.Option(help="With --server: the stream that the files belong to; created if missing.")
    ] = "default",
    json_output: Annotated[
        bool, typer.Option("--json", help="Print a summary as JSON on standard output.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only warnings and errors.")] = False,
) -> None:
    """Classify image files into your own classes, adapting to them on the way.

    Writes one row per file: label, probability, what the model says without adaptation, or an error.
    Everything but --json goes to standard error. Interrupted or killed, the same command continues.

    Under torchrun (`torchrun --nproc-per-node 8 -m ramen classify ...`) all processes share the work: one
    stream, one memory; the first one writes and reports.
    """
    from rich.console import Console

    from ramen.serve.client.errors import ServerError
    from ramen.serve.model_loading import MissingWeightsError
    from ramen.utils.peers import GroupError

    def read_request() -> "ClassifyRequest":
        target = server_target(ctx, server, token, stream)
        if under_torchrun():
            refuse_in_group(watch=watch, server=server, state=state)
        request = make_request(
            photos if is_first_process() else [],  # which alone reads standard input
            class_names(classes, classes_file, optional=target is not None),
            settings or [],
            templates or [],
            {
                "out": out,
                "model": model,
                "method": method,
                "page": page,
                "sort_into": sort_into,
                "copy": copy,
                "state": state,
                "watch": watch,
                "interval": interval,
                "retry_failed": retry_failed,
                "device": device,
                "dtype": dtype,
                "batch": batch,
                "workers": workers,
                "formats": None if formats is None else tuple(split_names(formats)),
                "max_pixels": max_pixels,
                "orient": not no_orient,
                "server": target,
            },
        )
        request.check()
        if model is None and target is None and is_first_process():
            typer.echo(WARNING, err=True)
        return request

    console = Console(stderr=True, quiet=quiet)
    with exit_on_error(MissingWeightsError, ServerError, ImportError, GroupError):
        report = run_request(read_request, device, console)
    if report is None:  # the first process reports
        return
    if json_output:
        typer.echo(json.dumps(report.summary, indent=2))
    elif not quiet:
        typer.echo(in_words(report.summary), err=True)
    raise typer.Exit(report.exit_code)


def run_request(
    read_request: Callable[[], "ClassifyRequest"], device: str | None, console: "Console"
) -> "ClassifyReport | None":
    """Do what the command line asks for; None in all processes of ``torchrun`` but the first."""
    from ramen.serve.classify_group import classify_in_group
    from ramen.serve.classify_run import classify_files
    from ramen.utils.devices import device_and_dtype_names

    if not under_torchrun():
        return classify_files(read_request(), console)
    with torchrun_group(device_and_dtype_names(device, None)[0]) as group:
        return None if group is None else classify_in_group(group, read_request, console)


def refuse_in_group(*, watch: bool, server: str | None, state: str | None) -> None:
    """ValueError for options that several processes cannot share, with the reason."""
    if server is not None:
        raise ValueError("--server: not under torchrun, as the service does the work: start the command once")
    if watch:
        raise ValueError(
            "--watch: not under torchrun, whose processes must all make the same batches, whatever arrives "
            "when: start one process, or give the files that are there"
        )
    if state is not None and "://" in state:
        raise ValueError(
            f"--state must be a folder under torchrun, which all processes see and write to, got {state}"
        )


def split_names(listed: str) -> list[str]:
    """Names that are separated by commas."""
    return [name.strip() for name in listed.split(",") if name.strip()]


def server_target(
    ctx: typer.Context, url: str | None, token: str | None, stream: str
) -> "ServerTarget | None":
    """The service that is to answer; ValueError for options that make no sense with it, or without one.

    Args:
        ctx: Knows which options were given.
        url: That of ``--server``.
        token: That of ``--token``.
        stream: That of ``--stream``.
    """
    from ramen.serve.classify_request import ServerTarget

    def given(options: dict[str, str]) -> str:
        sources = {name: ctx.get_parameter_source(name) for name in options}
        named = [options[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"]
        return ", ".join(named)

    if url is None:
        if wrong := given(_ONLY_WITH_SERVER):
            raise ValueError(f"{wrong}: only with --server, the service that is to answer")
        return None
    if wrong := given(_NOT_WITH_SERVER):
        raise ValueError(f"{wrong}: not with --server, as the service decides that")
    return ServerTarget(url, token, stream)


def class_names(listed: str | None, file: Path | None, *, optional: bool = False) -> list[str]:
    """The classes of ``--classes`` or of ``--classes-file``; none if they are optional and not given."""
    if optional and listed is None and file is None:
        return []
    if (listed is None) == (file is None):
        raise ValueError("give the classes with --classes or with --classes-file, and not with both")
    if file is None:
        return split_names(listed or "")
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--classes-file: {file} cannot be read: {error}") from None
    return [line.strip() for line in lines if line.strip()]


def template_choice(given: list[str]) -> str | tuple[str, ...]:
    """The set, or the templates, of ``--templates``."""
    return given[0] if len(given) == 1 and "{}" not in given[0] else tuple(given)


def make_request(
    photos: list[str], classes: list[str], settings: list[str], templates: list[str], others: dict[str, Any]
) -> "ClassifyRequest":
    """What the command line asks for; ValueError if it makes no sense.

    Args:
        photos: The arguments.
        classes: Class names.
        settings: Those of ``--set``.
        templates: Those of ``--templates``.
        others: Further fields of the request; None for those that have their default.
    """
    from ramen.experiments.plan.values import overrides_by_method
    from ramen.serve.classify_request import ClassifyRequest
    from ramen.serve.photos import Photos

    method = others["method"]
    given = {name: value for name, value in others.items() if value is not None}
    if templates:
        given["templates"] = template_choice(templates)
    return ClassifyRequest(
        photos=Photos.from_arguments(photos, sys.stdin.buffer, others["sort_into"]),
        classes=classes,
        parameters=overrides_by_method([method], settings)[method],
        **given,
    )


def in_words(summary: dict[str, Any]) -> str:
    """The end of a run, for people."""
    changed, answers, errors = summary["changed"], summary["answers"], summary["errors"]
    words = f"{summary['files']:,} files: {changed:,} of {answers:,} labels changed by adaptation"
    words += f" ({changed / answers:.1%})".replace("%", " %") if answers else ""
    words += f", {errors:,} failed" if errors else ""
    written = [summary[name] for name in ("out", "page", "sorted_into") if summary[name] is not None]
    stopped = "; stopped, the same command continues" if summary["stopped"] else ""
    return f"{words}{stopped}\n" + "\n".join(f"  {path}" for path in written)
