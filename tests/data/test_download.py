"""Fetching an archive from a server of the tests' own, which misbehaves in all the usual ways."""

import hashlib
import io
import shutil
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ramen.data import download, registry
from ramen.data.download import DownloadError, fetch, unpack
from tests.fakes.layouts import write_cifar_c


class Server(ThreadingHTTPServer):
    """Serves ``content``; the attributes say how badly."""

    daemon_threads = True
    content = b""
    ranges = True  # answers requests for a part
    breaks_after = None  # bytes an answer has before the connection ends; a list: one for each request
    status = None  # answers this instead
    tells_length = True
    shifted = 0  # sends a part from another byte than it was asked for


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.requests.append(asked)
        status = server.status.pop(0) if server.status else None
        if status:
            self.send_error(status)
            return
        start, total = 0, len(server.content)
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + server.shifted
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
        if server.tells_length:
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
    monkeypatch.setitem(registry._RECORDS, "cifar10c", replace(info, archives=(known,)))
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    return server


def get(root, server, **options):
    return download.download("cifar10c", root, url=server.url, **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetch_check_unpack(archive, tmp_path):
    told = []
    folder = get(tmp_path / "new", archive, advance=lambda *what: told.append(what))
    assert folder == tmp_path / "new/CIFAR-10-C"
    assert len(registry.load("cifar10c", tmp_path / "new")) == 30
    assert names(tmp_path / "new") == ["CIFAR-10-C"]  # no archive, no part, no draft
    assert archive.requests == [None]
    total = len(archive.content)
    assert ("fetching", total, total) in told
    assert ("checking", total, total) in told
    assert [what for what, _, _ in told][-1] == "unpacking"


def test_nothing_to_do(archive, tmp_path):
    get(tmp_path, archive)
    get(tmp_path, archive)
    assert len(archive.requests) == 1


def test_the_archive_may_stay(archive, tmp_path):
    get(tmp_path, archive, keep_archive=True)
    assert (tmp_path / "CIFAR-10-C.tar").read_bytes() == archive.content


def test_an_archive_that_is_there_is_not_fetched(archive, tmp_path):
    (tmp_path / "CIFAR-10-C.tar").write_bytes(archive.content)
    get(tmp_path, archive)
    assert archive.requests == []
    assert names(tmp_path) == ["CIFAR-10-C"]


def test_an_archive_that_is_there_and_wrong_stays(archive, tmp_path):
    (tmp_path / "CIFAR-10-C.tar").write_bytes(b"something else")
    with pytest.raises(DownloadError, match=r"CIFAR-10-C\.tar has the md5 .* move it away"):
        get(tmp_path, archive)
    assert names(tmp_path) == ["CIFAR-10-C.tar"]


def test_a_damaged_folder_is_told_before_anything_is_fetched(archive, tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    with pytest.raises(DownloadError, match=r"is there already, but .*labels\.npy: missing.* move it away"):
        get(tmp_path, archive)
    assert archive.requests == []


def test_resumes_what_an_earlier_run_left(archive, tmp_path):
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(archive.content[:1000])
    get(tmp_path, archive)
    assert archive.requests == ["bytes=1000-"]
    assert len(registry.load("cifar10c", tmp_path)) == 30


def test_a_connection_that_breaks_is_taken_up_again(archive, tmp_path):
    archive.breaks_after = [3000, 0, 5000]
    get(tmp_path, archive)
    assert archive.requests == [None, "bytes=3000-", "bytes=3000-", "bytes=8000-"]
    assert len(registry.load("cifar10c", tmp_path)) == 30


def test_as_many_attempts_as_bring_something(archive, tmp_path):
    archive.breaks_after = [2000] * 9
    get(tmp_path, archive)
    assert len(archive.requests) == 10


def test_a_server_that_always_begins_anew_is_given_up(archive, tmp_path):
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


def test_a_server_that_sends_no_parts(archive, tmp_path):
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
    with pytest.raises(DownloadError, match="it is removed; run the same again"):
        get(tmp_path, archive)
    assert names(tmp_path) == []


def test_a_part_from_the_wrong_byte_is_refused(archive, tmp_path):
    archive.shifted = 1
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(archive.content[:1000])
    with pytest.raises(DownloadError, match="asked for the bytes from 1000 on, the server sent 'bytes 1001-"):
        get(tmp_path, archive)
    assert (tmp_path / "CIFAR-10-C.tar.part").stat().st_size == 1000


def test_a_server_that_does_not_tell_the_length(archive, tmp_path):
    archive.tells_length = False
    get(tmp_path, archive)
    assert len(registry.load("cifar10c", tmp_path)) == 30


def test_answers_that_pass_and_answers_that_stay(archive, tmp_path):
    archive.status = [503, 429]
    get(tmp_path, archive)
    assert len(archive.requests) == 3
    shutil.rmtree(tmp_path / "CIFAR-10-C")
    archive.status = [404]
    with pytest.raises(DownloadError, match="the server answered 404 Not Found; another address"):
        get(tmp_path, archive)
    assert len(archive.requests) == 4


def test_no_server(tmp_path, monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    with pytest.raises(DownloadError, match="refused, 5 times in a row; 0 bytes are kept"):
        fetch("http://127.0.0.1:9/x.tar", tmp_path / "x.part")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "x.tar"])
def test_other_addresses_are_refused(tmp_path, url):
    with pytest.raises(ValueError, match="url must begin with http"):
        fetch(url, tmp_path / "x.part")


def test_a_full_disk_is_told_before(archive, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10, 10, 5)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match="has 5 bytes free, fetching and unpacking takes"):
        get(tmp_path, archive)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["pacs", "imagenetc", "cifar10"])
def test_what_cannot_be_downloaded(tmp_path, name):
    with pytest.raises(ValueError, match=f"name: '{name}' cannot be downloaded.*Valid: cifar100c, cifar10c"):
        download.download(name, tmp_path)


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
    with pytest.raises(DownloadError, match="is not to be trusted: it holds"):
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
    with pytest.raises(DownloadError, match="is not to be trusted"):
        unpack("cifar10c", tmp_path / "x.tar", tmp_path / "CIFAR-10-C")


def test_archives_that_do_not_hold_the_set(tmp_path):
    write_tar(tmp_path / "x.tar", ("CIFAR-10-C/labels.npy", tarfile.REGTYPE, ""))
    with pytest.raises(DownloadError, match=r"does not hold a sound cifar10c: .*labels\.npy"):
        unpack("cifar10c", tmp_path / "x.tar", tmp_path / "CIFAR-10-C")
    (tmp_path / "y.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(DownloadError, match=r"y\.tar cannot be unpacked"):
        unpack("cifar10c", tmp_path / "y.tar", tmp_path / "CIFAR-10-C")
    assert names(tmp_path) == ["x.tar", "y.tar"]


def test_an_archive_cut_short(archive, tmp_path):
    (tmp_path / "x.tar").write_bytes(archive.content[: len(archive.content) // 2])
    with pytest.raises(DownloadError, match=r"cannot be unpacked|does not hold"):
        unpack("cifar10c", tmp_path / "x.tar", tmp_path / "CIFAR-10-C")
    assert names(tmp_path) == ["x.tar"]


def test_compressed_archives_are_refused(archive, tmp_path):
    import gzip

    (tmp_path / "x.tar").write_bytes(gzip.compress(archive.content))
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        unpack("cifar10c", tmp_path / "x.tar", tmp_path / "CIFAR-10-C")
