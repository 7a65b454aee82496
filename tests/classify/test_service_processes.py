"""``ramen classify --server`` as a process of its own: stopped, killed, following a folder."""

import csv
import os
import signal
import threading

import pytest

from tests.helpers.classify_process import ClassifyProcess
from tests.helpers.photos import encoded, photo


@pytest.fixture
def photos(tmp_path):
    """Their paths; processes run in the folder above theirs."""
    (tmp_path / "photos").mkdir()
    paths = [tmp_path / "photos" / f"{number:02}.png" for number in range(10)]
    for number, path in enumerate(paths):
        path.write_bytes(encoded(photo(number, (8, 9))))
    return paths


def files(folder):
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        return [row["file"] for row in csv.DictReader(file)]


def test_a_stop_writes_down_all_that_was_learned(tmp_path, photos, service, url):
    sent, go = threading.Event(), threading.Event()

    def wait():
        sent.set()
        assert go.wait(60)

    service.before_answer = wait
    with ClassifyProcess(["photos", "--server", url, "--out", "labels.csv"], tmp_path) as process:
        process.wait_for(sent.is_set)
        process.send(signal.SIGTERM)
        process.wait_for(lambda: "stopping after this batch" in process.stderr)
        go.set()
        assert process.wait() == 143
    assert len(files(tmp_path)) == len(service.learned) == 4


def test_a_kill_may_cost_one_request(tmp_path, photos, service, url):
    """Files that were under way are learned again, and the command says so."""
    second, go = threading.Event(), threading.Event()

    def wait():
        if service.learned:
            second.set()
            go.wait(60)

    service.before_answer = wait
    arguments = ["photos", "--server", url, "--out", "labels.csv"]
    with ClassifyProcess(arguments, tmp_path) as process:
        process.wait_for(second.is_set)
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    go.set()
    with ClassifyProcess(arguments, tmp_path) as process:
        assert process.wait() == 0, process.stderr
        assert "may have learned up to 4 files" in process.stderr
    assert files(tmp_path) == [f"photos/{path.name}" for path in photos]
    twice = [data for data in service.learned if service.learned.count(data) > 1]
    assert set(twice) <= {path.read_bytes() for path in photos[4:8]}


def test_new_files_are_sent_until_it_is_stopped(tmp_path, photos, service, url):
    arguments = ["photos", "--server", url, "--out", "labels.csv", "--watch", "--interval", "0.05"]
    with ClassifyProcess(arguments, tmp_path) as process:
        process.wait_for(lambda: len(service.learned) == 10)
        extra = tmp_path / "extra.png"
        extra.write_bytes(encoded(photo(99)))
        os.rename(extra, tmp_path / "photos" / "extra.png")
        process.wait_for(lambda: len(service.learned) == 11)
        process.send(signal.SIGINT)
        assert process.wait() == 0, process.stderr
    assert len(files(tmp_path)) == 11
