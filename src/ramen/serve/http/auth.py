"""Who may do what: tokens in a file, or everybody on this machine and nobody from elsewhere.

A file of tokens has their hashes, what each may do, and in which streams. A token has 256 random bits, so
that a plain SHA-256 of it cannot be reversed; the token itself is shown once.
"""

import hashlib
import hmac
import ipaddress
import json
import logging
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from ramen.serve.http.errors import ApiError
from ramen.utils import checks
from ramen.utils.files import atomic_write, file_lock, private_files

SCOPES = ("classify", "manage", "metrics")
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_BYTES = 32
_LONGEST = 512  # characters of a token that is looked up at all
_LOGGER = logging.getLogger("ramen.serve.tokens")
_READING = ("GET", "HEAD", "OPTIONS")
_CHALLENGE = 'Bearer realm="ramen"'

# -- the file of tokens -----------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenRecord:
    """One token, without the token.

    Attributes:
        name: Who holds it; appears in logs.
        sha256: Of the token.
        scopes: What it may do, some of ``SCOPES``.
        streams: Patterns of the streams that it may use, such as "camera-*".
        created: When, in ISO 8601.
        expires: When it ends to be valid, likewise; None for never.
    """

    name: str
    sha256: str
    scopes: tuple[str, ...]
    streams: tuple[str, ...]
    created: str
    expires: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                "name of a token must be up to 64 letters, digits and . _ - and begin with a letter or a "
                f"digit, got {self.name!r}"
            )
        if not _HASH.fullmatch(self.sha256):
            raise ValueError(f"sha256 of token {self.name} must be 64 hexadecimal digits")
        if not self.scopes:
            raise ValueError(f"scope of token {self.name}: at least one of {', '.join(SCOPES)} is needed")
        for scope in self.scopes:
            checks.choice("scope", scope, SCOPES)
        for pattern in self.streams:
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"stream must be a name, or a pattern such as 'camera-*', got {pattern!r}")
        for name in ("created", "expires"):
            _moment(name, getattr(self, name))

    def may(self, scopes: Sequence[str]) -> bool:
        """Whether it has one of these scopes; any token will do if there are none."""
        return not scopes or any(scope in self.scopes for scope in scopes)

    def sees(self, stream: str) -> bool:
        """Whether it may use a stream."""
        return any(fnmatchcase(stream, pattern) for pattern in self.streams)

    def expired(self, now: datetime) -> bool:
        """Whether its time has passed."""
        ends = _moment("expires", self.expires)
        return ends is not None and ends <= now


def _moment(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise ValueError(f"{name} must be a date such as 2030-01-31, got {text!r}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_tokens(path: Path) -> list[TokenRecord]:
    """The tokens in a file; ValueError if it is damaged."""
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("version") != _VERSION:
            raise ValueError(f"it must be an object with version {_VERSION}")
        records = [_record(values) for values in content["tokens"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is not a file of tokens: {error}") from None
    names = [record.name for record in records]
    if len(set(names)) < len(names):
        raise ValueError(f"{path} is not a file of tokens: two have the same name")
    return records


def _record(values: Mapping[str, Any]) -> TokenRecord:
    lists = {name: tuple(map(str, values[name])) for name in ("scopes", "streams")}
    return TokenRecord(**{**values, **lists})


def create_token(
    path: Path, name: str, scopes: Sequence[str], streams: Sequence[str] = ("*",), expires: str | None = None
) -> str:
    """Add a token to a file, which is created if it is missing; returns the token.

    Args:
        path: The file.
        name: Who will hold it.
        scopes: What it may do.
        streams: Patterns of the streams that it may use.
        expires: When it ends to be valid, in ISO 8601.
    """
    token = secrets.token_urlsafe(_BYTES)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    record = TokenRecord(name, _hash(token), tuple(scopes), tuple(streams), created, expires)
    with _editing(path) as records:
        if any(other.name == name for other in records):
            raise ValueError(f"name: {path} has a token {name!r} already")
        records.append(record)
    return token


def revoke_token(path: Path, name: str) -> None:
    """Remove a token from a file; a server that uses the file notices."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file of tokens at {path}")
    with _editing(path) as records:
        kept = [record for record in records if record.name != name]
        if len(kept) == len(records):
            names = (record.name for record in records)
            raise ValueError(f"name: {path} has no token {name!r}{checks.nearest(name, names)}")
        records[:] = kept


@contextmanager
def _editing(path: Path) -> Iterator[list[TokenRecord]]:
    """The records of a file, written back unless the block fails."""
    with private_files(), file_lock(path.with_name(f".{path.name}.lock"), "is changing the tokens"):
        records = read_tokens(path) if path.exists() else []
        yield records
        content = {"version": _VERSION, "tokens": [asdict(record) for record in records]}
        with atomic_write(path) as file:
            file.write(json.dumps(content, indent=2).encode() + b"\n")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokensUnreadableError(Exception):
    """Nobody can be let in: the file of tokens cannot be read."""


class TokenFile:
    """The tokens of a file that may change at any time.

    While the file is missing, damaged or cannot be opened, no token is valid: what was revoked stays revoked.

    Args:
        path: The file. If it is damaged now, a ValueError.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(f"there is no file of tokens at {path}: `ramen token create` makes one")
        self._path = path
        self._version: tuple[int, ...] | None = self._stat()
        self._records = read_tokens(path)
        self._complaint = ""
        if path.stat().st_mode & 0o077:
            _LOGGER.warning("%s can be read by other users of this machine: chmod 600", path)

    def find(self, token: str) -> TokenRecord | None:
        """The record of a token; None if it is not valid, or no more.

        Raises:
            TokensUnreadableError: Nobody knows which tokens are valid.
        """
        self._refresh()
        if len(token) > _LONGEST:
            return None
        asked = _hash(token)
        found = None
        for record in self._records:  # all of them: the time must not depend on which one it is
            if hmac.compare_digest(record.sha256, asked):
                found = record
        return None if found is None or found.expired(datetime.now(UTC)) else found

    def _refresh(self) -> None:
        try:
            version = self._stat()
            if version == self._version:
                return
            self._version, self._records = None, []  # until they are read
            self._records = read_tokens(self._path)
        except (OSError, ValueError) as error:
            self._version = None
            if str(error) != self._complaint:
                self._complaint = str(error)
                _LOGGER.error("no token is valid, as the file of tokens cannot be read: %s", error)
            raise TokensUnreadableError from None
        self._version, self._complaint = version, ""
        _LOGGER.info("read %d tokens from %s", len(self._records), self._path)

    def _stat(self) -> tuple[int, ...]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino


# -- requests ---------------------------------------------------------------------------------------

_EVERYBODY = TokenRecord("anybody", "0" * 64, SCOPES, ("*",), "1970-01-01")


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
            "accept any client on this machine, and not both"
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

    @property
    def has_tokens(self) -> bool:
        """Whether callers need one."""
        return self._tokens is not None

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
        try:
            record = self._tokens.find(token.strip())
        except TokensUnreadableError:
            raise ApiError(
                503,
                "tokens_unreadable",
                "the server cannot read its file of tokens",
                retry_after=1,
            ) from None
        if record is None:
            challenge = f'{_CHALLENGE}, error="invalid_token"'
            raise ApiError(
                401,
                "invalid_token",
                "the token is unknown, revoked or expired",
                headers={"WWW-Authenticate": challenge},
            )
        return record


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
