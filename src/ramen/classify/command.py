"""``ramen classify``: your images, your classes, one command. Its options are the fields of a request."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ramen.images.file_checks import DEFAULT_FORMATS, MAX_PIXELS, DecodingSettings
from ramen.methods._registry import imported
from ramen.models import options
from ramen.models.names import full_name
from ramen.utils import checks
from ramen.utils.commands import IMPORT, Read, exit_on_error, refuse_torchrun, with_options

EPILOG = (
    "Exit codes: 0 every file has an answer, or --watch was stopped; 1 the machine failed (no weights, no "
    "service, disk full, output in use); 2 wrong usage; 3 all done, but some files failed and have an error "
    "in the output; 130 Ctrl-C, 143 SIGTERM: what was done is saved, and the same command continues. A "
    "second Ctrl-C stops at once."
)
BATCH = 32
_FORMULAS = ("prefix", "keep")
# Fields that are up to a service, and those that are for one.
_NOT_WITH_SERVER = (
    *("model", "method", "settings", "imports", "templates", "state", "device", "dtype", "workers"),
    *("formats", "max_pixels", "no_orient"),
)
_ONLY_WITH_SERVER = ("token", "stream")


@dataclass(frozen=True)
class ClassifyRequest:
    """What to classify, with what, into what; the options of the command say what each field is."""

    photos: Annotated[
        tuple[str, ...],
        Read(list[str], tuple),
        typer.Argument(
            metavar="PHOTOS...",
            help="Files, folders, patterns such as 'a/**/*.jpg', or - for a list on standard input.",
        ),
    ]
    out: Annotated[
        Path,
        typer.Option(
            help="The labels: .csv, .jsonl or .parquet. If it exists, only what is missing is added."
        ),
    ]
    classes: Annotated[
        Sequence[str] | None,
        Read(str, options.split_names),
        typer.Option(help="Class names, separated by commas."),
    ] = None
    classes_file: options.ClassesFile = None
    model: Annotated[str, Read(str, full_name), options.MODEL] = "tiny"
    method: options.MethodName = "ramen"
    settings: options.MethodSettings = None
    imports: Annotated[tuple[str, ...], Read(list[str], imported), IMPORT] = ()
    templates: Annotated[
        str | tuple[str, ...], Read(list[str], options.template_choice), options.TEMPLATES
    ] = "ensemble"
    page: Annotated[
        Path | None, typer.Option(help="Also write a page that shows what adaptation changed.")
    ] = None
    sort_into: Annotated[
        Path | None, typer.Option(help="Also link the files into one folder per class, in this folder.")
    ] = None
    copy: Annotated[bool, typer.Option("--copy", help="With --sort-into: copy instead of linking.")] = False
    state: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A folder that keeps what is learned from one run to the next."),
    ] = None
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep following the folders among PHOTOS until stopped (Ctrl-C).")
    ] = False
    interval: Annotated[
        float, typer.Option(min=0.01, help="With --watch: seconds from one look to the next.")
    ] = 1.0
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try files again that have an error in the output.")
    ] = False
    formulas: Annotated[
        str,
        typer.Option(
            help="Texts in a .csv that a spreadsheet would compute, as they begin with =, +, - or @: "
            "`prefix` puts an apostrophe before them, `keep` leaves them as they are."
        ),
    ] = "prefix"
    device: options.Device = None
    dtype: options.DType = None
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Files per batch. Default: 32, or fewer if a service takes fewer."),
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode images. Default: as many as help.")
    ] = None
    formats: Annotated[
        tuple[str, ...],
        Read(str, options.split_names),
        typer.Option(
            help="Image formats to accept, by commas. Default: JPEG,PNG,WEBP,BMP,GIF,TIFF,HEIF,AVIF."
        ),
    ] = ()
    max_pixels: options.MaxPixels = None
    no_orient: Annotated[
        bool, typer.Option("--no-orient", help="Do not turn images as their EXIF orientation says.")
    ] = False
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Let a service answer, such as http://localhost:8000; it has the model and what is learned.",
        ),
    ] = None
    token: Annotated[
        str | None,
        typer.Option(
            help="With --server: who you are. Better in the environment variable RAMEN_TOKEN, where other "
            "users of this machine do not see it."
        ),
    ] = None
    stream: Annotated[
        str, typer.Option(help="With --server: the stream that the files belong to; created if missing.")
    ] = "default"

    def check(self) -> None:
        """ValueError for what can be known to be wrong before a model is loaded."""
        from ramen.classify.output import check_output
        from ramen.models import prompts
        from ramen.state import local_folder

        check_output(self.out)
        self.class_names()
        prompts.check_templates(self.templates)
        self.decoding()
        checks.choice("--formulas", self.formulas, _FORMULAS)
        if self.state is not None:
            local_folder(self.state, "--state")
        if self.copy and self.sort_into is None:
            raise ValueError("--copy needs --sort-into, which says where to copy to")

    def class_names(self) -> tuple[str, ...]:
        """The class names as prompts have them; none if a service or the model has them."""
        from ramen.models import prompts

        if self.server is not None and self.classes is None and self.classes_file is None:
            return ()
        given = options.class_names(self.classes, self.classes_file, self.model)
        names = () if given is None else prompts.check_classes(given)
        for name in names:
            if name != name.encode(errors="ignore").decode():  # bytes that are no UTF-8
                raise ValueError(f"classes must be valid Unicode text, got {name!r}")
        return names

    @property
    def batch_size(self) -> int:
        """Files per batch."""
        return BATCH if self.batch is None else self.batch

    def parameters(self) -> Mapping[str, Any]:
        """Of the method, in place of its own choices."""
        from ramen.experiments.values import overrides_by_method

        return overrides_by_method([self.method], self.settings or [])[self.method]

    def decoding(self) -> DecodingSettings:
        """How files are read."""
        return DecodingSettings(
            self.formats or DEFAULT_FORMATS, self.max_pixels or MAX_PIXELS, orient=not self.no_orient
        )


@with_options(request=ClassifyRequest)
def classify(
    ctx: typer.Context,
    *,
    request: ClassifyRequest,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print a summary as JSON on standard output.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only warnings and errors.")] = False,
) -> None:
    """Classify image files into your own classes, adapting to them on the way.

    Writes one row per file: label, probability, what the model says without adaptation, or an error.
    Everything but --json goes to standard error. Interrupted or killed, the same command continues.
    """
    with exit_on_error():
        refuse_torchrun(
            "ramen classify", "start it once, or write the loop that docs/scaling.md shows for a group"
        )
        _check_server(ctx, request)
    from rich.console import Console

    from ramen.classify.run import classify_files
    from ramen.client.operations import ServerError
    from ramen.models.names import MissingWeightsError

    with exit_on_error(MissingWeightsError, ServerError, ImportError):
        request.check()
        if request.server is None and not _given(ctx, ["model"]):
            typer.echo(options.TINY_WARNING, err=True)
        report = classify_files(request, Console(stderr=True, quiet=quiet))
    if json_output:
        typer.echo(json.dumps(report.summary, indent=2))
    elif not quiet:
        typer.echo(_in_words(report.summary), err=True)
    raise typer.Exit(report.exit_code)


def _check_server(ctx: typer.Context, request: ClassifyRequest) -> None:
    """ValueError for options that make no sense with a service, or without one."""
    if request.server is None:
        if wrong := _given(ctx, _ONLY_WITH_SERVER):
            raise ValueError(f"{wrong}: only with --server, the service that is to answer")
    elif wrong := _given(ctx, _NOT_WITH_SERVER):
        raise ValueError(f"{wrong}: not with --server, as the service decides that")


def _given(ctx: typer.Context, names: Sequence[str]) -> str:
    """Those of the options that are on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    found = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    spelt = {"settings": "--set", "imports": "--import"}
    return ", ".join(spelt.get(name, f"--{name.replace('_', '-')}") for name in found)


def _in_words(summary: dict[str, Any]) -> str:
    """The end of a run, for people."""
    changed, answers, errors = summary["changed"], summary["answers"], summary["errors"]
    files = summary["files"]
    words = f"{files:,} file{'s'[: files != 1]}: {changed:,} of {answers:,} labels changed by adaptation"
    words += f" ({changed / answers:.1%})".replace("%", " %") if answers else ""
    words += f", {errors:,} failed" if errors else ""
    written = [summary[name] for name in ("out", "page", "sorted_into") if summary[name] is not None]
    stopped = "; stopped, the same command continues" if summary["stopped"] else ""
    return f"{words}{stopped}\n" + "\n".join(f"  {path}" for path in written)
