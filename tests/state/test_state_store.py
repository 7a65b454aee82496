"""What a store holds is what the method has learned: while it runs, after a stop, and at bounded cost."""

import os
import random
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import ramen
from ramen.methods._state import ForeignStateError
from ramen.state import SaveTimes, StateStore, open_store
from ramen.state.log import Log
from ramen.utils.files import LockedError
from tests.state.streams import assert_same_state, batches, make, results, run


def assert_stored(location, method, other):
    """``other``, which is fresh, has the state of ``method`` once it has opened the store."""
    open_store(location, other).close()
    assert_same_state(method.state_dict(), other.state_dict())


class Disk(Log):
    """A disk that is full whenever it is to be, slow until it is let go, and counts what is written."""

    def __init__(self, folder):
        super().__init__(folder)
        self.full, self.go_on = False, threading.Event()
        self.go_on.set()

    def append(self, segment, pieces):
        assert self.go_on.wait(60)
        if self.full:
            raise OSError(28, "No space left on device")
        super().append(segment, pieces)


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


FORMS = [
    *({"codec": codec, "visibility": seen} for codec in ("fp32", "sign") for seen in ("batch", "causal")),
    {"balance": False},
    {"fifo": "float16"},
    *({"name": name} for name in sorted(set(ramen.list_methods()) - {"ramen"})),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_continues_as_if_never_stopped(tmp_path, form):
    stream = batches(150 if "name" not in form else 30)
    whole = make(**form)
    expected = run(whole, None, stream)
    stops = sorted(random.Random(0).sample(range(1, len(stream)), min(10, len(stream) // 2)))
    found, method = resumed(stream, [*stops, len(stream)], tmp_path / "state", **form)
    assert all(map(torch.equal, expected, found))
    assert_same_state(whole.state_dict(), method.state_dict())


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens, in whichever order: the disk has what was flushed, and does not grow."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.method, self.stream, self.place = make(), batches(500, 4, seed=3), 0
        self.open()

    def open(self):
        self.disk = Disk(self.folder)
        self.store = StateStore(self.disk, self.method, SaveTimes("batch"))
        assert self.store.recovered is None

    @rule(count=st.sampled_from([1, 3, 60]))  # enough to be tidied
    def learn(self, count):
        for _ in range(count):
            run(self.method, self.store, [self.stream[self.place % len(self.stream)]])
            self.place += 1

    @rule()
    def reset(self):
        self.method.reset()

    @rule()
    def load_another_state(self):
        other = make()
        run(other, None, batches(12, seed=self.place))
        self.method.load_state_dict(other.state_dict())

    @rule(full=st.booleans())
    def fill_the_disk_or_make_room(self, full):
        self.disk.full = full

    @rule()
    def stop_and_start(self):
        self.disk.full = False
        self.store.close()
        kept, self.method = self.method.state_dict(), make()
        self.open()
        if self.place:
            assert_same_state(kept, self.method.state_dict())

    @rule()
    def be_killed(self):
        """A process that is killed leaves the files as they are; the last flush counts."""
        self.disk.full = False
        self.store.flush()
        kept = self.method.state_dict()
        with tempfile.TemporaryDirectory() as copy:
            for path in self.folder.glob("segment-*.log"):
                with suppress(FileNotFoundError):  # it was being tidied
                    shutil.copy(path, copy)
            again = make()
            store = open_store(copy, again)
            assert store.recovered is None
            store.close()
        if self.place:
            assert_same_state(kept, again.state_dict())

    @invariant()
    def is_bounded(self):
        assert self.store.bytes < 2**19

    def teardown(self):
        self.disk.full = False
        self.store.close()
        shutil.rmtree(self.folder)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=8, stateful_step_count=15, deadline=None)


def test_whole_states_are_not_written_too_often(tmp_path):
    """A method without rows: a write that took so long is not repeated at once."""
    method, now = make("tent"), [0.0]
    times = SaveTimes("batch", clock=lambda: now[0])
    times.started()
    now[0] = 1000.0
    times.ended()
    store = StateStore(Disk(tmp_path), method, times)
    run(method, store, batches(20))
    assert not list(tmp_path.glob("segment-*"))
    store.close()
    assert len(list(tmp_path.glob("segment-*"))) == 1
    assert_stored(tmp_path, method, make("tent"))


@pytest.mark.parametrize("order", ["uniform", "one class, then others", "rare"])
def test_the_disk_holds_at_most_three_times_the_memory(tmp_path, monkeypatch, order):
    """Also if old rows stay alive, because their class does not come any more."""
    method = make(capacity=60, codec="fp16")
    monkeypatch.setattr(method, "step", _with_classes(method, order))
    store = open_store(tmp_path, method)
    limit, most, tidied = 3 * max(2**17, method.memory_bytes()), 0, False
    for batch in batches(1200, 8):
        method.predict(batch)
        store.save(results(1, method.images_seen))
        most = max(most, _bytes_in(tmp_path))
        tidied = tidied or not (tmp_path / "segment-00000001.log").exists()
    assert tidied
    assert 0.5 * limit < most <= limit
    store.close()
    assert_stored(tmp_path, method, make(capacity=60, codec="fp16"))


def _bytes_in(folder):
    """What its segments take; they may be removed while this looks."""
    total = 0
    for path in folder.glob("segment-*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


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


def test_a_record_has_what_a_batch_adds(tmp_path):
    """Not what the memory holds: with 100 times as many entries, a batch takes no more."""
    sizes = {}
    for capacity in (2, 200):
        method = make(capacity=capacity, topk=1)
        run(method, None, batches(400, 4))
        store = open_store(tmp_path / str(capacity), method)
        before = 0
        for batch in batches(8, 4, seed=1):  # the first one writes all that is known
            run(method, store, [batch])
            store.flush()
            before, sizes[capacity] = store.bytes, store.bytes - before
        store.close()
    assert sizes[200] < 1.5 * sizes[2]


@pytest.mark.parametrize(
    "other",
    [{"name": "tent"}, {"seed": 1}, {"capacity": 7}, {"codec": "fp16"}],
    ids=lambda other: next(iter(other)),
)
def test_a_state_of_something_else_is_refused_and_left_alone(tmp_path, other):
    method = make()
    store = open_store(tmp_path, method)
    run(method, store, batches(30))
    with pytest.raises(LockedError):
        open_store(tmp_path, make())
    store.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ForeignStateError, match="stays as it is"):
        open_store(tmp_path, make(**other))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert_stored(tmp_path, method, make())


def test_chosen_capacity_and_codec_are_taken_from_the_state(tmp_path):
    method = make(capacity="auto", codec="auto", memory_budget="400 KiB")
    store = open_store(tmp_path, method)
    run(method, store, batches(10))
    store.close()
    again = make(capacity="auto", codec="auto")
    assert (again.capacity, again.codec) != (method.capacity, method.codec)
    assert_stored(tmp_path, method, again)
    assert (again.capacity, again.codec) == (method.capacity, method.codec)


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path, caplog):
    method, stream = make(), batches(60)
    disk = Disk(tmp_path)
    store = StateStore(disk, method, SaveTimes("batch"))
    run(method, store, stream[:4])
    store.flush()
    disk.full = True
    run(method, store, stream[4:9])
    with pytest.raises(OSError, match="No space left"):
        store.flush()
    assert store.failures == 6
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3  # the 1st, 2nd and 4th time
    disk.full = False
    run(method, store, stream[9:])
    store.close()
    assert_stored(tmp_path, method, make())


def test_a_disk_that_fills_up_within_a_record_keeps_what_was_there(tmp_path, monkeypatch):
    method, stream = make(), batches(60)
    store = open_store(tmp_path, method)
    run(method, store, stream[:4])
    store.flush()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("segment-*")}
    write, room = os.write, [1000]

    def limited(handle, piece):
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(handle, piece[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    run(method, store, stream[4:5])
    with pytest.raises(OSError, match="No space left"):
        store.flush()
    assert {path.name: path.read_bytes() for path in tmp_path.glob("segment-*")} == before
    monkeypatch.undo()
    store.close()
    assert_stored(tmp_path, method, make())


@pytest.mark.parametrize(("every", "saved"), [("batch", 30), (12, 24), ("0.0s", 30), ("1000s", 0)])
def test_it_saves_when_it_is_told_to(tmp_path, every, saved):
    method = make()
    store = open_store(tmp_path, method, save_every=every)
    for batch in batches(30, 6):
        run(method, store, [batch])
        store.keep_up()
    store.close(save=False)
    again = make()
    open_store(tmp_path, again).close()
    assert again.images_seen in (saved, saved - 6)  # what is being written when it closes may still arrive


@pytest.mark.parametrize("every", ["often", "s", "-3s", 0, 1.5, True])
def test_other_times_are_refused(tmp_path, every):
    with pytest.raises((ValueError, TypeError), match="save_every"):
        open_store(tmp_path, make(), save_every=every)


def test_what_is_no_store_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for location in (tmp_path / "file", "s3://bucket/x"):
        with pytest.raises(ValueError, match="store must be a folder"):
            open_store(location, make())
    (tmp_path / "group").mkdir()
    with pytest.raises(ForeignStateError, match="a group of processes has saved"):
        open_store(tmp_path, make())


def test_many_stores_may_share_threads(tmp_path):
    methods = [make() for _ in range(3)]
    with ThreadPoolExecutor(1) as writers:
        stores = [open_store(tmp_path / str(n), m, writers=writers) for n, m in enumerate(methods)]
        for method, store in zip(methods, stores, strict=True):
            run(method, store, batches(200))  # until it is tidied, by the thread that appends too
            store.close()
    for number, method in enumerate(methods):
        assert_stored(tmp_path / str(number), method, make())


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
    method, disk = make(), Disk(tmp_path)
    disk.go_on.clear()
    store = StateStore(disk, method, SaveTimes("0.01s"))
    for batch in batches(30):
        run(method, store, [batch])
        time.sleep(0.02)  # it is time to write again
    assert store.bytes == 0
    disk.go_on.set()
    store.close()
    assert_stored(tmp_path, method, make())


# -- when, on a clock that the test sets --------------------------------------------------------------------


def pauses(count, **options):
    """Seconds until each of so many writes is due, found to a hundredth."""
    now, found = [100.0], []
    times = SaveTimes("2s", clock=lambda: now[0], **options)
    for _ in range(count):
        start = now[0]
        while not times.due(1, patient=False):
            now[0] += 0.01
        found.append(now[0] - start)
        times.started()
        times.ended()
    return found


def test_a_store_by_itself_is_written_on_time_and_many_at_different_times_but_never_later():
    assert pauses(5) == pytest.approx([2.0] * 5, abs=0.02)
    found = pauses(200, spread=True)
    assert 1.48 <= min(found) < 1.55
    assert 1.95 < max(found) <= 2.02
