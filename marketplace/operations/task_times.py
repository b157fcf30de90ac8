"""The last end of each Celery task, how often it ended and how long that took, in Valkey: no worker is scraped."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

_ENDED, _RUNS, _SPENT = "metrics:tasks:ended", "metrics:tasks:runs", "metrics:tasks:seconds"
KEYS = (_ENDED, _RUNS, _SPENT)
QUEUE = "celery"  # the broker's list of tasks that wait
_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Unix seconds of each task's last success, runs by task and state, seconds spent, and the tasks that wait."""

    ended: dict[str, float]
    runs: dict[tuple[str, str], int]
    seconds: dict[str, float]
    waiting: int


def note_task(url: str, task: str, state: str, seconds: float = 0.0) -> None:
    """Note that a task ended in this state after so long; without Valkey nothing is noted."""
    try:
        with Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS) as valkey:
            pipe = valkey.pipeline(transaction=False)
            if state == "SUCCESS":
                pipe.hset(_ENDED, task, str(time.time()))
            pipe.hincrby(_RUNS, f"{task}|{state}", 1)
            pipe.hincrbyfloat(_SPENT, task, seconds)
            pipe.execute()
    except RedisError as error:
        logger.warning("a task's end is not noted: %s", type(error).__name__)


def task_times(url: str) -> TaskTimes:
    """Return what workers noted. Raises RedisError."""
    with Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS) as valkey:
        pipe: Any = valkey.pipeline(transaction=False)
        for key in KEYS:
            pipe.hgetall(key)
        pipe.llen(QUEUE)
        ended, runs, spent, waiting = pipe.execute()
    states = {
        (task, state): int(count) for name, count in runs.items() for task, state in [name.decode().split("|", 1)]
    }
    return TaskTimes(
        ended={task.decode(): float(at) for task, at in ended.items()},
        runs=states,
        seconds={task.decode(): float(seconds) for task, seconds in spent.items()},
        waiting=waiting,
    )
