"""Why the engine does not answer; a front turns each into its own kind of reply."""


class EngineError(Exception):
    """What was asked for cannot be done now, or at all; the message is fit for clients."""


class TryLaterError(EngineError):
    """Nothing was learned, and the same request may be answered later.

    Attributes:
        retry_after: Seconds after which it is worth trying again.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type["TryLaterError"], tuple[str, float]]:
        return type(self), (str(self), self.retry_after)


class OverloadedError(TryLaterError):
    """Too many images or bytes are waiting."""


class DeadlineError(EngineError):
    """A request was not answered in time, and nothing was learned from its images."""


class UnknownStreamError(EngineError):
    """There is no stream of this name."""


class StreamExistsError(EngineError):
    """There is a stream of this name already, and with other classes."""


class BadRequestError(EngineError):
    """What was asked for makes no sense: a stream's name, its classes, the number of images."""


class StreamElsewhereError(EngineError):
    """Another process holds the state of this stream."""


class StoppingError(EngineError):
    """The engine is being stopped and takes nothing more."""


class UnavailableError(TryLaterError):
    """Nobody can answer at the moment, and nothing was learned."""


class LostAnswerError(EngineError):
    """Whoever worked on the request has ended, or cannot be reached: it may have been done, or not."""
