"""Operations as calls: ``does(service).reset("a")`` in place of ``service.call(Reset("a"))``."""

from collections.abc import Callable
from typing import Any

from ramen.client.operations import BY_NAME


class _Calls:
    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *values, **named: self._service.call(BY_NAME[name](*values, **named))


def does(service: Any) -> Any:
    return _Calls(service)
