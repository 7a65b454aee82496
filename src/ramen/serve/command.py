"""``ramen serve``: the adapting classifier as a service; ``ramen token``: who may use it, and for what."""

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.methods._registry import imported
from ramen.models import options
from ramen.models.names import full_name
from ramen.models.options import TINY_WARNING, class_names, template_choice
from ramen.utils.checks import parse_bytes
from ramen.utils.commands import Imports, exit_on_error, refuse_torchrun

if TYPE_CHECKING:
    from ramen.serve.serve_run import ServeRequest

    Announce = Callable[[str], None]

EPILOG = (
    "Exit codes: 0 stopped by Ctrl-C or SIGTERM, all accepted requests answered and all states stored; 1 the "
    "machine failed (no weights, port in use, a state that could not be stored); 2 wrong usage; 130 or "
    "143 stopped at once by a second Ctrl-C or SIGTERM."
)


def serve(
    model: options.Model = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Class names, separated by commas. Streams may set their own. Default, with the tiny model: "
            "all that it knows."
        ),
    ] = None,
    classes_file: options.ClassesFile = None,
    templates: options.Templates = None,
    method: options.MethodName = "ramen",
    settings: options.MethodSettings = None,
    imports: Imports = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="A folder that keeps what streams learn. Without it, that ends with the server.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any free one.")] = 8000,
    tokens: Annotated[
        Path | None, typer.Option(help="The file of tokens; `ramen token create` makes it.")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Need no tokens; only at a loopback address.")
    ] = False,
    max_batch: Annotated[int, typer.Option(min=1, help="The most images per batch, and per request.")] = 32,
    max_delay_ms: Annotated[
        float, typer.Option(min=0, help="How long the first image of a batch may wait for others.")
    ] = 5.0,
    queue_images: Annotated[
        int, typer.Option(min=1, help="The most images that may wait; beyond it, requests get 429.")
    ] = 1024,
    queue_bytes: Annotated[str, typer.Option(help="The most bytes that may wait.")] = "256 MiB",
    streams_budget: Annotated[
        str, typer.Option(help="What all streams may take in memory; others wait on disk.")
    ] = "1 GiB",
    stream_memory: Annotated[str, typer.Option(help="What one stream may grow to.")] = "64 MiB",
    max_streams: Annotated[int, typer.Option(min=1, help="The most streams, on disk included.")] = 10_000,
    no_create: Annotated[
        bool, typer.Option("--no-create", help="Images do not create the stream that they are for.")
    ] = False,
    invariant: Annotated[
        bool,
        typer.Option("--invariant", help="Answers are the same to the last bit whatever else is in a batch."),
    ] = False,
    save_every: Annotated[
        str, typer.Option(help="When states are written: 'batch', a number of images, or seconds: '10s'.")
    ] = "1s",
    keep_changed: Annotated[
        int,
        typer.Option(
            min=0, help="Thumbnails of changed images to keep per stream, for the dashboard. Default: none."
        ),
    ] = 0,
    device: options.Device = None,
    dtype: options.DType = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that read requests, decode files and write responses, beside the one that "
            "computes. Default: none on a CPU at a loopback address; with a GPU, 4 on 16 or more cores; "
            "else 2.",
        ),
    ] = None,
    http_processes: Annotated[int | None, typer.Option(min=0, hidden=True)] = None,
    decoding_threads: Annotated[int | None, typer.Option(hidden=True)] = None,
    decoding_processes: Annotated[int | None, typer.Option(hidden=True)] = None,
    max_pixels: options.MaxPixels = None,
    max_body: Annotated[str, typer.Option(help="The most bytes in a request.")] = "64 MiB",
    timeout_ms: Annotated[
        int, typer.Option(min=1, help="Default timeout of requests that do not set one.")
    ] = 30_000,
    max_timeout_ms: Annotated[
        int, typer.Option(min=1, help="The longest timeout that a request may set.")
    ] = 120_000,
    log_format: Annotated[
        str, typer.Option(help="Format of the log on standard error: json or text.")
    ] = "json",
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Engines in processes of their own, one per GPU of this machine, each with its own streams. "
            "With --device cpu all of them compute on the CPU.",
        ),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Serve with Ray Serve: several engines, each with its own streams.")
    ] = False,
    replicas: Annotated[int | None, typer.Option(min=1, help="With --ray: engines. Default: 1.")] = None,
    min_replicas: Annotated[
        int | None, typer.Option(hidden=True, help="Refused: the number of engines is --replicas.")
    ] = None,
    max_replicas: Annotated[int | None, typer.Option(hidden=True, help="Likewise.")] = None,
    gpus_per_replica: Annotated[
        float | None,
        typer.Option(min=0, help="With --ray: GPUs of each; several may share one. Default: 1 if available."),
    ] = None,
) -> None:
    """Serve a classifier that adapts to each stream of images: HTTP, Open Inference Protocol, dashboard.

    Prints its address on standard output once images can be answered. Ctrl-C or SIGTERM stops it after what
    it has accepted.
    """
    with exit_on_error(ImportError):
        from ramen.serve.settings import check_packages

        check_packages()
        from ramen.serve.http.auth import check_access

        check_access(host, tokens, no_auth=no_auth)
    from ramen.models.names import MissingWeightsError
    from ramen.serve.http.server import StopFailedError

    with exit_on_error(MissingWeightsError, StopFailedError, ImportError):
        refuse_torchrun("ramen serve", "start it once; --gpus and --ray use more than one GPU")
        if decoding_threads is not None or decoding_processes is not None:
            raise ValueError(
                "--decoding-threads and --decoding-processes are gone: the processes of --workers decode "
                "what they receive"
            )
        workers = http_processes if workers is None else workers
        if ray and workers is not None:
            raise ValueError("--workers is not for --ray, which has HTTP proxies of its own")
        if min_replicas is not None or max_replicas is not None:
            from ramen.serve.shards import NO_AUTOSCALING

            raise ValueError(NO_AUTOSCALING)
        if gpus is not None and (ray or workers is not None):
            other = "--ray, which has --replicas" if ray else "--workers: one process reads all requests"
            raise ValueError(f"--gpus is not for {other}")
        run = _runner(ray, gpus, {"replicas": replicas, "gpus_per_replica": gpus_per_replica})
        request = make_request(
            {
                "model": model and full_name(model),
                "device": device,
                "dtype": dtype,
                "method": method,
                "imports": imported(imports),
            }
            | {"host": host, "port": port, "no_auth": no_auth, "log_format": log_format}
            | {"workers": workers},
            None
            if model is None and classes is None and classes_file is None
            else class_names(classes, classes_file, model or "tiny"),
            templates or [],
            settings or [],
            {
                "max_batch": max_batch,
                "max_delay_ms": max_delay_ms,
                "max_queue_images": queue_images,
                "max_queue_bytes": parse_bytes("--queue-bytes", queue_bytes),
                "streams_budget": parse_bytes("--streams-budget", streams_budget),
                "stream_memory": parse_bytes("--stream-memory", stream_memory),
                "max_streams": max_streams,
                "create_on_use": not no_create,
                "invariant": invariant,
                "save_every": int(save_every) if save_every.isdecimal() else save_every,
                "keep_changed": keep_changed,
                "state": state,
                "max_pixels": max_pixels,
                "tokens": tokens,
                "max_body_bytes": parse_bytes("--max-body", max_body),
                "default_timeout_ms": min(timeout_ms, max_timeout_ms),
                "max_timeout_ms": max_timeout_ms,
            },
        )
        if model is None:
            typer.echo(TINY_WARNING, err=True)
        run(request, lambda url: typer.echo(f"serving {model or request.model} at {url}"))


def make_request(
    given: dict[str, Any],
    classes: Sequence[str] | None,
    templates: list[str],
    settings: list[str],
    limits: dict[str, Any],
) -> "ServeRequest":
    """What the command line asks for; ValueError if it makes no sense.

    Args:
        given: Fields of the request; None for those that have their default.
        classes: Class names; None for those that the tiny model knows, or that the model brings.
        templates: Those of ``--templates``.
        settings: Those of ``--set``.
        limits: Settings by the names of their fields; None for those that have their default.
    """
    from ramen.data.drawings.shapes import OBJECTS
    from ramen.experiments.values import overrides_by_method
    from ramen.serve.serve_run import ServeRequest
    from ramen.serve.settings import settings_of

    fields = {name: value for name, value in given.items() if value is not None}
    if templates:
        fields["templates"] = template_choice(templates)
    engine, http = settings_of({name: value for name, value in limits.items() if value is not None})
    request = ServeRequest(
        classes=tuple(OBJECTS) if classes is None and "model" not in fields else classes,
        parameters=overrides_by_method([given["method"]], settings)[given["method"]],
        engine=engine,
        http=http,
        **fields,
    )
    request.check()
    return request


def _runner(
    on_ray: bool, gpus: int | None, scaling: dict[str, Any]
) -> "Callable[[ServeRequest, Announce], None]":
    """What serves: one engine in this process, several in others, or several on Ray.

    Args:
        on_ray: Whether ``--ray`` was given.
        gpus: What ``--gpus`` says.
        scaling: The options that only it takes; None for those that were not given.
    """
    given = {name: value for name, value in scaling.items() if value is not None}
    if on_ray:
        if importlib.util.find_spec("ray") is None:
            raise ImportError("ramen serve --ray needs Ray: pip install 'ramen-tta[ray]'")
        from ramen.serve.on_ray import serve_on_ray

        return partial(serve_on_ray, scaling=given)
    if given:
        raise ValueError(f"--{next(iter(given)).replace('_', '-')} needs --ray")
    if gpus is not None:
        from ramen.serve.engine_processes import serve_on_gpus

        return partial(serve_on_gpus, gpus=gpus)
    from ramen.serve.serve_run import serve as run

    return run


# -- tokens -----------------------------------------------------------------------------------------

token_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke the tokens of a service.")

TokensFile = Annotated[
    Path, typer.Option("--file", help="The file of tokens that `ramen serve --tokens` reads.")
]


@token_app.command()
def create(
    file: TokensFile,
    name: Annotated[str, typer.Option(help="Who will hold the token; appears in the server's log.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it may do: classify, manage (create, reset, delete streams) or metrics. Repeatable."
        ),
    ],
    stream: Annotated[
        list[str] | None,
        typer.Option(help="A stream, or a pattern such as 'camera-*'. Repeatable. Default: all streams."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="A date, or date and time, after which it is not valid.")
    ] = None,
) -> None:
    """Create a token and print it: the only time that it is shown. The file keeps a hash of it."""
    from ramen.serve.http.auth import create_token

    with exit_on_error():
        typer.echo(create_token(file, name, scope, stream or ["*"], expires))


@token_app.command("list")
def list_tokens(file: TokensFile) -> None:
    """List the tokens of a file: names, scopes, streams."""
    from ramen.serve.http.auth import read_tokens

    with exit_on_error():
        if not file.exists():
            raise FileNotFoundError(f"there is no file of tokens at {file}")
        records = read_tokens(file)
    for record in records:
        ends = "never expires" if record.expires is None else f"expires {record.expires}"
        scopes, streams = ",".join(record.scopes), ",".join(record.streams)
        typer.echo(f"{record.name}  {scopes}  {streams}  created {record.created}  {ends}")


@token_app.command()
def revoke(file: TokensFile, name: Annotated[str, typer.Argument(help="Name of the token.")]) -> None:
    """Remove a token; servers that use the file refuse it from then on."""
    from ramen.serve.http.auth import revoke_token

    with exit_on_error():
        revoke_token(file, name)
    typer.echo(f"revoked {name}", err=True)
