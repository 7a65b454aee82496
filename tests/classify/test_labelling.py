import pytest

from ramen.classify.output import open_output
from ramen.classify.run import forget_unlearned, label_files, recover
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


def test_a_batch_is_in_the_output_before_the_next_is_answered(files, out):
    predictor = FakePredictor(4)
    with open_output(out, IDENTITY) as output:
        seen = []
        for batch in label_files(predictor, files, output, lambda: False):
            seen.append([result.key for result in batch])
            assert output.keys == set(predictor.learned)
    assert seen == [files[:4], files[4:8], files[8:]]
    assert keys(out) == files


def test_after_a_request_to_stop_the_batch_is_the_last(files, out):
    predictor = FakePredictor(4)
    with open_output(out, IDENTITY) as output:
        list(label_files(predictor, files, output, lambda: bool(predictor.learned)))
    assert keys(out) == files[:4]
    with open_output(out, IDENTITY) as output:
        list(label_files(predictor, files[4:], output, lambda: True))
    assert keys(out) == files[:4]


def killed_output(out, files, written, state):
    """A run with a state that was killed after so many rows."""
    with open_output(out, IDENTITY, state=state) as output:
        output.start()
        output.append([answer(file) for file in files[:written]])


def test_what_a_killed_run_learned_is_written_and_not_learned_again(files, out):
    """It was killed in the middle of writing the second batch, of files 3 to 5."""
    killed_output(out, files, 4, "state")
    learned = (*(answer(file, "dog", "cat") for file in files[3:6]), answer("elsewhere.png"))
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


# -- rows that are ahead of the state -------------------------------------------------------------------


def killed_at(out, files, versions, state="state"):
    """A killed run whose rows say how much the method had seen."""
    with open_output(out, IDENTITY, state=state) as output:
        output.start()
        rows = zip(files, versions, strict=True)
        output.append(answer(file, state_version=version) for file, version in rows)


@pytest.mark.parametrize(("learned", "left"), [(9, 9), (6, 6), (3, 3), (0, 3), (12, 9)])
def test_rows_that_the_state_has_not_learned_are_done_again(files, out, learned, left):
    """Batches of three; up to two of them may be ahead, more never are."""
    killed_at(out, files[:3], [3] * 3)
    with open_output(out, IDENTITY, state="state") as output:
        output.start()
        output.append(answer(file, state_version=3 + 3 * (1 + n // 3)) for n, file in enumerate(files[3:9]))
    with open_output(out, IDENTITY, state="state") as output:
        assert forget_unlearned(output, learned, 3) == 9 - left
        assert output.keys == set(files[:left])
        assert output.tally.files == left
        output.append([answer("new")])
    assert keys(out) == [*files[:left], "new"]


def test_a_state_that_was_lost_costs_no_rows(files, out):
    killed_at(out, files[:9], [3, 3, 3, 6, 6, 6, 9, 9, 9])
    with open_output(out, IDENTITY, state="state") as output:
        assert forget_unlearned(output, 0, 3) == 0
    assert len(keys(out)) == 9


def test_a_row_whose_file_is_gone_stays(files, out):
    killed_at(out, [*files[:3], "gone.png"], [3, 3, 3, 4])
    with open_output(out, IDENTITY, state="state") as output:
        assert forget_unlearned(output, 3, 3) == 0


def test_after_a_run_that_ended_nothing_is_made_again_or_recovered(files, out):
    """Its state has the last batch too, but whoever removed rows on purpose wants new answers."""
    with open_output(out, IDENTITY, state="state") as output:
        output.start()
        output.append([answer(files[0], state_version=8)])
        output.finish()
    with open_output(out, IDENTITY, state="state") as output:
        assert forget_unlearned(output, 0, 3) == 0
        assert recover(FakePredictor(resumed=(answer(files[1]),)), output, files[1:]) == []


def test_rows_of_runs_before_the_killed_one_stay(files, out):
    """They were made with another state, or without one, and say nothing about this one."""
    with open_output(out, IDENTITY) as output:
        output.start()
        output.append(answer(file, state_version=3) for file in files[:3])
        output.finish()
    killed_at(out, files[3:4], [1])
    with open_output(out, IDENTITY, state="state") as output:
        assert forget_unlearned(output, 0, 3) == 1
    assert keys(out) == files[:3]
