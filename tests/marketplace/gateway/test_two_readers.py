"""The gateway takes and refuses the bodies that `protocol.requests` takes and refuses, as a replica does
(tests/serving/http/test_two_readers.py): so the two never disagree."""

from __future__ import annotations

from marketplace.accounts.errors import Refusal
from marketplace.gateway.requests import parse_prediction_request
from protocol.errors import RequestRefused
from protocol.requests.parsing import parse
from tests.protocol.request_bodies import CHAT, EMBED, bodies
from tests.protocol.test_requests import KINDS

MODEL = "maker/thing"


def test_2000_bodies_get_the_verdict_that_replicas_give() -> None:
    differing = []
    for path, body in bodies(46, 2_000, MODEL):
        try:
            read = parse(body, KINDS[path])
            expected = (200, None, None) if read.model == MODEL else (400, "model", "invalid")
        except RequestRefused as refused:
            expected = (refused.status, refused.param, refused.code)
        try:
            parse_prediction_request(body, {}, chat=path == CHAT, embedding=path == EMBED)
            found: tuple[int, str | None, str | None] = (200, None, None)
        except Refusal as refusal:
            found = (refusal.status, refusal.field, refusal.code)
        if found != expected:
            differing.append((path, body, expected, found))
    assert differing == []
