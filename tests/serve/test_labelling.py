import pytest

from ramen.serve.labelling import in_batches, label_files, recover
from ramen.serve.outputs.output import open_output
from tests.fakes.predictors import FakePredictor
from tests.fakes.served_results import IDENTITY, answer


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for path in paths:
        path.write_bytes(b"x")
    return [str(path) for path in paths]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "labels.csv"


def keys(out):
    with open_output(out, IDENTITY) as output:
        return [result.key for result in output.results()]


def test_results_come_in_the_batches_in_which_they_were_answered(files):
    """Also if these have different sizes, as with files that arrive slowly, and contain errors."""
    predictor = FakePredictor(3, 1, 2, 9)
    batches = list(in_batches(predictor, [*files, "gone.png"]))
    assert [len(batch) for batch in batches] == [3, 1, 2, 5]
    assert [result.key for batch in batches for result in batch] == [*files, "gone.png"]
    assert [len(batch) for batch in in_batches(predictor, files)] == [9, 1]


def test_a_batch_is_in_the_output_before_the_next_is_answered(files, out):
    predictor = FakePredictor(4)
    with open_output(out, IDENTITY) as output:
        seen = []

        def check(batch):
            seen.append([result.key for result in batch])
            assert output.keys == set(predictor.learned)

        label_files(predictor, files, output, after_batch=check)
    assert seen == [files[:4], files[4:8], files[8:]]
    assert keys(out) == files


def test_what_was_learned_is_on_disk_before_the_results_are(files, out, monkeypatch):
    predictor, order = FakePredictor(4), []
    monkeypatch.setattr(predictor, "flush", lambda: order.append("state"))
    with open_output(out, IDENTITY) as output:
        append = output.append
        monkeypatch.setattr(output, "append", lambda batch: (order.append("rows"), append(batch)))
        label_files(predictor, files, output)
    assert order == ["state", "rows"] * 3


def test_a_state_that_cannot_be_written_does_not_stop_the_rows(files, out, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    predictor = FakePredictor(4)
    monkeypatch.setattr(predictor, "flush", full)
    with open_output(out, IDENTITY) as output:
        label_files(predictor, files, output)
    assert keys(out) == files


def test_after_a_request_to_stop_the_batch_is_the_last(files, out):
    predictor = FakePredictor(4)
    with open_output(out, IDENTITY) as output:
        label_files(predictor, files, output, stopped=lambda: bool(predictor.learned))
    assert keys(out) == files[:4]
    with open_output(out, IDENTITY) as output:
        label_files(predictor, files[4:], output, stopped=lambda: True)
    assert keys(out) == files[:4]


def killed_output(out, files, written, state):
    """A run with a state that was killed after so many rows."""
    with open_output(out, IDENTITY, state=state) as output:
        output.start()
        output.append([answer(file) for file in files[:written]])


def test_what_a_killed_run_learned_is_written_and_not_learned_again(files, out):
    """It was killed in the middle of writing the second batch, of files 3 to 5."""
    killed_output(out, files, 4, "state")
    learned = tuple(answer(file, "dog", "cat") for file in files[3:6])
    with open_output(out, IDENTITY, state="state") as output:
        left = [file for file in files if file not in output.keys]
        found = recover(FakePredictor(resumed=learned), output, left)
        assert [result.key for result in found] == files[4:6]
    assert keys(out) == files[:6]


@pytest.mark.parametrize("state", [None, "another state"])
def test_results_of_another_run_are_not_ours(files, out, state):
    killed_output(out, files, 4, "state")
    with open_output(out, IDENTITY, state=state) as output:
        assert recover(FakePredictor(resumed=(answer(files[5]),)), output, files[4:]) == []


def test_after_a_run_that_ended_nothing_is_recovered(files, out):
    """Its state has the last batch too, but whoever removed rows on purpose wants new answers."""
    with open_output(out, IDENTITY, state="state") as output:
        output.start()
        output.finish()
    with open_output(out, IDENTITY, state="state") as output:
        assert recover(FakePredictor(resumed=(answer(files[0]),)), output, files) == []


def test_results_for_files_that_nobody_asked_for_are_left_out(files, out):
    killed_output(out, files, 1, "state")
    with open_output(out, IDENTITY, state="state") as output:
        learned = (answer(files[1]), answer("elsewhere.png"))
        found = recover(FakePredictor(resumed=learned), output, files[1:])
        assert [result.key for result in found] == [files[1]]
