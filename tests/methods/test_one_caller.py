"""A method serves one thread at a time: a second one is told so, and the stream stays what it was."""

import copy
import pickle
import threading

import pytest
import torch

from tests.state.streams import assert_same_state, batches, make

CALLS = {
    "predict": lambda method: method.predict(batches(5, seed=1)[0]),
    "reset": lambda method: method.reset(),
    "state_dict": lambda method: method.state_dict(),
    "load_state_dict": lambda method: method.load_state_dict({}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_second_thread_gets_a_clear_error(call, monkeypatch):
    method, entered, leave = make(), threading.Event(), threading.Event()
    adapt = method.adapt

    def slow(images, usable):
        entered.set()
        leave.wait(30)
        return adapt(images, usable)

    monkeypatch.setattr(method, "adapt", slow)
    answers = []
    batch = batches(5)[0]
    first = threading.Thread(target=lambda: answers.append(method.predict(batch).logits))
    first.start()
    assert entered.wait(30)
    with pytest.raises(RuntimeError, match=r"by another thread, and serves one at a time.*ramen\.Predictor"):
        CALLS[call](method)
    leave.set()
    first.join()
    alone = make()
    assert torch.equal(answers[0], alone.predict(batch).logits)
    assert_same_state(method.state_dict(), alone.state_dict())


def test_it_may_be_called_by_one_thread_after_the_other():
    method, other = make(), make()
    for batch in batches(15):
        thread = threading.Thread(target=method.predict, args=(batch,))
        thread.start()
        thread.join()
        other.predict(batch)
    assert_same_state(method.state_dict(), other.state_dict())


def test_after_an_error_it_can_be_called_again(monkeypatch):
    method = make()
    with monkeypatch.context() as patch:
        patch.setattr(method, "adapt", lambda images, usable: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            method.predict(batches(5)[0])
    method.predict(batches(5)[0])


def test_a_copy_has_a_guard_of_its_own():
    method = make("tent")
    other = copy.deepcopy(method)
    with method.one_caller:
        thread = threading.Thread(target=other.predict, args=(batches(5)[0],))
        thread.start()
        thread.join()
    assert other.images_seen == 5


def test_a_method_is_not_pickled() -> None:
    with pytest.raises(TypeError, match=r"method\.save"):
        pickle.dumps(make("tent"))
