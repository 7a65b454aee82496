"""What ``ramen classify`` is asked to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramen.images.decoding import DEFAULT_FORMATS, MAX_PIXELS, DecodingSettings
from ramen.models import prompts
from ramen.serve.model_loading import TINY
from ramen.serve.outputs.output import check_output
from ramen.serve.photos import Photos

BATCH = 32


@dataclass(frozen=True)
class ServerTarget:
    """A stream of a service.

    Attributes:
        url: Where the service is.
        token: What it knows the caller by; by default the environment variable RAMEN_TOKEN.
        stream: The stream's name.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    stream: str = "default"


@dataclass(frozen=True)
class ClassifyRequest:
    """What to classify, with what, into what.

    Attributes:
        photos: The files.
        classes: Class names.
        out: The output; its suffix is its format.
        model: A form of ``ramen.models.by_name``.
        method: A method's name.
        parameters: Of the method, in place of its own choices.
        templates: A set of prompt templates, or templates.
        device: Where to compute; by default a GPU if there is one.
        dtype: Of the encoder's weights; by default float16 on a GPU.
        batch: Files per batch, or per request; None for the default.
        workers: Processes that decode; by default as many as help.
        state: A folder, or a URL, that keeps what is learned.
        page: Where to write the page of changes.
        sort_into: Where to sort files into folders of classes.
        copy: Copy files there instead of linking to them.
        watch: Follow folders until somebody stops it.
        interval: Seconds between two looks at folders that are followed.
        retry_failed: Try files again that failed in an earlier run.
        formats: Image formats that are accepted.
        max_pixels: The most pixels that an image may have.
        orient: Turn images as their EXIF orientation says.
        server: A service that answers in place of a model in this process. Then the model, the method and
            how images are decoded are up to it, and without classes those of the stream are used.
    """

    photos: Photos
    classes: Sequence[str]
    out: Path
    model: str = TINY
    method: str = "ramen"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    templates: str | tuple[str, ...] = "ensemble"
    device: str | None = None
    dtype: str | None = None
    batch: int | None = None
    workers: int | None = None
    state: str | None = None
    page: Path | None = None
    sort_into: Path | None = None
    copy: bool = False
    watch: bool = False
    interval: float = 1.0
    retry_failed: bool = False
    formats: tuple[str, ...] = DEFAULT_FORMATS
    max_pixels: int = MAX_PIXELS
    orient: bool = True
    server: ServerTarget | None = None

    def check(self) -> None:
        """ValueError for what can be known to be wrong before a model is loaded."""
        check_output(self.out)
        if self.classes or self.server is None:
            self.checked_classes()
        prompts.check_templates(self.templates)
        self.decoding()
        if self.watch and not self.photos.folders:
            raise ValueError("--watch follows folders: at least one of PHOTOS must be a folder")
        if self.copy and self.sort_into is None:
            raise ValueError("--copy needs --sort-into, which says where to copy to")

    def checked_classes(self) -> tuple[str, ...]:
        """The class names as prompts have them."""
        names = prompts.check_classes(self.classes)
        for name in names:
            if name != name.encode(errors="ignore").decode():  # bytes that are no UTF-8
                raise ValueError(f"classes must be valid Unicode text, got {name!r}")
        return names

    @property
    def batch_size(self) -> int:
        """Files per batch."""
        return BATCH if self.batch is None else self.batch

    def decoding(self) -> DecodingSettings:
        """How files are read."""
        return DecodingSettings(self.formats, self.max_pixels, orient=self.orient)
