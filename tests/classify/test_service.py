"""``ramen classify --server`` from the outside, with a service that looks at the bytes it gets alone."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ramen.classify.output import journal_path
from ramen.cli import app
from tests.fakes.service import CLASSES, NO_IMAGE, FakeService, label_number, refusal, sent_images
from tests.helpers.photos import encoded, photo


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAMEN_TOKEN", raising=False)
    return tmp_path


@pytest.fixture
def photos(here):
    (here / "photos").mkdir()
    paths = [Path("photos") / f"{number:02}.png" for number in range(10)]
    for number, path in enumerate(paths):
        path.write_bytes(encoded(photo(number, (8, 9))))
    return paths


def classify(url, *arguments, out="labels.csv", env=None):
    command = ["classify", "photos", "--server", url, "--out", out, *map(str, arguments)]
    return CliRunner().invoke(app, command, env={"COLUMNS": "400", **(env or {})})


def rows(path="labels.csv"):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def posts(service):
    return [request for request in service.requests if request.method == "POST"]


# -- answers --------------------------------------------------------------------------------------------


def test_rows_are_the_answers_of_the_service(here, photos, service, url):
    result = classify(url, "--stream", "camera-1")
    assert result.exit_code == 0, result.output
    data = [path.read_bytes() for path in photos]
    assert service.learned == data
    assert [len(sent_images(request)) for request in posts(service)] == [4, 4, 2]
    assert {request.url.path for request in posts(service)} == {"/v1/streams/camera-1/classify"}
    found = rows()
    assert [row["file"] for row in found] == list(map(str, photos))
    assert [row["label"] for row in found] == [CLASSES[label_number(content)] for content in data]
    assert [row["changed"] for row in found] == [str(row["label"] != "cat").lower() for row in found]
    assert [row["state_version"] for row in found] == ["4"] * 4 + ["8"] * 4 + ["10"] * 2
    assert "warning: without --model" not in result.stderr


def test_page_and_sorted_folders_and_summary(here, photos, service, url):
    result = classify(url, "--page", "changes.html", "--sort-into", "sorted", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    changed = sum(label_number(content) != 0 for content in service.learned)
    assert (summary["files"], summary["changed"], summary["model"]) == (10, changed, "tiny")
    assert (summary["server"], summary["stream"]) == (url, "default")
    page = Path("changes.html").read_text()
    assert url in page
    assert f"{changed} of 10" in page or "data:image" in page
    placed = {path.name: path.parent.name for path in Path("sorted").rglob("*.png")}
    assert placed == {Path(row["file"]).name: row["label"] for row in rows()}


def test_files_that_fail_have_a_row(here, photos, service, url):
    photos[3].write_bytes(NO_IMAGE)
    photos[5].write_bytes(b"x" * (2**20 + 1))  # more than the service takes
    photos[7].unlink()
    photos[7].symlink_to("nowhere")
    result = classify(url, *photos)
    assert result.exit_code == 3, result.output
    failed = {row["file"]: row["error"] for row in rows() if row["error"]}
    assert set(failed) == {str(photos[3]), str(photos[5]), str(photos[7])}
    assert all(name in error for name, error in failed.items())
    assert len(service.learned) == 7


def test_a_second_run_does_the_rest(here, photos, service, url):
    assert classify(url, *photos[:6]).exit_code == 0
    assert len(rows()) == 10  # the folder is among the arguments
    extra = here / "photos" / "new.png"
    extra.write_bytes(encoded(photo(99)))
    result = classify(url)
    assert result.exit_code == 0, result.output
    assert "10 results already; files that are left: 1" in result.stderr
    assert service.learned[10:] == [extra.read_bytes()]


def test_an_output_of_another_model_is_refused(here, photos, service, url):
    assert classify(url).exit_code == 0
    journal = journal_path(Path("labels.csv"))
    head, rest = journal.read_text().split("\n", 1)
    values = json.loads(head)
    values["identity"]["weights"] = "0123"
    journal.write_text(f"{json.dumps(values)}\n{rest}")
    result = classify(url)
    assert result.exit_code == 2
    assert "other weights" in result.stderr


# -- classes --------------------------------------------------------------------------------------------


def test_the_stream_is_created_with_the_classes(here, photos, service, url):
    assert classify(url, "--classes", "fire_truck, cat ,dog", "--stream", "new").exit_code == 0
    assert service.streams == {"new": ["fire truck", "cat", "dog"]}
    assert classify(url, "--classes", "fire truck,cat,dog", "--stream", "new").exit_code == 0


def test_other_classes_are_refused(here, photos, service, url):
    service.streams["old"] = ["a", "b"]
    result = classify(url, "--classes", "a,c", "--stream", "old")
    assert result.exit_code == 2
    assert "the stream 'old' has other classes (a, b)" in result.stderr
    assert not Path("labels.csv").exists()
    assert service.learned == []


def test_without_classes_those_of_the_stream_are_used(here, photos, service, url):
    service.streams["old"] = ["x", *CLASSES]
    assert classify(url, "--stream", "old").exit_code == 0
    head = json.loads(journal_path(Path("labels.csv")).read_text().splitlines()[0])
    assert head["identity"]["classes"] == [
        "x",
        *CLASSES,
    ]


def test_a_token_that_may_not_create_streams(here, photos, service, url):
    service.script = []
    plain = service.handle

    def handle(request):
        return refusal(403, "scope") if request.method == "PUT" else plain(request)

    service.handle = handle
    assert classify(url).exit_code == 0
    refused = classify(url, "--classes", "a,b", "--stream", "new", out="other.csv")
    assert refused.exit_code == 1
    assert "it is scope (403 scope)" in refused.stderr


# -- mistakes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option", ["--model tiny", "--set topk=3", "--state s", "--dtype float32", "--no-orient"]
)
def test_what_the_service_decides_cannot_be_chosen(here, photos, service, url, option):
    result = classify(url, *option.split())
    assert result.exit_code == 2
    assert f"{option.split()[0]}: not with --server" in result.stderr
    assert service.requests == []


@pytest.mark.parametrize("option", ["--token x", "--stream x"])
def test_options_that_need_a_service(here, photos, option):
    command = ["classify", "photos", "--classes", "a,b", "--out", "labels.csv", *option.split()]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert f"{option.split()[0]}: only with --server" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch", "5"], "--batch must be at most 4"),
        (["--stream", "."], "stream must be a name"),
        (["--token", "a b"], "token must be printable"),
        (["--classes", "a,a"], "classes must differ"),
    ],
    ids=str,
)
def test_other_mistakes(here, photos, url, arguments, words):
    result = classify(url, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_no_service(here, photos):
    with FakeService().listening() as gone:
        pass
    result = classify(gone)
    assert result.exit_code == 1
    assert f"{gone} cannot be reached" in result.stderr
    assert not Path("labels.csv").exists()


def test_the_token(here, photos, service, url):
    service.token = "secret"
    refused = classify(url)
    assert (refused.exit_code, "invalid_token" in refused.stderr) == (1, True)
    assert classify(url, env={"RAMEN_TOKEN": "secret"}).exit_code == 0
    assert classify(url, "--token", "secret", out="other.csv").exit_code == 0
    assert not any(b"secret" in path.read_bytes() for path in here.glob(".*journal"))


def test_a_service_that_fails_on_the_way(here, photos, service, url):
    """What was answered is in the output, and the same command does the rest."""
    before = service.handle

    def handle(request):
        return refusal(500, "internal") if len(service.learned) == 8 else before(request)

    service.handle = handle
    result = classify(url)
    assert (result.exit_code, len(rows())) == (1, 8)
    assert "it is internal" in result.stderr
    service.handle = before
    assert classify(url).exit_code == 0
    assert [row["file"] for row in rows()] == list(map(str, photos))
    assert len(service.learned) == 10


def test_an_overloaded_service_is_waited_for(here, photos, service, url):
    answered = service.handle
    refused = []

    def handle(request):
        if request.method == "POST" and len(refused) < 3:
            refused.append(request)
            return refusal(429, "overloaded", retry_after_ms=1)
        return answered(request)

    service.handle = handle
    assert classify(url).exit_code == 0
    assert len(service.learned) == 10
