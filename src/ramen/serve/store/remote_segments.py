"""Segments in a bucket, or wherever else fsspec reaches: a record is an object of its own.

Objects cannot grow, and buckets know no locks. So a segment is a folder of objects, one per record, and a
*lease* keeps others away: an object that its holder renews, and that is void when nobody has renewed it for a
minute. Clocks of machines that share a store must agree to within seconds.
"""

import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ramen.serve.store.segments import IS_USING, Segments
from ramen.utils.file_locks import LockedError

LEASE_SECONDS = 60.0
_SETTLING_SECONDS = 0.2  # between taking a lease and looking whether somebody else took it too
_FOLDER = re.compile(r"segment-(\d{8})")


class RemoteSegments(Segments):
    """Objects below ``path`` of an fsspec file system."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._files, self._path = filesystem, path.rstrip("/")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """A lease that a thread renews."""
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "token": secrets.token_hex(8)}
        self._take_lease(owner)
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(LEASE_SECONDS / 4):
                self._write_lease(owner)

        renewing = threading.Thread(target=renew, name="ramen-lease", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            if self._lease().get("token") == owner["token"]:
                self._files.rm_file(self._lease_path)

    @property
    def _lease_path(self) -> str:
        return f"{self._path}/lease.json"

    def _take_lease(self, owner: dict[str, Any]) -> None:
        self._refuse_if_taken(owner)
        self._write_lease(owner)
        time.sleep(_SETTLING_SECONDS)
        self._refuse_if_taken(owner)  # of two that came at once, the last to write has it

    def _refuse_if_taken(self, owner: dict[str, Any]) -> None:
        lease = self._lease()
        is_void = time.time() - float(lease.get("renewed", 0)) > LEASE_SECONDS
        if not is_void and lease.get("token") != owner["token"]:
            who = f"process {lease.get('pid', '?')} on {lease.get('host', '?')}"
            raise LockedError(f"{who} {IS_USING} ({self._path}): wait for it, or stop it")

    def _write_lease(self, owner: dict[str, Any]) -> None:
        self._files.makedirs(self._path, exist_ok=True)
        self._files.pipe_file(self._lease_path, json.dumps(owner | {"renewed": time.time()}).encode())

    def _lease(self) -> dict[str, Any]:
        try:
            lease = json.loads(self._files.cat_file(self._lease_path))
        except (FileNotFoundError, ValueError):
            return {}
        return lease if isinstance(lease, dict) else {}

    # -- segments -----------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Of all segments, in order."""
        names = (_FOLDER.fullmatch(name) for name in self._listed(self._path))
        return sorted(int(name[1]) for name in names if name)

    def read(self, number: int) -> bytearray:
        """All objects of a segment, one after the other."""
        return bytearray(b"".join(self._files.cat_file(path) for path in self._objects(number)))

    def append(self, number: int, pieces: Sequence[memoryview]) -> None:
        """Write a new object; it is durable when the call returns."""
        folder = self._folder(number)
        self._files.makedirs(folder, exist_ok=True)
        names = self._listed(folder)
        place = 1 + max((int(name) for name in names if name.isdigit()), default=-1)
        self._files.pipe_file(f"{folder}/{place:08}", b"".join(pieces))

    def cut(self, number: int, length: int) -> None:
        """Remove the objects beyond a length, and shorten the one in which it falls."""
        end = 0
        for path in self._objects(number):
            content = self._files.cat_file(path)
            kept = content[: max(0, length - end)]
            end += len(content)
            if not kept:
                self._files.rm_file(path)
            elif len(kept) < len(content):
                self._files.pipe_file(path, kept)

    def remove(self, number: int) -> None:
        """Remove all objects of a segment."""
        if self._files.exists(self._folder(number)):
            self._files.rm(self._folder(number), recursive=True)

    def snapshot(self) -> None:
        """None: groups need a folder."""

    def remove_snapshot(self) -> None:
        """There is none."""

    def set_aside(self, number: int) -> str:
        """Copy the objects to another name, and remove them."""
        aside = f"{self._folder(number)}.damaged"
        self._files.makedirs(aside, exist_ok=True)
        for path in self._objects(number):
            self._files.pipe_file(f"{aside}/{path.rsplit('/', 1)[1]}", self._files.cat_file(path))
        self.remove(number)
        return aside

    def forget_set_aside(self) -> None:
        """Remove what was set aside before."""
        for name in self._listed(self._path):
            if name.startswith("segment-") and name.endswith(".damaged"):
                self._files.rm(f"{self._path}/{name}", recursive=True)

    def _folder(self, number: int) -> str:
        return f"{self._path}/segment-{number:08}"

    def _objects(self, number: int) -> list[str]:
        folder = self._folder(number)
        return [f"{folder}/{name}" for name in self._listed(folder) if name.isdigit()]

    def _listed(self, folder: str) -> list[str]:
        """The names in a folder, in order, as they are now."""
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths)
