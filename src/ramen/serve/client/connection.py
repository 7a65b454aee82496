"""What both clients are given, checked, and how httpx is used."""

import os
import socket
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ramen.serve.client.errors import ConnectionLostError, ServerError, UnreachableError
from ramen.serve.client.image_batches import ImageBatches
from ramen.serve.client.image_loading import MAX_BYTES, load_image
from ramen.serve.client.retries import Attempts, RetrySettings
from ramen.serve.client.server_calls import ClassifyOptions, Loaded, ServerCall, stream_path
from ramen.serve.http.backend import ServedModel
from ramen.utils import checks

if TYPE_CHECKING:
    import httpx

TOKEN_VARIABLE = "RAMEN_TOKEN"
IN_FLIGHT = 4  # requests at a time
_GRACE = (
    10.0  # seconds that a reply may come late: a batch that is being computed at its deadline is answered
)
_CONNECT = 10.0  # seconds
_IDLE = 2.0  # seconds after which a connection is not used again; servers close theirs a little later
_MAX_REQUEST = 2**25  # bytes of images in a request, unless a single one has more


@dataclass(frozen=True)
class ConnectionSettings:
    """Where the service is, and how to talk to it; see ``Client``.

    Attributes:
        url: Without a slash at its end.
        token: None if there is none.
        stream: The stream that is used if none is named.
        timeout: Seconds in which the service is to answer a request.
        retrying: When a request is sent again.
        in_flight: Requests at a time.
        max_bytes: The most bytes that are read from a file.
    """

    url: str
    token: str | None
    stream: str
    timeout: float
    retrying: RetrySettings
    in_flight: int = IN_FLIGHT
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", check_url(self.url))
        object.__setattr__(self, "token", _check_token(self.token))
        stream_path(self.stream)
        checks.number("timeout", self.timeout, 0, exclusive=True)
        checks.integer("in_flight", self.in_flight, 1)
        checks.integer("max_bytes", self.max_bytes, 1)

    @property
    def max_request_bytes(self) -> int:
        """The most bytes of images that are put into one request, unless a single image has more."""
        return _MAX_REQUEST

    def __repr__(self) -> str:  # a token must not appear in logs
        return f"{self.url!r}, stream={self.stream!r}"

    def httpx_options(self) -> dict[str, Any]:
        """For httpx, which verifies certificates and does not follow redirects."""
        httpx = import_httpx()
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {
            "base_url": self.url,
            "headers": {"Accept": "application/json", **headers},
            "timeout": httpx.Timeout(self.timeout + _GRACE, connect=min(_CONNECT, self.timeout)),
            "limits": httpx.Limits(max_connections=None, keepalive_expiry=_IDLE),
        }


def check_url(url: object) -> str:
    """The URL of a service, without a slash at its end; ValueError if it is none."""
    if not isinstance(url, str):
        raise TypeError(f"url must be text such as 'http://localhost:8000', got {type(url).__name__}")
    parts = urlsplit(url)
    if "@" in parts.netloc:  # not shown: it may be a password
        raise ValueError("url must not contain a user or a password: use token, or the variable RAMEN_TOKEN")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url must start with http:// or https:// and name a host, got {url!r}")
    if parts.query or parts.fragment:
        raise ValueError(f"url must have neither a query nor a fragment, got {url!r}")
    return url.rstrip("/")


def _check_token(token: object) -> str | None:
    if token is None:
        token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None:
        return None
    if not isinstance(token, str):
        raise TypeError(f"token must be text, got {type(token).__name__}")
    if not token.isascii() or not token.isprintable() or not token.strip() or " " in token:
        raise ValueError("token must be printable ASCII text without blanks")  # without showing it
    return token


def import_httpx() -> Any:
    """The package; ModuleNotFoundError, with what to install, if it is missing."""
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ramen.Client needs the package httpx: pip install 'ramen-tta[client]'"
        ) from error
    return httpx


def as_server_error(error: "httpx.RequestError", url: str) -> ServerError:
    """What went wrong on the way to the service, or back."""
    httpx = import_httpx()
    words = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        unreachable = UnreachableError(f"{url} cannot be reached: {words}", nothing_done=True)
        unreachable.temporary = not _stays_wrong(error)
        return unreachable
    if isinstance(error, httpx.TransportError):
        return ConnectionLostError(
            f"no reply from {url}: {words}; the request may have been carried out nevertheless"
        )
    return ServerError(f"the reply of {url} cannot be read: {words}")


def _stays_wrong(error: BaseException | None) -> bool:
    """Whether the name of the host, or its certificate, is the reason: trying again does not help."""
    while error is not None:
        if isinstance(error, ssl.SSLError | socket.gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


class ServerConnection(ABC):
    """What clients have in common: their settings. See ``Client`` for the arguments."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        stream: str = "default",
        *,
        timeout: float = 30.0,
        retries: int = 8,
        retry_seconds: float = 60.0,
        resend_uncertain: bool = False,
        in_flight: int = IN_FLIGHT,
        max_bytes: int = MAX_BYTES,
        transport: Any = None,
    ) -> None:
        retrying = RetrySettings(retries, retry_seconds, resend_uncertain)
        self._settings = ConnectionSettings(url, token, stream, timeout, retrying, in_flight, max_bytes)
        self._httpx = import_httpx()
        self._http = self._open(transport=transport, **self._settings.httpx_options())
        self._model: ServedModel | None = None

    @abstractmethod
    def _open(self, **options: Any) -> Any:
        """A client of httpx."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings!r})"

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._settings.url

    def _attempts(self, call: ServerCall[Any]) -> Attempts:
        return Attempts(self._settings.retrying, call.repeatable)

    def _load(self, source: object, place: int, stream: str) -> Loaded:
        return load_image(source, place, stream, self._settings.max_bytes)

    def _collected(self, batch_size: int) -> ImageBatches:
        return ImageBatches(batch_size, self._settings.max_request_bytes)

    def _options(self, stream: str | None, all_probabilities: bool) -> ClassifyOptions:
        return ClassifyOptions(self._named(stream), self._settings.timeout, all_probabilities)

    def _named(self, stream: str | None) -> str:
        return self._settings.stream if stream is None else stream
