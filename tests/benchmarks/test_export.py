"""The benchmark of exported files, on very short streams; the files themselves have tests of their own."""

import json

from tests.helpers.benchmark_scripts import load_benchmark


def test_every_row_is_measured(monkeypatch, tmp_path, capsys):
    export = load_benchmark("export")
    written = []
    monkeypatch.setattr(export, "write_onnx", lambda clf, path, *affine: written.append((clf, path, affine)))

    def by_torch(path, images):
        ((clf, _, affine),) = [call for call in written if call[1] == path]
        return export.by_torch(clf, images.batches(), affine[0] if affine else None)

    monkeypatch.setattr(export, "by_file", by_torch)
    out = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["export.py", "--per-domain", "2", "--seeds", "3", "--out", str(out)])
    export.main()
    accuracy = json.loads(out.read_text())["accuracy"]
    assert accuracy["zero-shot, ONNX file"] == accuracy["zero-shot, torch"]
    assert all(0 < value <= 100 for (value,) in accuracy.values())
    assert len(accuracy) == 5
    assert len(written[1][2]) == 2
    assert "snapshots of single domains" in capsys.readouterr().out
