"""Downloading an archive from a local server that misbehaves in all the usual ways."""

import gzip
import hashlib
import io
import shutil
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ramen.data import catalogue, downloads
from ramen.data.downloads import DownloadError, fetch
from tests.fakes.layouts import write_cifar_c


class Server(ThreadingHTTPServer):
    """Serves ``content``; the attributes say how it misbehaves."""

    daemon_threads = True
    content = b""
    ranges = True  # supports range requests
    breaks_after = None  # a list: after how many bytes each response ends
    status = None  # a list: responds with these errors first
    sends_length = True
    shifted = 0  # starts this many bytes after the requested one


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        requested = self.headers.get("Range")
        server.requests.append(requested)
        status = server.status.pop(0) if server.status else None
        if status:
            self.send_error(status)
            return
        start, total = 0, len(server.content)
        if requested and server.ranges:
            start = int(requested.removeprefix("bytes=").removesuffix("-")) + server.shifted
            if start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        body = server.content[start:]
        if server.sends_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = server.breaks_after.pop(0) if server.breaks_after else None
        self.wfile.write(body[:cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as running:
        running.requests = []
        running.url = f"http://127.0.0.1:{running.server_port}/CIFAR-10-C.tar"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def archive(tmp_path_factory, server, monkeypatch):
    """A small CIFAR-10-C as an archive on the server, with its checksum known."""
    folder = tmp_path_factory.mktemp("source")
    write_cifar_c(folder / "CIFAR-10-C", count=2)
    with tarfile.open(folder / "set.tar", "w") as tar:
        tar.add(folder / "CIFAR-10-C", "CIFAR-10-C")
    server.content = (folder / "set.tar").read_bytes()
    info = catalogue.describe("cifar10c")
    known = replace(info.archives[0], md5=hashlib.md5(server.content).hexdigest())
    monkeypatch.setitem(catalogue._DATASETS, "cifar10c", replace(info, archives=(known,)))
    monkeypatch.setattr(downloads.time, "sleep", lambda seconds: None)
    return server


def get(root, server, **options):
    return downloads.download("cifar10c", root, url=server.url, **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_download_check_unpack(archive, tmp_path):
    calls = []
    folder = get(tmp_path / "new", archive, progress=lambda *what: calls.append(what))
    assert folder == tmp_path / "new/CIFAR-10-C"
    assert len(catalogue.load("cifar10c", tmp_path / "new")) == 30
    assert names(tmp_path / "new") == ["CIFAR-10-C"]  # no archive, no part, no temporary folder
    total = len(archive.content)
    assert {("downloading", total, total), ("checking", total, total)} <= set(calls)
    get(tmp_path / "new", archive)  # nothing to do
    assert archive.requests == [None]


def test_archives_that_are_there(archive, tmp_path):
    path = tmp_path / "CIFAR-10-C.tar"
    path.write_bytes(b"something else")
    with pytest.raises(DownloadError, match=path.name):
        get(tmp_path, archive)
    assert names(tmp_path) == [path.name]  # it is kept
    path.write_bytes(archive.content)
    get(tmp_path, archive, keep_archive=True)
    assert archive.requests == []
    assert path.read_bytes() == archive.content


def test_a_damaged_folder_is_reported_before_the_download(archive, tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    with pytest.raises(DownloadError, match=r"labels\.npy"):
        get(tmp_path, archive)
    assert archive.requests == []


@pytest.mark.parametrize(
    ("behaviour", "part", "requests"),
    [
        ({}, slice(1000), ["bytes=1000-"]),  # an earlier run
        ({"breaks_after": [3000, 0, 5000]}, None, [None, "bytes=3000-", "bytes=3000-", "bytes=8000-"]),
        ({"breaks_after": [2000] * 9}, None, 10),  # attempts that receive something do not count
        ({"ranges": False}, slice(1000), ["bytes=1000-"]),
        ({}, slice(None), 1),  # the part is complete
        ({}, b"too long", [..., None]),
        ({"sends_length": False}, None, [None]),
        ({"status": [503, 429]}, None, 3),
    ],
)
def test_whatever_the_server_does_the_data_arrive(archive, tmp_path, behaviour, part, requests):
    vars(archive).update(behaviour)
    if part is not None:
        content = archive.content[part] if isinstance(part, slice) else archive.content + part
        (tmp_path / "CIFAR-10-C.tar.part").write_bytes(content)
    get(tmp_path, archive)
    assert len(catalogue.load("cifar10c", tmp_path)) == 30
    if isinstance(requests, int):
        assert len(archive.requests) == requests
    else:
        assert [b for a, b in zip(requests, archive.requests, strict=True) if a is not ...] == [
            one for one in requests if one is not ...
        ]


def test_gives_up_on_a_server_that_always_starts_again(archive, tmp_path):
    archive.ranges = False
    archive.breaks_after = [5000, 3000] * 20
    with pytest.raises(DownloadError, match="5 times in a row"):
        get(tmp_path, archive)
    assert len(archive.requests) == 5


def test_a_truncated_archive_is_kept_for_the_next_run(archive, tmp_path):
    archive.breaks_after = [4000] + [0] * 50
    with pytest.raises(DownloadError, match="4,000 bytes"):
        get(tmp_path, archive)
    assert names(tmp_path) == ["CIFAR-10-C.tar.part"]
    archive.breaks_after = None
    get(tmp_path, archive)
    assert archive.requests[-1] == "bytes=4000-"


def test_wrong_bytes_are_not_kept(archive, tmp_path):
    right = archive.content
    archive.content = right[:-1] + b"x"
    for part in (None, b"another file"):
        if part:
            (tmp_path / "CIFAR-10-C.tar.part").write_bytes(part)
        with pytest.raises(DownloadError, match="md5"):
            get(tmp_path, archive)
        assert names(tmp_path) == []
    archive.content, archive.shifted = right, 1  # a part that begins at the wrong byte is refused
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(right[:1000])
    with pytest.raises(DownloadError, match="1001"):
        get(tmp_path, archive)
    assert (tmp_path / "CIFAR-10-C.tar.part").stat().st_size == 1000


def test_servers_that_do_not_help(archive, tmp_path):
    archive.status = [404]
    with pytest.raises(DownloadError, match="404"):
        get(tmp_path, archive)
    assert len(archive.requests) == 1
    with pytest.raises(DownloadError, match="5 times in a row"):
        fetch("http://127.0.0.1:9/x.tar", tmp_path / "x.part")
    for url in ("file:///etc/passwd", "ftp://host/x", "x.tar"):
        with pytest.raises(ValueError, match="url"):
            fetch(url, tmp_path / "x.part")


def test_a_full_disk_is_reported_before_the_download(archive, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10, 10, 5)
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match="5 bytes free"):
        get(tmp_path, archive)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["pacs", "imagenetc5k", "cifar10"])
def test_what_cannot_be_downloaded(tmp_path, name):
    with pytest.raises(ValueError, match=f"name: '{name}'"):
        downloads.download(name, tmp_path)


def unpack(path, folder):
    info = catalogue.describe("cifar10c")
    downloads.unpack(info, info.archives[0], path, folder)


def write_tar(path, *members):
    with tarfile.open(path, "w") as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            member.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"abc") if member.size else None)


@pytest.mark.parametrize(
    "member",
    [
        ("../outside.npy", tarfile.REGTYPE, ""),
        ("/tmp/outside.npy", tarfile.REGTYPE, ""),
        ("CIFAR-10-C/../outside.npy", tarfile.REGTYPE, ""),
        ("CIFAR-10-C/..", tarfile.REGTYPE, ""),
        ("CIFAR-10-C/deep/a.npy", tarfile.REGTYPE, ""),
        ("other/a.npy", tarfile.REGTYPE, ""),
        ("CIFAR-10-C/link.npy", tarfile.SYMTYPE, "/etc/passwd"),
        ("CIFAR-10-C", tarfile.SYMTYPE, ".."),
        ("CIFAR-10-C/link.npy", tarfile.LNKTYPE, "CIFAR-10-C/ok.npy"),
        ("CIFAR-10-C/device", tarfile.CHRTYPE, ""),
        ("CIFAR-10-C/pipe", tarfile.FIFOTYPE, ""),
    ],
)
def test_hostile_archives(tmp_path, member):
    inside = tmp_path / "inside"
    inside.mkdir()
    write_tar(inside / "x.tar", ("CIFAR-10-C/ok.npy", tarfile.REGTYPE, ""), member)
    with pytest.raises(DownloadError, match="cannot be trusted"):
        unpack(inside / "x.tar", inside / "CIFAR-10-C")
    assert names(inside) == ["x.tar"]
    assert names(tmp_path) == ["inside"]


def test_sparse_members_are_refused(tmp_path):
    member = tarfile.TarInfo("CIFAR-10-C/bomb.npy")
    member.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0"}
    member.pax_headers |= {"GNU.sparse.size": str(10**15), "GNU.sparse.name": "CIFAR-10-C/bomb.npy"}
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert tar.next().issparse()
    with pytest.raises(DownloadError, match="cannot be trusted"):
        unpack(tmp_path / "x.tar", tmp_path / "CIFAR-10-C")


def test_archives_that_cannot_be_unpacked(archive, tmp_path):
    write_tar(tmp_path / "a.tar", ("CIFAR-10-C/labels.npy", tarfile.REGTYPE, ""))  # not the whole set
    (tmp_path / "b.tar").write_bytes(b"no archive" * 100)
    (tmp_path / "c.tar").write_bytes(archive.content[: len(archive.content) // 2])
    (tmp_path / "d.tar").write_bytes(gzip.compress(archive.content))  # its content could be of any length
    for name in "abcd":
        with pytest.raises(DownloadError, match=rf"{name}\.tar"):
            unpack(tmp_path / f"{name}.tar", tmp_path / "CIFAR-10-C")
    assert names(tmp_path) == ["a.tar", "b.tar", "c.tar", "d.tar"]
