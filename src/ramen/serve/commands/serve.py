"""``ramen serve``: the adapting classifier as a service."""

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.serve.commands import options
from ramen.serve.commands.classify import WARNING, class_names, template_choice
from ramen.utils.byte_sizes import parse_bytes
from ramen.utils.exit_codes import exit_on_error
from ramen.utils.torchrun import refuse_torchrun

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
    state: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="A folder, or a URL, that keeps what streams learn. Without it, that ends with the server.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
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
    decoding_threads: Annotated[
        int | None, typer.Option(min=1, help="How many images are decoded at a time. Default: one per core.")
    ] = None,
    decoding_processes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that decode files, in place of threads. Default: none on a CPU; with a GPU all "
            "cores but four.",
        ),
    ] = None,
    http_processes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that read requests and write responses, beside the one that computes. Default: "
            "none on a CPU; with a GPU 2 from 8 cores on, 4 from 16 on.",
        ),
    ] = None,
    max_pixels: options.MaxPixels = None,
    max_body: Annotated[str, typer.Option(help="The most bytes in a request.")] = "64 MiB",
    timeout_ms: Annotated[
        int, typer.Option(min=1, help="How long a request may take that does not say.")
    ] = 30_000,
    max_timeout_ms: Annotated[
        int, typer.Option(min=1, help="The longest time that a request may ask for.")
    ] = 120_000,
    log_format: Annotated[str, typer.Option(help="Of the log on standard error: json or text.")] = "json",
    ray: Annotated[
        bool, typer.Option("--ray", help="Serve with Ray Serve: several replicas that share the streams.")
    ] = False,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="With --ray: processes that compute. Default: 1.")
    ] = None,
    min_replicas: Annotated[
        int | None, typer.Option(min=1, help="With --ray: the fewest, if their number follows the load.")
    ] = None,
    max_replicas: Annotated[int | None, typer.Option(min=1, help="With --ray: the most.")] = None,
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
        _check_packages()
        from ramen.serve.http.access import check_access

        check_access(host, tokens, no_auth=no_auth)
    from ramen.serve.http.server import StopFailedError
    from ramen.serve.model_loading import MissingWeightsError

    with exit_on_error(MissingWeightsError, StopFailedError, ImportError):
        refuse_torchrun("ramen serve", "start it once; --ray uses more than one GPU")
        if ray and http_processes is not None:
            raise ValueError("--http-processes is not for --ray, which has HTTP proxies of its own")
        run = _runner(
            ray,
            {"replicas": replicas, "min_replicas": min_replicas, "max_replicas": max_replicas}
            | {"gpus_per_replica": gpus_per_replica},
        )
        request = make_request(
            {"model": model, "device": device, "dtype": dtype, "method": method}
            | {"host": host, "port": port, "no_auth": no_auth, "log_format": log_format}
            | {"http_processes": http_processes},
            None
            if model is None and classes is None and classes_file is None
            else class_names(classes, classes_file),
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
                "decoding_processes": decoding_processes,
                **({} if decoding_threads is None else {"decoding_threads": decoding_threads}),
            },
            {
                "tokens": tokens,
                "max_body_bytes": parse_bytes("--max-body", max_body),
                "default_timeout_ms": min(timeout_ms, max_timeout_ms),
                "max_timeout_ms": max_timeout_ms,
            },
            max_pixels,
        )
        if model is None:
            typer.echo(WARNING, err=True)
        run(request, lambda url: typer.echo(f"serving {request.model} at {url}"))


def make_request(
    given: dict[str, Any],
    classes: list[str] | None,
    templates: list[str],
    settings: list[str],
    engine: dict[str, Any],
    http: dict[str, Any],
    max_pixels: int | None,
) -> "ServeRequest":
    """What the command line asks for; ValueError if it makes no sense.

    Args:
        given: Fields of the request; None for those that have their default.
        classes: Class names; None for those that the tiny model knows.
        templates: Those of ``--templates``.
        settings: Those of ``--set``.
        engine: Fields of the engine's settings.
        http: Fields of the HTTP front's settings.
        max_pixels: The most pixels of an image; None for the default.
    """
    from ramen.data.drawings.shapes import OBJECTS
    from ramen.experiments.plan.values import overrides_by_method
    from ramen.images.decoding import MAX_PIXELS, DecodingSettings
    from ramen.serve.engine.settings import EngineSettings
    from ramen.serve.http.settings import HttpSettings
    from ramen.serve.serve_run import ServeRequest

    largest = http["max_body_bytes"]
    fields = {name: value for name, value in given.items() if value is not None}
    if templates:
        fields["templates"] = template_choice(templates)
    request = ServeRequest(
        classes=tuple(OBJECTS) if classes is None else tuple(classes),
        parameters=overrides_by_method([given["method"]], settings)[given["method"]],
        engine=EngineSettings(
            **engine, decoding=DecodingSettings(max_pixels=max_pixels or MAX_PIXELS, max_bytes=largest)
        ),
        # Besides what waits in the queue, some bodies are being read, and some are text that is decoded.
        http=HttpSettings(**http, max_bodies_bytes=3 * engine["max_queue_bytes"] + 4 * largest),
        **fields,
    )
    request.check()
    return request


def _runner(on_ray: bool, scaling: dict[str, Any]) -> "Callable[[ServeRequest, Announce], None]":
    """What serves: one engine in this process, or replicas of it.

    Args:
        on_ray: Whether ``--ray`` was given.
        scaling: The options that only it takes; None for those that were not given.
    """
    given = {name: value for name, value in scaling.items() if value is not None}
    if on_ray:
        if importlib.util.find_spec("ray") is None:
            raise ImportError("ramen serve --ray needs Ray: pip install 'ramen-tta[ray]'")
        from ramen.serve.on_ray.run import serve_on_ray

        return partial(serve_on_ray, scaling=given)
    if given:
        raise ValueError(f"--{next(iter(given)).replace('_', '-')} needs --ray")
    from ramen.serve.serve_run import serve as run

    return run


def _check_packages() -> None:
    """ImportError that says how to install what is missing."""
    for package in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"ramen serve needs {package}: pip install 'ramen-tta[serve]'")
