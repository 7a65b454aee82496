"""``ramen tune`` and ``--tuned``, with real runs of the tiny model."""

import json

import pytest
import torch

from ramen import create, information
from ramen.data.corruptions import EXTRA_CORRUPTIONS
from ramen.experiments.experiment import plan
from ramen.experiments.run import Loaded
from ramen.experiments.store import read_result
from tests.helpers.ramen_command import ramen

FEW = ("--data-set", "pictures=4", "--device", "cpu", "--batch", "8")
SPACES = "budget = 2\n[default]\nlr = [1e-3, 0.3]\n[tda]\npositive_alpha = [0.5, 1.0]\n"


def complaint(*arguments):
    return " ".join(ramen(*arguments, code=2).stderr.replace("│", " ").split())


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A small search of three methods."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "spaces.toml").write_text(SPACES)
    words = ["tune", *FEW, "--spaces", folder / "spaces.toml", "--store", folder / "store", "--json"]
    words += ["--method", "tent", "--method", "tda", "--method", "ensemble"]
    return folder, words, json.loads(ramen(*words).stdout)


def trials(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob(".trials/**/*.json")}


def test_it_sees_only_what_no_test_uses(searched):
    folder, _, result = searched
    data = result["data"]
    assert data["domains"] == list(EXTRA_CORRUPTIONS)
    assert data["seeds"] == [1000, 1001]
    assert [stream["seed"] for stream in result["provenance"]["streams"]] == [1000, 1001]
    for path in trials(folder):
        run = read_result(path)
        assert set(run["scores"]["domains"]) <= set(EXTRA_CORRUPTIONS)
        assert run["experiment"]["seed"] in (1000, 1001)


def test_the_result_has_every_trial_and_its_cost(searched):
    folder, _, result = searched
    methods = result["data"]["methods"]
    counts = {method: len(one["trials"]) for method, one in methods.items()}
    assert counts == {"tent": 2, "tda": 2, "ensemble": 1}
    files = {path: read_result(path) for path in trials(folder)}
    assert len(files) == 2 * sum(counts.values())
    for method, one in methods.items():
        for trial in one["trials"]:
            runs = sorted(
                (
                    run["experiment"]["seed"],
                    run["scores"]["average"],
                )
                for run in files.values()
                if run["experiment"]["method"] == method
                and run["provenance"]["method"]["parameters"] == trial["parameters"]
            )
            assert [accuracy for _, accuracy in runs] == trial["seeds"]
            assert trial["cost"]["images"] == 2 * 4 * len(EXTRA_CORRUPTIONS)
        best = max(trial["accuracy"] for trial in one["trials"])
        assert one["trials"][one["best"]]["accuracy"] == best
    assert methods["tent"]["cost"]["backward_passes"] == 64
    assert methods["tda"]["cost"]["backward_passes"] == 0
    (file,) = (folder / "store" / "tuning").glob("*.json")
    assert read_result(file) == result


def test_it_resumes_and_chooses_the_same(searched):
    folder, words, result = searched
    before = trials(folder)
    lost = sorted(before)[0]
    lost.unlink()
    again = json.loads(ramen(*words).stdout)
    after = trials(folder)
    assert {path for path in before if after[path] != before[path]} == {lost}
    chosen = {method: one["chosen"] for method, one in result["data"]["methods"].items()}
    assert {method: one["chosen"] for method, one in again["data"]["methods"].items()} == chosen
    assert again["data"]["search"] == result["data"]["search"]
    for method, one in again["data"]["methods"].items():
        assert [t["seeds"] for t in one["trials"]] == [
            t["seeds"] for t in result["data"]["methods"][method]["trials"]
        ]


def test_a_queue_gives_the_same(searched, tmp_path):
    _, words, result = searched
    words = [tmp_path if word == words[words.index("--store") + 1] else word for word in words]
    queued = json.loads(ramen(*words, "--jobs", 1, "--method", "ensemble").stdout)
    assert queued["data"]["search"] == result["data"]["search"]
    for method, one in queued["data"]["methods"].items():
        assert one["chosen"] == result["data"]["methods"][method]["chosen"]


def test_comparisons_use_the_values(searched, tmp_path):
    folder, _, result = searched
    (file,) = (folder / "store" / "tuning").glob("*.json")
    common = (*FEW, "--domain", "fog", "--store", tmp_path, "--tuned", file)
    shown = json.loads(ramen("compare", "--run", *common, "--json").stdout)
    assert {row["method"] for row in shown["tables"][1]["rows"]} == {"tent", "tda", "ensemble"}
    chosen = {method: one["chosen"] for method, one in result["data"]["methods"].items()}
    runs = [read_result(path) for path in tmp_path.rglob("*.json")]
    assert len(runs) == 3
    for run in runs:
        method = run["experiment"]["method"]
        assert run["tuned"]["parameters"] == chosen[method]
        assert run["experiment"]["parameters"].items() >= chosen[method].items()
    # what was only tried is in no table
    assert "there are no results of runs" in complaint("compare", folder / "store")


def test_a_stream_of_the_search_is_refused(searched, tmp_path):
    folder, _, _ = searched
    (file,) = (folder / "store" / "tuning").glob("*.json")
    common = ("run", *FEW, "--method", "tent", "--out", tmp_path, "--tuned", file)
    assert "chosen on seed 1000" in complaint(*common, "--seed", 1000)
    assert "chosen on spatter" in complaint(*common, "--domain", "spatter")
    assert "did not include method 'ramen'" in complaint(*common, "--method", "ramen")
    assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def chosen_blindly(tmp_path_factory):
    """Settings of two methods chosen on the first 40 images of a stream of 54."""
    folder = tmp_path_factory.mktemp("blind")
    (folder / "spaces.toml").write_text("budget = 3\n[default]\nlr = [1e-4, 0.03, 0.5]\n")
    words = ["tune", "--without-labels", "--images", 40, *STREAM, "--spaces", folder / "spaces.toml"]
    words += ["--method", "tent", "--method", "entmin", "--store", folder / "store", "--json"]
    return folder, words, json.loads(ramen(*words).stdout)


STREAM = ("--data-set", "pictures=3", "--data-set", "classes=['cat', 'house', 'tree', 'star']")
STREAM += ("--device", "cpu", "--batch", "16")


def test_what_is_chosen_without_labels(chosen_blindly):
    _, _, result = chosen_blindly
    data = result["data"]
    (experiment,) = plan(
        ["tent"], data_options={"pictures": 3, "classes": ["cat", "house", "tree", "star"]}, batch=16
    )
    resources = Loaded()
    stream = resources.stream(experiment)
    classifier = resources.classifier(experiment, stream.dataset.classes)
    images = classifier.preprocess(stream.read(slice(0, 40)))
    for name in ("tent", "entmin"):
        trials = data["methods"][name]["trials"]
        for trial in trials:
            method = create(name, classifier, **trial["parameters"])
            logits = torch.cat([method.predict(batch).logits for batch in images.split(16)])
            assert trial["information"] == pytest.approx(float(information(logits)), abs=1e-6)
        allowed = [trial for trial in trials if trial["movement"] <= 0.7]
        assert 0 < len(allowed) <= len(trials)
        most = max(allowed, key=lambda trial: trial["information"])
        assert data["methods"][name]["chosen"] == most["setting"]
    assert trials[0]["movement"] < trials[1]["movement"]


def test_it_resumes_without_labels(chosen_blindly, tmp_path):
    folder, words, result = chosen_blindly
    files = {path: path.stat().st_mtime_ns for path in folder.rglob(".unlabelled/*.json")}
    assert len(files) == 6
    next(iter(files)).unlink()
    again = json.loads(ramen(*words, "--jobs", 1).stdout)
    changed = {path for path, time in files.items() if path.stat().st_mtime_ns != time}
    assert changed == {next(iter(files))}
    for method, one in again["data"]["methods"].items():
        assert one["chosen"] == result["data"]["methods"][method]["chosen"]


def test_the_first_images_count_in_the_score(chosen_blindly, tmp_path):
    folder, _, result = chosen_blindly
    (file,) = (folder / "store" / "tuning").glob("*.json")
    ramen("run", *STREAM, "--method", "tent", "--out", tmp_path, "--tuned", file)
    (path,) = tmp_path.rglob("*.json")
    run = read_result(path)
    assert sum(run["scores"]["images"].values()) == run["provenance"]["stream"]["pictures"] > 40
    assert run["tuned"]["labels"] is False
    assert run["tuned"]["parameters"] == result["data"]["methods"]["tent"]["chosen"]
    refused = complaint("run", *STREAM, "--method", "tent", "--out", tmp_path, "--tuned", file, "--seed", 1)
    assert "--tuned" in refused
    assert "seed" in refused
