"""The last end of each Celery task, and how often it ended: kept in Valkey, because workers answer no scrape."""

from __future__ import annotations

import logging
import time
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

_ENDED, _RUNS = "metrics:tasks:ended", "metrics:tasks:runs"
QUEUE = "celery"  # the broker's list of tasks that wait
_SECONDS = 2.0


def note_task(url: str, task: str, state: str) -> None:
    """Note that a task ended in this state; without Valkey nothing is noted."""
    try:
        with Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS) as valkey:
            pipe = valkey.pipeline(transaction=False)
            if state == "SUCCESS":
                pipe.hset(_ENDED, task, str(time.time()))
            pipe.hincrby(_RUNS, f"{task}|{state}", 1)
            pipe.execute()
    except RedisError as error:
        logger.warning("a task's end is not noted: %s", type(error).__name__)


def task_times(url: str) -> tuple[dict[str, float], dict[tuple[str, str], int], int]:
    """Return unix seconds of each task's last success, runs by task and state, and the waiting tasks' number.

    Raises RedisError.
    """
    with Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS) as valkey:
        pipe: Any = valkey.pipeline(transaction=False)
        pipe.hgetall(_ENDED)
        pipe.hgetall(_RUNS)
        pipe.llen(QUEUE)
        ended, runs, waiting = pipe.execute()
    states = {tuple(name.decode().split("|", 1)): int(count) for name, count in runs.items()}
    return {task.decode(): float(at) for task, at in ended.items()}, states, waiting
