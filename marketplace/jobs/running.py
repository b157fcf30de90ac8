"""A worker's part: calls of all organizations at once, until nothing is due or its time is over.

Each call is claimed before it is made and has a name for good, so a worker that goes on where another was killed gets
the answers that were paid, and pays nothing twice.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from uuid import UUID

from marketplace.calls.posting import AWAY, Posted, Poster
from marketplace.jobs import choosing, lifecycle, recording
from marketplace.jobs.choosing import Task
from marketplace.jobs.models import AsyncPrediction, Batch, BatchLine, Call
from marketplace.jobs.queue import wake
from marketplace.jobs.sealing import open_request
from marketplace.vault.answer_keys import AnswerCipher
from marketplace.vault.ciphers import cipher_of

log = logging.getLogger(__name__)

SLOTS = choosing.MOST_LINES + choosing.MOST_PREDICTIONS
WORK_SECONDS = 60.0  # then another message goes on; with the calls in flight, less than a task may take
CALL_SECONDS = 150.0
TICK = 0.2  # seconds after which new work is looked for
NARROW_SECONDS = 10.0  # an organization without room makes one call at a time
_RENEW_SECONDS, _ADVANCE_SECONDS = 10.0, 1.0


def work(*, seconds: float = WORK_SECONDS) -> None:
    """Make calls for a while, and let another message go on with what is left."""
    with Poster(seconds=CALL_SECONDS, connections=SLOTS) as poster, ThreadPoolExecutor(SLOTS) as pool:
        _Worker(poster, pool).run(seconds)


def is_left() -> bool:
    """Return whether a batch or a prediction is open."""
    if Batch.objects.filter(state__in=Batch.OPEN).exists():
        return True
    return AsyncPrediction.objects.filter(state__in=Call.OPEN).exists()


class _Worker:
    """The calls of one worker; its threads touch no database."""

    def __init__(self, poster: Poster, pool: ThreadPoolExecutor) -> None:
        self._poster, self._pool = poster, pool
        self._running: dict[Future[Posted], Task] = {}
        self._narrow: dict[UUID, float] = {}  # organization → when it may make several calls again
        self._ciphers: dict[UUID, AnswerCipher] = {}
        self._renewed = self._advanced = 0.0

    def run(self, seconds: float) -> None:
        """Make calls until nothing is open; after `seconds`, hand over and finish those in flight."""
        until, self._renewed = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < until:
            self._begin()
            if not self._running:
                if not is_left():
                    return
                time.sleep(TICK)  # what is open waits for its next try
            self._turn()
        wake()
        while self._running:
            self._turn()

    def _turn(self) -> None:
        """Wait a moment for outcomes."""
        done, _ = wait(self._running, timeout=TICK, return_when=FIRST_COMPLETED)
        for future in done:
            self._end(self._running.pop(future), _result(future))
            self._advanced = 0.0
        if time.monotonic() - self._renewed > _RENEW_SECONDS:
            choosing.renew(list(self._running.values()))
            self._renewed = time.monotonic()

    def _begin(self) -> None:
        now = time.monotonic()
        if now - self._advanced > _ADVANCE_SECONDS:
            lifecycle.advance()
            self._advanced = now
        self._narrow = {one: end for one, end in self._narrow.items() if end > now}
        for task in choosing.take(SLOTS - len(self._running), dict.fromkeys(self._narrow, 1)):
            body = self._body(task)
            future = self._pool.submit(self._poster.post, key=task.key, path=task.path, name=task.name, body=body)
            self._running[future] = task

    def _end(self, task: Task, posted: Posted) -> None:
        alone = all(task.organization_id != other.organization_id for other in self._running.values())
        if recording.is_final(task, posted, alone=alone) or recording.given_up(task):
            recording.end_call(task, posted, self._cipher(task.organization_id))
            return
        if posted.no_room:
            self._narrow[task.organization_id] = time.monotonic() + NARROW_SECONDS
        recording.put_back(task, posted)

    def _body(self, task: Task) -> bytes:
        cipher = self._cipher(task.organization_id)
        if isinstance(task.call, BatchLine):
            return open_request(cipher, task.call)[1]
        return cipher.open(task.call.pk, bytes(task.call.request or b""))

    def _cipher(self, organization_id: UUID) -> AnswerCipher:
        if organization_id not in self._ciphers:
            self._ciphers[organization_id] = cipher_of(organization_id)
        return self._ciphers[organization_id]


def _result(future: Future[Posted]) -> Posted:
    try:
        return future.result()
    except Exception as error:  # its text is left out: it may quote a prompt
        log.error("a call failed: %s", type(error).__name__)
        return AWAY
