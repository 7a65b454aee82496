"""Tokens in a file: created, found, revoked while a server runs; damaged files."""

import hashlib
import json
import logging
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ramen.serve.http.auth import (
    TokenFile,
    TokenRecord,
    TokensUnreadableError,
    create_token,
    read_tokens,
    revoke_token,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def later(path: Path) -> None:
    """A clock of the file system may be too coarse to tell two writes apart."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def test_what_the_file_has(path: Path) -> None:
    token = create_token(path, "gateway", ["classify"], ["camera-*"])
    assert len(token) == 43  # 32 bytes in base64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in path.read_text()
    (record,) = json.loads(path.read_text())["tokens"]
    assert record["sha256"] == hashlib.sha256(token.encode()).hexdigest()
    assert (record["name"], record["scopes"], record["streams"]) == ("gateway", ["classify"], ["camera-*"])
    assert os.listdir(path.parent) == ["tokens.json"]


def test_tokens_differ(path: Path) -> None:
    assert len({create_token(path, f"t{n}", ["classify"]) for n in range(5)}) == 5
    assert [record.name for record in read_tokens(path)] == [f"t{n}" for n in range(5)]


def test_found_and_revoked_while_it_runs(path: Path) -> None:
    first = create_token(path, "first", ["classify"])
    tokens = TokenFile(path)
    assert tokens.find(first).name == "first"
    assert tokens.find(first[:-1]) is None
    assert tokens.find("") is None
    assert tokens.find("x" * 10_000_000) is None
    assert tokens.find("\udcff") is None
    second = create_token(path, "second", ["manage"])
    later(path)
    assert tokens.find(second).scopes == ("manage",)
    revoke_token(path, "first")
    later(path)
    assert tokens.find(first) is None
    assert tokens.find(second).name == "second"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version": 2, "tokens": []}', '{"version": 1, "tokens": [1]}', None]
)
def test_no_token_is_valid_while_the_file_cannot_be_read(path: Path, caplog, content: str | None) -> None:
    token = create_token(path, "first", ["classify"])
    whole = path.read_bytes()
    tokens = TokenFile(path)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with caplog.at_level(logging.ERROR, "ramen.serve.tokens"):
        for _ in range(2):
            with pytest.raises(TokensUnreadableError):
                tokens.find(token)
    assert len(caplog.records) == 1  # and not one for each request
    path.write_bytes(whole)
    assert tokens.find(token).name == "first"
    path.unlink()
    create_token(path, "other", ["classify"])
    assert tokens.find(token) is None


def test_a_revoked_token_stays_revoked_without_descriptors(path: Path) -> None:
    first, second = (create_token(path, name, ["classify"]) for name in ("first", "second"))
    tokens = TokenFile(path)
    revoke_token(path, "first")
    later(path)
    with no_more_descriptors():
        for token in (first, second):
            with pytest.raises(TokensUnreadableError):
                tokens.find(token)
    assert tokens.find(first) is None
    assert tokens.find(second).name == "second"


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """A block in which this process can open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_expired(path: Path) -> None:
    now = datetime.now(UTC)
    old = create_token(path, "old", ["classify"], expires=(now - timedelta(seconds=1)).isoformat())
    new = create_token(path, "new", ["classify"], expires=(now + timedelta(days=1)).isoformat())
    assert TokenFile(path).find(old) is None
    assert TokenFile(path).find(new).name == "new"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "a b"}, "name of a token must be .* got 'a b'"),
        ({"scopes": []}, "at least one of classify, manage, metrics"),
        ({"scopes": ["all"]}, "scope must be one of 'classify', 'manage', 'metrics', got 'all'"),
        ({"streams": ["a/b"]}, "stream must be a name, or a pattern"),
        ({"expires": "soon"}, "expires must be a date such as 2030-01-31, got 'soon'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_mistakes(path: Path, given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_token(path, **{"name": "a", "scopes": ["classify"]} | given)
    assert not path.exists()


def test_names(path: Path) -> None:
    create_token(path, "gateway", ["classify"])
    with pytest.raises(ValueError, match="has a token 'gateway' already"):
        create_token(path, "gateway", ["classify"])
    with pytest.raises(ValueError, match="has no token 'gatway'; did you mean 'gateway'"):
        revoke_token(path, "gatway")
    with pytest.raises(FileNotFoundError, match="no file of tokens"):
        revoke_token(path.with_name("other"), "gateway")
    with pytest.raises(FileNotFoundError, match="ramen token create"):
        TokenFile(path.with_name("other"))


@pytest.mark.parametrize(
    ("patterns", "seen"),
    [
        (("*",), {"camera-1", "camera-22", "door"}),
        (("camera-*",), {"camera-1", "camera-22"}),
        (("camera-?", "door"), {"camera-1", "door"}),
        ((), set()),
    ],
    ids=["all", "pattern", "two", "none"],
)
def test_streams(patterns: tuple[str, ...], seen: set[str]) -> None:
    record = TokenRecord("a", "0" * 64, ("classify",), patterns, "2026-01-01")
    assert {name for name in ("camera-1", "camera-22", "door") if record.sees(name)} == seen


def test_a_file_that_others_can_read(path: Path, caplog) -> None:
    create_token(path, "a", ["classify"])
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING, "ramen.serve.tokens"):
        TokenFile(path)
    assert "chmod 600" in caplog.text
