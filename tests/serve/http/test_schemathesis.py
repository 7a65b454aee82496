"""Requests made from the OpenAPI document, right and wrong ones: no server error, no undocumented answer."""

import hypothesis
import schemathesis
from schemathesis.checks import CHECKS, load_all_checks

from ramen.serve.http.app import create_app
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import FakeBackend
from tests.helpers.slow_tests import RUN_SLOW_TESTS

EXAMPLES = 200 if RUN_SLOW_TESTS else 4
HERE = {"Host": "localhost"}  # without tokens, no other host is accepted
CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
load_all_checks()


@schemathesis.serializer("application/x-ramen-uint8", "image/bmp", "image/tiff")
def as_bytes(context: schemathesis.SerializationContext, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(getattr(value, "data", value)).encode()


class _LastingBackend(FakeBackend):
    """Every request of schemathesis starts and ends the application."""

    async def close(self) -> None:
        pass


app = create_app(_LastingBackend(), HttpSettings(max_body_bytes=100_000))
# The stream of events never ends: it has tests of its own.
schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=HERE).exclude(path="/v1/events")


@schema.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=not RUN_SLOW_TESTS,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_requests_of_all_kinds(case: schemathesis.Case) -> None:
    response = case.call(headers=HERE)
    checked = list(CHECKED)
    if response.status_code == 504:  # it had asked for an answer within a few milliseconds
        assert int((case.query or {})["timeout_ms"]) < 1000
        checked.remove("not_a_server_error")
    case.validate_response(response, checks=CHECKS.get_by_names(checked))
