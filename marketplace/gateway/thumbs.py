"""`POST /v1/feedback`: a thumb for an answer, by the organization that paid for it."""

from __future__ import annotations

import uuid
from typing import Any, Literal

import msgspec
from psycopg_pool import AsyncConnectionPool

from marketplace.accounts.errors import Conflict, NotFound
from marketplace.gateway.json_bodies import shaped
from marketplace.watch.thumbs import CHANGED_FOR, GIVE, GIVEN, GIVEN_FOR

FEEDBACK_PATH = "/v1/feedback"


class Feedback(msgspec.Struct):
    """The body, and the answer."""

    prediction_id: uuid.UUID
    thumb: Literal["up", "down"]


async def give_thumb(database: AsyncConnectionPool[Any], organization_id: uuid.UUID, body: bytes) -> bytes:
    """Store a thumb and return it as JSON.

    Raises Refusal 400 for another body, 404 unless the organization paid for this call of another's model in the last
    30 days, 409 once the thumb counts.
    """
    feedback = shaped(body, Feedback)
    parameters = {
        "prediction": feedback.prediction_id,
        "organization": organization_id,
        "is_up": feedback.thumb == "up",
        "given_for": GIVEN_FOR,
        "changed_for": CHANGED_FOR,
    }
    async with database.connection() as connection:
        given = await (await connection.execute(GIVE, parameters)).fetchone()
        if given is None:
            counts = await (await connection.execute(GIVEN, parameters)).fetchone()
            if counts is not None:
                raise Conflict("This thumb was given more than a day ago, and counts.", code="thumb_counts")
            raise NotFound("There is no such call that your organization paid for in the last 30 days.")
    return msgspec.json.encode(feedback)
