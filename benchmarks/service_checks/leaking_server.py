"""``ramen serve`` that keeps 256 KiB of every request: what the check of memory must find out."""

from typing import Any

from ramen.cli import app
from ramen.serve.http.app import RequestRecorder

_KEPT: list[bytearray] = []
_answer = RequestRecorder.__call__


async def _answer_and_keep(self: RequestRecorder, scope: Any, receive: Any, send: Any) -> None:
    _KEPT.append(bytearray(b"x" * 2**18))
    await _answer(self, scope, receive, send)


if __name__ == "__main__":
    RequestRecorder.__call__ = _answer_and_keep  # type: ignore[method-assign]
    app()
