"""What a choice without labels reaches, on the tiny model."""

import json

import pytest
import unlabelled


def test_both_choices_are_among_the_trials(monkeypatch, tmp_path, capsys):
    out = tmp_path / "numbers.json"
    words = ["--images", "40", "--batch", "20", "--method", "tda", "--method", "tent", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["unlabelled.py", *words])
    unlabelled.main()
    assert "without labels" in capsys.readouterr().out
    data = json.loads(out.read_text())
    assert data["images"] == 40
    for row in data["methods"].values():
        accuracies = [one["accuracy"] for one in row["trials"]]
        assert row["with_labels"] == max(accuracies)
        assert row["worst"] == min(accuracies)
        near = [one for one in row["trials"] if one["movement"] <= unlabelled.MOST_MOVEMENT]
        best = max(near, key=lambda one: one["information"])
        assert row["without_labels"] == pytest.approx(best["accuracy"])
    assert len(data["methods"]["tda"]["trials"]) == 8
