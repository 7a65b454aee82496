import pytest
from fastapi import FastAPI

from ramen.serve.http.app import create_app
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import FakeBackend
from tests.helpers.app_client import AppClient


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def app(backend: FakeBackend) -> FastAPI:
    return create_app(backend, HttpSettings(max_body_bytes=10_000, max_bodies_bytes=20_000))


@pytest.fixture
def client(app: FastAPI) -> AppClient:
    return AppClient(app)
