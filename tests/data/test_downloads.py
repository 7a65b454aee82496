"""Downloading an archive from a local server that misbehaves in all the usual ways."""

import hashlib
import io
import shutil
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ramen.data import downloads, registry
from ramen.data.downloads import DownloadError, fetch, unpack
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
    info = registry.describe("cifar10c")
    known = replace(info.archives[0], md5=hashlib.md5(server.content).hexdigest())
    monkeypatch.setitem(registry._DATASETS, "cifar10c", replace(info, archives=(known,)))
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
    assert len(registry.load("cifar10c", tmp_path / "new")) == 30
    assert names(tmp_path / "new") == ["CIFAR-10-C"]  # no archive, no part, no temporary folder
    assert archive.requests == [None]
    total = len(archive.content)
    assert ("downloading", total, total) in calls
    assert ("checking", total, total) in calls
    assert [what for what, _, _ in calls][-1] == "unpacking"


def test_nothing_to_do(archive, tmp_path):
    get(tmp_path, archive)
    get(tmp_path, archive)
    assert len(archive.requests) == 1


def test_the_archive_can_be_kept(archive, tmp_path):
    get(tmp_path, archive, keep_archive=True)
    assert (tmp_path / "CIFAR-10-C.tar").read_bytes() == archive.content


def test_an_existing_archive_is_not_downloaded(archive, tmp_path):
    (tmp_path / "CIFAR-10-C.tar").write_bytes(archive.content)
    get(tmp_path, archive)
    assert archive.requests == []
    assert names(tmp_path) == ["CIFAR-10-C"]


def test_an_existing_wrong_archive_is_kept(archive, tmp_path):
    (tmp_path / "CIFAR-10-C.tar").write_bytes(b"something else")
    with pytest.raises(DownloadError, match=r"CIFAR-10-C\.tar has the md5 .* move it away"):
        get(tmp_path, archive)
    assert names(tmp_path) == ["CIFAR-10-C.tar"]


def test_a_damaged_folder_is_reported_before_the_download(archive, tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    with pytest.raises(DownloadError, match=r"already exists, but .*labels\.npy: missing.* move it away"):
        get(tmp_path, archive)
    assert archive.requests == []


def test_resumes_an_earlier_run(archive, tmp_path):
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(archive.content[:1000])
    get(tmp_path, archive)
    assert archive.requests == ["bytes=1000-"]
    assert len(registry.load("cifar10c", tmp_path)) == 30


def test_a_lost_connection_is_resumed(archive, tmp_path):
    archive.breaks_after = [3000, 0, 5000]
    get(tmp_path, archive)
    assert archive.requests == [None, "bytes=3000-", "bytes=3000-", "bytes=8000-"]
    assert len(registry.load("cifar10c", tmp_path)) == 30


def test_attempts_that_receive_something_do_not_count(archive, tmp_path):
    archive.breaks_after = [2000] * 9
    get(tmp_path, archive)
    assert len(archive.requests) == 10


def test_gives_up_on_a_server_that_always_starts_again(archive, tmp_path):
    archive.ranges = False
    archive.breaks_after = [5000, 3000] * 20
    with pytest.raises(DownloadError, match="5 times in a row"):
        get(tmp_path, archive)
    assert len(archive.requests) == 5


def test_a_truncated_archive_is_kept_for_the_next_run(archive, tmp_path):
    archive.breaks_after = [4000] + [0] * 50
    with pytest.raises(DownloadError, match="ended early, 5 times in a row; 4,000 bytes are kept in"):
        get(tmp_path, archive)
    assert names(tmp_path) == ["CIFAR-10-C.tar.part"]
    archive.breaks_after = None
    get(tmp_path, archive)
    assert archive.requests[-1] == "bytes=4000-"


def test_a_server_without_range_requests(archive, tmp_path):
    archive.ranges = False
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(b"x" * 1000)
    get(tmp_path, archive)
    assert archive.requests == ["bytes=1000-"]
    assert len(registry.load("cifar10c", tmp_path)) == 30


def test_a_part_that_is_complete(archive, tmp_path):
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(archive.content)
    get(tmp_path, archive)
    assert len(archive.requests) == 1


def test_a_part_that_is_too_long(archive, tmp_path):
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(archive.content + b"x")
    get(tmp_path, archive)
    assert archive.requests[1:] == [None]
    assert len(registry.load("cifar10c", tmp_path)) == 30


def test_wrong_checksum(archive, tmp_path):
    archive.content = archive.content[:-1] + b"x"
    with pytest.raises(DownloadError, match=r"has the md5 \w{32}, CIFAR-10-C\.tar must have"):
        get(tmp_path, archive)
    assert names(tmp_path) == []
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(b"another file")
    with pytest.raises(DownloadError, match="it was removed; run the same command again"):
        get(tmp_path, archive)
    assert names(tmp_path) == []


def test_a_part_from_the_wrong_byte_is_refused(archive, tmp_path):
    archive.shifted = 1
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(archive.content[:1000])
    with pytest.raises(DownloadError, match="requested the bytes from 1000, the server sent 'bytes 1001-"):
        get(tmp_path, archive)
    assert (tmp_path / "CIFAR-10-C.tar.part").stat().st_size == 1000


def test_a_server_that_does_not_send_the_length(archive, tmp_path):
    archive.sends_length = False
    get(tmp_path, archive)
    assert len(registry.load("cifar10c", tmp_path)) == 30


def test_temporary_and_permanent_errors(archive, tmp_path):
    archive.status = [503, 429]
    get(tmp_path, archive)
    assert len(archive.requests) == 3
    shutil.rmtree(tmp_path / "CIFAR-10-C")
    archive.status = [404]
    with pytest.raises(DownloadError, match="the server answered 404 Not Found; try another address"):
        get(tmp_path, archive)
    assert len(archive.requests) == 4


def test_no_server(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads.time, "sleep", lambda seconds: None)
    with pytest.raises(DownloadError, match="refused, 5 times in a row; 0 bytes are kept"):
        fetch("http://127.0.0.1:9/x.tar", tmp_path / "x.part")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "x.tar"])
def test_other_addresses_are_refused(tmp_path, url):
    with pytest.raises(ValueError, match="url must begin with http"):
        fetch(url, tmp_path / "x.part")


def test_a_full_disk_is_reported_before_the_download(archive, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10, 10, 5)
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match="has 5 bytes free, but downloading and unpacking needs"):
        get(tmp_path, archive)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["pacs", "imagenetc", "cifar10"])
def test_what_cannot_be_downloaded(tmp_path, name):
    with pytest.raises(ValueError, match=f"name: '{name}' cannot be downloaded.*Valid: cifar100c, cifar10c"):
        downloads.download(name, tmp_path)


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
    with pytest.raises(DownloadError, match="cannot be trusted: it contains"):
        unpack("cifar10c", inside / "x.tar", inside / "CIFAR-10-C")
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
        unpack("cifar10c", tmp_path / "x.tar", tmp_path / "CIFAR-10-C")


def test_archives_without_the_set(tmp_path):
    write_tar(tmp_path / "x.tar", ("CIFAR-10-C/labels.npy", tarfile.REGTYPE, ""))
    with pytest.raises(DownloadError, match=r"does not contain a complete cifar10c: .*labels\.npy"):
        unpack("cifar10c", tmp_path / "x.tar", tmp_path / "CIFAR-10-C")
    (tmp_path / "y.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(DownloadError, match=r"y\.tar cannot be unpacked"):
        unpack("cifar10c", tmp_path / "y.tar", tmp_path / "CIFAR-10-C")
    assert names(tmp_path) == ["x.tar", "y.tar"]


def test_an_archive_cut_short(archive, tmp_path):
    (tmp_path / "x.tar").write_bytes(archive.content[: len(archive.content) // 2])
    with pytest.raises(DownloadError, match=r"cannot be unpacked|does not contain"):
        unpack("cifar10c", tmp_path / "x.tar", tmp_path / "CIFAR-10-C")
    assert names(tmp_path) == ["x.tar"]


def test_compressed_archives_are_refused(archive, tmp_path):
    import gzip

    (tmp_path / "x.tar").write_bytes(gzip.compress(archive.content))
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        unpack("cifar10c", tmp_path / "x.tar", tmp_path / "CIFAR-10-C")
