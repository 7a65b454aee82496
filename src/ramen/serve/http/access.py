"""Who may do what: tokens, or everybody on this machine and nobody from elsewhere."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from ramen.serve.http.errors import ApiError
from ramen.serve.http.tokens import SCOPES, TokenFile, TokenRecord

_READING = ("GET", "HEAD", "OPTIONS")
_EVERYBODY = TokenRecord("anybody", "0" * 64, SCOPES, ("*",), "1970-01-01")
_CHALLENGE = 'Bearer realm="ramen"'


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as seen by itself alone.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_access(host: str, tokens: Path | None, *, no_auth: bool) -> None:
    """ValueError unless an operator has decided who may come in.

    Args:
        host: Where the server will listen.
        tokens: The file of tokens.
        no_auth: Whether everybody on this machine may come in.
    """
    if no_auth == (tokens is not None):
        raise ValueError(
            "say who may use the service: --tokens FILE (`ramen token create` makes one), or --no-auth to "
            "let in everybody on this machine, and not both"
        )
    if no_auth and not is_loopback(host):
        raise ValueError(
            "--no-auth is for this machine alone: --host must be a loopback address such as 127.0.0.1, "
            f"got {host}. Use --tokens FILE to serve others"
        )


class AccessRules:
    """Decides whether a request may be answered.

    Args:
        tokens: The file of tokens; None if none are needed.
    """

    def __init__(self, tokens: Path | None) -> None:
        self._tokens = None if tokens is None else TokenFile(tokens)

    def check_site(self, method: str, headers: Headers) -> None:
        """Refuse what a page of another site sends through the browser of somebody on this machine.

        Only needed without tokens: a page does not know them. The host is compared because a site may give
        its own name the address 127.0.0.1 (DNS rebinding).
        """
        if self._tokens is not None:
            return
        host = headers.get("host", "")
        if not is_loopback(_name(host)):
            raise ApiError(
                403, "foreign_host", "without tokens the host must be a loopback address such as 127.0.0.1"
            )
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}".lower())
        if method not in _READING and (foreign or headers.get("sec-fetch-site") == "cross-site"):
            raise ApiError(403, "foreign_origin", "without tokens no other site may change anything")

    def caller(self, headers: Headers) -> TokenRecord:
        """Who asks; 401 without a valid token."""
        if self._tokens is None:
            return _EVERYBODY
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise ApiError(
                401,
                "no_token",
                "a token is needed: Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": _CHALLENGE},
            )
        record = self._tokens.find(token.strip())
        if record is None:
            challenge = f'{_CHALLENGE}, error="invalid_token"'
            raise ApiError(
                401,
                "invalid_token",
                "the token is unknown, revoked or expired",
                headers={"WWW-Authenticate": challenge},
            )
        return record


def check_scope(caller: TokenRecord, scopes: Sequence[str]) -> None:
    """403 unless a token has one of these scopes."""
    if not caller.may(scopes):
        raise ApiError(403, "scope", f"the token needs the scope {' or '.join(scopes)}")


def check_stream(caller: TokenRecord, stream: str) -> None:
    """403 unless a token may use a stream."""
    if not caller.sees(stream):
        raise ApiError(403, "stream", "the token is not valid for this stream")


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
