"""A replica takes and refuses the bodies that `protocol.requests` takes and refuses, as the gateway does
(tests/marketplace/gateway/test_two_readers.py): so the two never disagree."""

from __future__ import annotations

import pytest

from protocol.errors import RequestRefused
from protocol.requests.parsing import parse
from serving.http.admission import Admission, IncomingRequest, InsecureAuthorizer
from serving.http.errors import ApiError
from tests.protocol.request_bodies import bodies
from tests.protocol.test_requests import KINDS
from tests.serving.http.server import serving
from tests.serving.tiny import Tiny


class Taken(InsecureAuthorizer):
    """Refuses every body that was taken, so that nothing is generated for it."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        raise ApiError(418, "taken")


@pytest.mark.parametrize("count", [250, pytest.param(2_000, marks=pytest.mark.deep)])
async def test_bodies_get_the_verdict_that_the_gateway_gives(tiny: Tiny, count: int) -> None:
    differing = []
    async with serving(tiny, authorizer=Taken) as server:
        for path, body in bodies(46, count, "maker/thing"):
            try:
                parse(body, KINDS[path])
                expected: tuple[int, str | None, str | None] = (418, None, None)
            except RequestRefused as refused:
                expected = (refused.status, refused.param, refused.code)
            answer = await server.http.post(path, content=body, headers={"content-type": "application/json"})
            error = answer.json()["error"]
            found = (answer.status_code, error["param"], error["code"])
            if found != expected:
                differing.append((path, body, expected, found))
    assert differing == []
