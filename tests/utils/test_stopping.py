import os
import signal
import threading

import pytest

from ramen.utils.signals import stop_on_signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_asks_and_the_second_interrupts(number, code):
    announced = []
    before = signal.getsignal(number)
    with stop_on_signals(lambda: announced.append(1)) as request:
        assert not request.requested
        os.kill(os.getpid(), number)
        assert request.requested
        assert request.event.wait(0)
        assert (request.exit_code, announced) == (code, [1])
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_other_threads_may_use_it_too():
    found = []

    def use():
        with stop_on_signals(lambda: None) as request:
            found.append(request.requested)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [False]
