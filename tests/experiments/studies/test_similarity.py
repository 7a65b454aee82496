"""The similarity study."""

import pytest
import torch

from ramen.data.registry import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.run.results import read_result, write_result
from ramen.experiments.studies.similarity import embed, similarity_study
from ramen.experiments.studies.similarity_pairs import exact_bins
from ramen.models.tiny_clip.model import load_tiny


@pytest.fixture(scope="module")
def tiny():
    data = load("tiny", domains=["gaussian_noise", "fog", "neon"], pictures=40)
    return load_tiny(data.classes), make_stream("mixed", data, seed=0)


def test_study(tiny, tmp_path):
    classifier, stream = tiny
    seen = []
    result = similarity_study(classifier, stream, batch=50, progress=lambda *step: seen.append(step))
    write_result(tmp_path / "study.json", result)
    assert read_result(tmp_path / "study.json") == result
    assert (result["kind"], result["study"]) == ("study", "similarity")
    embeddings, labels = embed(classifier, stream, 30, lambda *step: None)
    whole = result["data"]["readings"]["all"]
    expected = exact_bins(embeddings, torch.from_numpy(stream.domain.copy()), labels)["all"]
    assert whole["pairs"] == 120 * 119 // 2
    assert whole["shares"] == pytest.approx(expected.shares, abs=0.3)
    assert whole["shares"][0] > 60  # drawings of one domain look alike
    (table,) = result["tables"]
    assert table["columns"] == ["bin", "all pairs, %", "of one pseudo-class, %", "paper, %"]
    assert table["rows"][0][1] == f"{whole['shares'][0]:.2f}"
    assert table["rows"][0][3] == "40.1"
    assert table["rows"][-1][3] == "11.86"
    assert "not over all pairs" in table["note"]
    assert seen[0] == ("embedding", 50, 120)
    assert seen[-1] == ("comparing pairs", 2, 2)


def test_study_of_drawn_pairs(tiny):
    classifier, stream = tiny
    result = similarity_study(classifier, stream, pairs=3000, seed=2)
    reading = result["data"]["readings"]["class"]
    assert reading["pairs"] == 3000
    assert len(reading["errors"]) == 10
    assert "±" in result["tables"][0]["rows"][0][1]
    assert (result["data"]["pairs_drawn"], result["data"]["seed"]) == (3000, 2)
