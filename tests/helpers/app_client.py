"""Requests to an application in this process, without a network."""

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI

LOCAL = "http://127.0.0.1:8000"


class AppClient:
    """Sends one request at a time.

    Args:
        app: Made by ``create_app``.
        headers: Sent with every request.
    """

    def __init__(self, app: FastAPI, headers: dict[str, str] | None = None) -> None:
        self.app, self._headers = app, headers

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        return asyncio.run(self._send(method, path, given))

    async def _send(self, method: str, path: str, given: dict[str, Any]) -> httpx.Response:
        async with async_client(self.app, self._headers) as client:
            return await client.request(method, path, **given)

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)

    def put(self, path: str, **given: Any) -> httpx.Response:
        return self.request("PUT", path, **given)

    def delete(self, path: str, **given: Any) -> httpx.Response:
        return self.request("DELETE", path, **given)


def async_client(app: FastAPI, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """A client for several requests at a time."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=LOCAL, headers=headers)
