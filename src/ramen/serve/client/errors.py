"""What a client raises: one kind of error per reason, each with the server's status, code and words."""


class ServerError(Exception):
    """A service did not do what it was asked for.

    Attributes:
        status: The HTTP status; None if there was no answer.
        code: The service's own name for the reason, such as "overloaded"; empty if it gave none.
        message: The reason in words.
        retry_after: Seconds after which the service asks to try again; None if it does not say.
        nothing_done: Whether it is certain that the request had no effect, so that it may be sent again.
    """

    temporary = False  # whether the same request may succeed later

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "",
        retry_after: float | None = None,
        nothing_done: bool = False,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.code = message, status, code
        self.retry_after, self.nothing_done = retry_after, nothing_done

    def __str__(self) -> str:
        known = " ".join(str(fact) for fact in (self.status, self.code) if fact)
        return f"{self.message} ({known})" if known else self.message


class InvalidRequestError(ServerError):
    """The request makes no sense to the service: a name, a parameter, the number or the kind of images."""


class UnauthorizedError(ServerError):
    """The token is missing or not known to the service."""


class ForbiddenError(ServerError):
    """The token does not allow this, or not in this stream."""


class NoSuchStreamError(ServerError):
    """There is no stream, or no answer, of this name."""


class ConflictError(ServerError):
    """It contradicts what is there: a stream with other classes, for example."""


class RefusedImageError(ServerError):
    """An image cannot be decoded, or the request has too many bytes; nothing was learned."""


class ServerOverloadedError(ServerError):
    """Too much is waiting at the service, which took nothing of the request."""

    temporary = True


class ServerUnavailableError(ServerError):
    """The service is starting, stopping, or not there at the moment."""

    temporary = True


class DeadlineExceededError(ServerError):
    """The images were not answered in time; if the service itself says so, nothing was learned from them."""


class UnreachableError(ServerError):
    """No connection could be made, so that nothing was sent."""

    temporary = True


class ConnectionLostError(ServerError):
    """The connection ended, or the time was up, after the request was sent: it may have been carried out."""

    temporary = True


class UnexpectedReplyError(ServerError):
    """The reply is not that of a Ramen service, or the service failed."""


UNDECODABLE = "undecodable"  # the code of a request whose only image cannot be decoded
ANSWER_LOST = "answer_lost"  # the code of a request whose process ended: it may have been carried out
_BY_STATUS: dict[int, type[ServerError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NoSuchStreamError,
    405: InvalidRequestError,
    409: ConflictError,
    413: RefusedImageError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: ServerOverloadedError,
    503: ServerUnavailableError,
    504: DeadlineExceededError,
}


def error_for(status: int, code: str, message: str, retry_after: float | None) -> ServerError:
    """The error of a reply.

    Args:
        status: Its status.
        code: The service's own code; empty if the reply is not from the service, but from a proxy perhaps.
        message: In words.
        retry_after: Seconds, if the reply says so.
    """
    kind = RefusedImageError if code == UNDECODABLE else _BY_STATUS.get(status, UnexpectedReplyError)
    # a proxy's 503 may also mean that the connection to the service ended after the request was passed on
    nothing_done = 400 <= status < 500 or (status in (503, 504) and code not in ("", ANSWER_LOST))
    return kind(message, status=status, code=code, retry_after=retry_after, nothing_done=nothing_done)
