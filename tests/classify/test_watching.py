import os
import threading
import time

import pytest

from ramen.classify.files import follow

LATER = time.time() + 1e6  # a time that is never long ago


class Looks(threading.Event):
    """Stands for the passing of time: a step is done between two looks, and the last one ends everything."""

    def __init__(self, *steps):
        super().__init__()
        self.steps = list(steps)

    def wait(self, timeout=None):
        if self.steps:
            self.steps.pop(0)()
        else:
            self.set()
        return self.is_set()


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def write(path, content="x", when=LATER):
    path.write_text(content)
    os.utime(path, (when, when))


def nothing():
    pass


def taken(folder, *steps):
    """Names in the order in which they were taken, with the number of looks before."""
    looks = Looks(*steps)

    def names():
        for path in follow(lambda: map(str, folder.iterdir()), 1.0, looks):
            yield os.path.basename(path), len(steps) - len(looks.steps)

    return list(names())


def test_files_that_were_there_come_at_once_in_the_order_of_their_times(folder):
    for name, when in (("b", 200), ("a", 300), ("d", 100), ("c", 200)):
        write(folder / name, when=when)
    assert taken(folder) == [("d", 0), ("b", 0), ("c", 0), ("a", 0)]


def test_a_file_that_grows_is_taken_when_it_has_stopped(folder):
    write(folder / "a", "x")
    steps = [lambda: write(folder / "a", "xx"), lambda: write(folder / "a", "xxx"), nothing, nothing]
    assert taken(folder, *steps) == [("a", 3)]


def test_a_file_that_is_rewritten_at_the_same_size_is_not_complete(folder):
    write(folder / "a", "x")
    steps = [lambda: write(folder / "a", "y", LATER + 1), nothing, nothing]
    assert taken(folder, *steps) == [("a", 2)]


def test_an_empty_file_waits_for_its_content(folder):
    write(folder / "a", "", when=100)
    assert taken(folder, nothing, nothing, lambda: write(folder / "a"), nothing, nothing) == [("a", 4)]


def test_a_file_that_is_moved_in_comes_at_once(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "a"
    write(elsewhere, when=time.time() - 3600)
    assert taken(folder, lambda: elsewhere.rename(folder / "a"), nothing) == [("a", 1)]


def test_each_file_once_and_gone_files_never(folder):
    write(folder / "a", when=100)
    write(folder / "b")
    steps = [lambda: (folder / "b").unlink(), nothing, lambda: write(folder / "c", when=100), nothing]
    assert taken(folder, *steps) == [("a", 0), ("c", 3)]


def test_it_stops_between_two_files(folder):
    for name in "abc":
        write(folder / name, when=100)
    stop = threading.Event()
    found = follow(lambda: [str(path) for path in folder.iterdir()], 60.0, stop)
    assert os.path.basename(next(found)) == "a"
    stop.set()
    assert list(found) == []


def test_it_stops_while_it_waits(folder):
    stop = threading.Event()
    thread = threading.Thread(target=lambda: list(follow(lambda: [], 3600.0, stop)))
    thread.start()
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
