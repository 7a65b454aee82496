"""A store at a URL, in the memory of fsspec: everything that a folder can do."""

import time

import fsspec
import pytest

from ramen.serve.store import open_store, remote_segments
from ramen.serve.store import state_store as module
from ramen.utils.file_locks import LockedError
from tests.serve.store.streams import assert_same_state, batches, make, run

URL = "memory://bucket/camera-1"


@pytest.fixture(autouse=True)
def files(monkeypatch):
    monkeypatch.setattr(remote_segments, "_SETTLING_SECONDS", 0.01)
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def test_continues_as_if_never_stopped(monkeypatch):
    monkeypatch.setattr(module, "_LEAST_LIMIT", 2**15)
    stream = batches(150)
    whole = make()
    run(whole, None, stream)
    for done in range(0, len(stream), 10):
        method = make()
        store = open_store(URL, method)
        assert store.recovered is None
        run(method, store, stream[done : done + 10])
        store.close()
    assert_same_state(whole.state_dict(), method.state_dict())
    assert not fsspec.filesystem("memory").exists("/bucket/camera-1/segment-00000001")  # was cleaned
    assert not fsspec.filesystem("memory").exists("/bucket/camera-1/lease.json")


def test_a_damaged_end_is_cut_off(files):
    method = make()
    store = open_store(URL, method)
    run(method, store, batches(30))
    store.close()
    last = sorted(files.find("/bucket/camera-1"))[-1]
    files.pipe_file(last, files.cat_file(last)[:-9])
    again = make()
    store = open_store(URL, again)
    assert "cut off" in store.recovered
    assert again.images_seen == 25
    store.close()
    store = open_store(URL, make())
    assert store.recovered is None
    store.close()


def test_damage_elsewhere_costs_a_record(files):
    method = make()
    store = open_store(URL, method)
    run(method, store, batches(30))
    store.close()
    second = sorted(files.find("/bucket/camera-1"))[1]
    files.pipe_file(second, files.cat_file(second)[:-100] + bytes(100))
    for _ in range(2):
        again = make()
        store = open_store(URL, again)
        assert again.images_seen == 30
        store.close()
    assert any(".damaged" in path for path in files.find("/bucket/camera-1"))


def test_only_one_at_a_time(files, monkeypatch):
    store = open_store(URL, make())
    with pytest.raises(LockedError, match="is using this store"):
        open_store(URL, make())
    # Its holder is killed: nobody renews the lease any more.
    lease = files.cat_file("/bucket/camera-1/lease.json")
    store.close()
    files.pipe_file("/bucket/camera-1/lease.json", lease)
    with pytest.raises(LockedError):
        open_store(URL, make())
    now = time.time()
    monkeypatch.setattr(remote_segments.time, "time", lambda: now + 61)
    open_store(URL, make()).close()


def test_the_lease_is_renewed(files, monkeypatch):
    monkeypatch.setattr(remote_segments, "LEASE_SECONDS", 0.2)
    store = open_store(URL, make())
    first = files.cat_file("/bucket/camera-1/lease.json")
    deadline = time.monotonic() + 10
    while files.cat_file("/bucket/camera-1/lease.json") == first:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    store.close()


def test_garbage_in_place_of_the_lease_is_no_lease(files):
    files.makedirs("/bucket/camera-1", exist_ok=True)
    for content in (b"", b"[]", b"x"):
        files.pipe_file("/bucket/camera-1/lease.json", content)
        open_store(URL, make()).close()
