"""Calls of the services of `marketplace.jobs` from the gateway: in threads of their own, beside the hot path."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection, connections

from marketplace.gateway.errors import unavailable
from marketplace.gateway.shares import BACKGROUND, refusing
from protocol.shares import Ended, Ending, Threads

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

CANCEL_SECONDS = 1.0  # that PostgreSQL has to take the wish to cancel a statement

_background = Threads(BACKGROUND)


async def in_thread(organization_id: UUID, work: Callable[[], Result], *, threads: Threads = _background) -> Result:
    """Return the result of `work`, which may use the database: its statement is cancelled when the caller leaves.

    Raises Refusal 429 and 503, and what the work raises.
    """
    with refusing():
        return await threads.run(organization_id, lambda ending: with_connection(work, ending))


def with_connection(work: Callable[[], Result], ending: Ending) -> Result:
    """Do the work and give its connections back. Raises Refusal 503 while the database is away, and Ended."""

    def watched(execute: Callable[..., Any], *statement: Any) -> Any:
        with ending.calling(_cancel_statement(connection.connection)):
            return execute(*statement)

    try:
        with connection.execute_wrapper(watched):
            return work()
    except (InterfaceError, OperationalError) as error:
        if ending.over:
            raise Ended from None
        logger.error("database: %s", error)
        raise unavailable("The platform's database is away. Try again.", code="database") from None
    finally:
        if ending.over and connection.connection is not None:
            connection.connection.close()  # a late wish to cancel would meet the next who borrows it
        connections.close_all()


def _cancel_statement(session: Any) -> Callable[[], object]:
    """Return what cancels the statement that a session of psycopg runs, from any thread."""
    return lambda: session is None or session.cancel_safe(timeout=CANCEL_SECONDS)
