"""What a store holds is what the method has learned: while it runs, after a stop, and at bounded cost."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import ramen
from ramen.methods._saved_state import ForeignStateError
from ramen.state import SaveTimes, StateStore, open_store
from ramen.state import store as module
from ramen.state.log import Log
from ramen.utils.files import LockedError
from tests.state.streams import assert_same_state, batches, make, results, run


def assert_stored(location, method, other):
    """``other``, which is fresh, has the state of ``method`` once it has opened the store."""
    open_store(location, other).close()
    assert_same_state(method.state_dict(), other.state_dict())


FORMS = [
    {"codec": codec, "visibility": visibility}
    for codec in ("fp32", "sign")
    for visibility in ("batch", "causal")
]


def resumed(stream, stops, location, name="ramen", **parameters):
    """The logits of a stream that is stopped and resumed in other processes' stead, and the last method."""
    found, done = [], 0
    for stop in stops:
        method = make(name, **parameters)
        store = open_store(location, method)
        assert store.recovered is None
        assert method.images_seen == sum(map(len, stream[:done]))
        assert [result.state_version for result in store.answers] == [method.images_seen] * len(store.answers)
        found += run(method, store, stream[done:stop])
        store.close()
        done = stop
    return found, method


@pytest.mark.parametrize("parameters", [*FORMS, {"balance": False}, {"fifo": "float16"}])
def test_continues_as_if_never_stopped(tmp_path, parameters):
    stream = batches(150)
    whole = make(**parameters)
    expected = run(whole, None, stream)
    stops = sorted(random.Random(0).sample(range(1, len(stream)), 10))
    found, method = resumed(stream, [*stops, len(stream)], tmp_path / "state", **parameters)
    assert all(map(torch.equal, expected, found))
    assert_same_state(whole.state_dict(), method.state_dict())


@pytest.mark.parametrize("name", sorted(set(ramen.list_methods()) - {"ramen"}))
def test_every_method_can_be_resumed(tmp_path, name):
    stream = batches(30)
    whole = make(name)
    expected = run(whole, None, stream)
    found, method = resumed(stream, [2, 3, len(stream)], tmp_path, name)
    assert all(map(torch.equal, expected, found))
    assert_same_state(whole.state_dict(), method.state_dict())


def test_states_of_methods_without_rows_are_written_as_a_whole_and_not_too_often(tmp_path, monkeypatch):
    method = make("tent")
    store = open_store(tmp_path, method)
    store._times._took = 1000.0  # as if the last write had taken so long
    run(method, store, batches(20))
    assert not list(tmp_path.glob("segment-*"))
    store.close()
    assert len(list(tmp_path.glob("segment-*"))) == 1
    assert_stored(tmp_path, method, make("tent"))


@pytest.mark.parametrize("order", ["uniform", "one class, then others", "rare"])
def test_the_disk_holds_at_most_three_times_the_memory(tmp_path, monkeypatch, order):
    """Also if old rows stay alive, because their class does not come any more."""
    monkeypatch.setattr(module, "_LEAST_LIMIT", 0)
    method = make(capacity=40, codec="fp16")
    monkeypatch.setattr(method, "step", _with_classes(method, order))
    store = open_store(tmp_path, method)
    limit, most, cleaned = 3 * method.memory_bytes(), 0, False
    for batch in batches(1200, 8):
        method.predict(batch)
        store.save(results(1, method.images_seen))
        most = max(most, sum(path.stat().st_size for path in tmp_path.glob("segment-*")))
        cleaned = cleaned or not (tmp_path / "segment-00000001.log").exists()
    assert cleaned
    assert 0.5 * limit < most <= limit
    store.close()
    assert_stored(tmp_path, method, make(capacity=40, codec="fp16"))


def _with_classes(method, order):
    """The method's steps after the first pass, with the predicted classes of a stream of that order."""
    step, classes = method.step, method.classifier.num_classes

    def changed(seen, usable, storable=None):
        place = method.images_seen + torch.arange(len(usable))
        wanted = {
            "uniform": place % classes,
            "one class, then others": torch.where(place < 40, 0, 1 + place % (classes - 1)),
            "rare": torch.where(place % 97 == 0, 0, 1 + place % (classes - 1)),
        }[order]
        logits = torch.nn.functional.one_hot(wanted, classes).float()
        return step(replace(seen, logits=logits), usable, storable)

    return changed


def test_a_record_has_what_a_batch_adds(tmp_path, monkeypatch):
    """Not what the memory holds: with 100 times as many entries, a batch takes no more."""
    monkeypatch.setattr(module, "_LEAST_LIMIT", 2**30)
    sizes = {}
    for capacity in (2, 200):
        method = make(capacity=capacity, topk=1)
        store = open_store(tmp_path / str(capacity), method)
        run(method, store, batches(400, 4))
        store.flush()
        before = store.bytes
        run(method, store, batches(4, seed=1))
        store.flush()
        sizes[capacity] = store.bytes - before
        store.close()
    assert sizes[200] < 1.5 * sizes[2]


def test_after_a_reset_the_old_state_is_gone(tmp_path):
    method, stream = make(), batches(60)
    store = open_store(tmp_path, method)
    run(method, store, stream[:8])
    method.reset()
    run(method, store, stream[8:])
    store.close()
    again = make()
    assert_stored(tmp_path, method, again)
    assert again.images_seen == 20


def test_a_state_that_was_loaded_replaces_the_old_one(tmp_path):
    other = make()
    run(other, None, batches(30, seed=1))
    method = make()
    store = open_store(tmp_path, method)
    run(method, store, batches(30))
    method.load_state_dict(other.state_dict())
    run(method, store, batches(5, seed=2))
    store.close()
    assert_stored(tmp_path, method, make())


def test_what_the_method_knew_before_is_saved_with_the_first_batch(tmp_path):
    method = make()
    run(method, None, batches(30))
    store = open_store(tmp_path, method)
    run(method, store, batches(5, seed=1))
    store.close()
    assert_stored(tmp_path, method, make())


def test_only_one_at_a_time(tmp_path):
    store = open_store(tmp_path, make())
    with pytest.raises(LockedError, match=r"process \d+ on .* is using this store"):
        open_store(tmp_path, make())
    store.close()
    open_store(tmp_path, make()).close()


@pytest.mark.parametrize(
    "other",
    [{"name": "tent"}, {"seed": 1}, {"capacity": 7}, {"codec": "fp16"}],
    ids=lambda other: next(iter(other)),
)
def test_a_state_of_something_else_is_refused_and_left_alone(tmp_path, other):
    method = make()
    store = open_store(tmp_path, method)
    run(method, store, batches(30))
    store.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="stays as it is: this state belongs to something else"):
        open_store(tmp_path, make(**other))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    again = make()
    open_store(tmp_path, again).close()
    assert again.images_seen == 30


def test_chosen_capacity_and_codec_are_taken_from_the_state(tmp_path):
    method = make(capacity="auto", codec="auto", memory_budget="400 KiB")
    store = open_store(tmp_path, method)
    run(method, store, batches(10))
    store.close()
    again = make(capacity="auto", codec="auto")
    assert (again.capacity, again.codec) != (method.capacity, method.codec)
    open_store(tmp_path, again).close()
    assert (again.capacity, again.codec) == (method.capacity, method.codec)
    assert_same_state(method.state_dict(), again.state_dict())


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path, monkeypatch, caplog):
    method, stream = make(), batches(60)
    store = open_store(tmp_path, method)
    run(method, store, stream[:4])
    store.flush()
    good = store._files.append
    monkeypatch.setattr(store._files, "append", _no_room)
    run(method, store, stream[4:9])
    with pytest.raises(OSError, match="No space left"):
        store.flush()
    assert store.failures == 6
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3  # the 1st, 2nd and 4th time
    monkeypatch.setattr(store._files, "append", good)
    run(method, store, stream[9:])
    store.close()
    assert_stored(tmp_path, method, make())


@pytest.mark.parametrize("part", ["_prepare", "_append"])
def test_errors_of_any_kind_do_not_reach_the_stream(tmp_path, monkeypatch, part):
    method, stream = make(), batches(30)
    store = open_store(tmp_path, method)
    with monkeypatch.context() as patch:
        patch.setattr(store, part, lambda *arguments: 1 / 0)
        run(method, store, stream[:3])
    run(method, store, stream[3:])
    assert store.failures == 3
    store.close()
    assert_stored(tmp_path, method, make())


def _no_room(number, pieces):
    raise OSError(28, "No space left on device")


def test_a_disk_that_fills_up_within_a_record_keeps_what_was_there(tmp_path, monkeypatch):
    method, stream = make(), batches(60)
    store = open_store(tmp_path, method)
    run(method, store, stream[:4])
    store.flush()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("segment-*")}
    write, room = module.os.write, [1000]

    def limited(handle, piece):
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(handle, piece[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr("ramen.state.log.os.write", limited)
    run(method, store, stream[4:5])
    with pytest.raises(OSError, match="No space left"):
        store.flush()
    assert {path.name: path.read_bytes() for path in tmp_path.glob("segment-*")} == before
    monkeypatch.undo()
    store.close()
    again = make()
    open_store(tmp_path, again).close()
    assert again.images_seen == 25


@pytest.mark.parametrize(("every", "saved"), [("batch", 30), (12, 30), ("0.0s", 30), ("1000s", 0)])
def test_it_saves_when_it_is_told_to(tmp_path, every, saved):
    method = make()
    store = open_store(tmp_path, method, save_every=every)
    run(method, store, batches(30))
    store._settle()
    store._stack.close()  # without the last save that close() does
    again = make()
    open_store(tmp_path, again).close()
    assert again.images_seen == saved


@pytest.mark.parametrize("every", ["often", "s", "-3s", 0, 1.5, True])
def test_other_times_are_refused(tmp_path, every):
    with pytest.raises((ValueError, TypeError), match="save_every"):
        open_store(tmp_path, make(), save_every=every)


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="store must be a folder, got the file"):
        open_store(tmp_path / "file", make())


def test_a_url_and_what_a_group_has_saved_are_refused(tmp_path):
    with pytest.raises(ValueError, match="store must be a folder, got the URL s3://bucket/x: mount"):
        open_store("s3://bucket/x", make())
    (tmp_path / "group").mkdir()
    with pytest.raises(ForeignStateError, match="a group of processes has saved"):
        open_store(tmp_path, make())
    assert [path.name for path in tmp_path.iterdir()] == ["group"]


def test_many_stores_may_share_threads(tmp_path):
    methods = [make() for _ in range(3)]
    with ThreadPoolExecutor(1) as writers:
        stores = [open_store(tmp_path / str(n), m, writers=writers) for n, m in enumerate(methods)]
        for method, store in zip(methods, stores, strict=True):
            run(method, store, batches(10))
            store.close()
    for number, method in enumerate(methods):
        again = make()
        open_store(tmp_path / str(number), again).close()
        assert_same_state(again.state_dict(), method.state_dict())


def test_a_stream_that_pauses_catches_up(tmp_path):
    method = make()
    store = open_store(tmp_path, method, save_every="0.2s")
    run(method, store, batches(15))
    until = time.monotonic() + 60
    while not store.keep_up():
        assert time.monotonic() < until
        time.sleep(0.02)
    size = store.bytes
    assert size > 0
    assert store.keep_up()
    assert store.bytes == size
    store.close()


def test_what_takes_long_to_write_delays_no_batch_if_the_clock_decides(tmp_path):
    """The disk is slower than the stream; nothing is lost."""

    class SlowLog(Log):
        def append(self, segment, pieces):
            assert go_on.wait(60)
            super().append(segment, pieces)

    go_on = threading.Event()
    method = make()
    store = StateStore(SlowLog(tmp_path), method, SaveTimes("0.01s"))
    for batch in batches(30):
        run(method, store, [batch])
        time.sleep(0.02)  # it is time to write again
    assert store.bytes == 0
    go_on.set()
    store.close()
    again = make()
    open_store(tmp_path, again).close()
    assert_same_state(again.state_dict(), method.state_dict())


def test_a_reset_is_written_too(tmp_path):
    method = make()
    store = open_store(tmp_path, method)
    run(method, store, batches(10))
    store.flush()
    method.reset()
    store.close()
    again = make()
    open_store(tmp_path, again).close()
    assert again.images_seen == 0
    assert len(again.memory) == 0
