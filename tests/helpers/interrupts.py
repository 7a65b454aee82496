"""Signals in processes that tests start."""

import signal


def take_interrupts() -> None:
    """Ctrl-C interrupts this process, whatever it has inherited.

    A shell in the background ignores it, and a fork server may have been started while it was held back.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
