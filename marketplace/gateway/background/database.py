"""Calls of the services of `marketplace.jobs` from the gateway: in threads of their own, beside the hot path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connections

from marketplace.gateway.errors import unavailable

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_THREADS = ThreadPoolExecutor(4, thread_name_prefix="jobs")


async def in_thread(work: Callable[[], Result]) -> Result:
    """Return the result of `work`, which may use the database. Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: with_connection(work))


def with_connection(work: Callable[[], Result]) -> Result:
    """Do the work and give its connections back. Raises Refusal 503 while the database is away."""
    try:
        return work()
    except (InterfaceError, OperationalError) as error:
        logger.error("database: %s", error)
        raise unavailable("The platform's database is away. Try again.", code="database") from None
    finally:
        connections.close_all()
