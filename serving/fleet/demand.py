"""The controller's line to the platform: how a pool stands, every two seconds, and the demand for it in return.

In a thread of its own: Ray's controller must never wait for the platform.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import httpx

from protocol.demand import DEMAND_PATH, REPORT_SECONDS, PoolDemand, PoolReport
from protocol.errors import ProtocolError
from protocol.messages import decode, encode
from protocol.replicas import INTERNAL_PATH

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0
_MAX_CREDENTIAL_BYTES = 200
_MAX_ANSWER_BYTES = 65_536
# A demand that is older says nothing: the policy then counts what replicas saw arrive.
FRESH_SECONDS = 5 * REPORT_SECONDS


class DemandLine:
    """Reports a pool and keeps the newest demand. `start` once; the thread goes with the process, or at `close`."""

    def __init__(self, platform_url: str, credential_file: Path) -> None:
        """Use the platform at `platform_url` with the credential of the pool, read anew for each report."""
        self._url = f"{platform_url.rstrip('/')}{INTERNAL_PATH}{DEMAND_PATH}"
        self._credential_file = credential_file
        self._report: PoolReport | None = None
        self._known: tuple[float, PoolDemand] | None = None
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pool-demand", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for a first report."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()

    def report(self, report: PoolReport) -> None:
        """Set what is told next."""
        self._report = report

    @property
    def arrivals(self) -> float | None:
        """Return the calls per second for the pool's base model, None when that is not known now."""
        known = self._known
        if known is None or time.monotonic() - known[0] > FRESH_SECONDS:
            return None
        return known[1].arrivals

    def _run(self) -> None:
        with httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            while not self._stop.wait(REPORT_SECONDS):
                if self._report is None:
                    continue
                try:
                    self._known = (time.monotonic(), self._ask(client, self._report))
                    self._failing = False
                except (httpx.HTTPError, OSError, ProtocolError) as error:
                    if not self._failing:  # once, not every two seconds
                        log.warning("the demand for the pool %s is not known: %s", self._report.pool, error)
                    self._failing = True

    def _ask(self, client: httpx.Client, report: PoolReport) -> PoolDemand:
        with self._credential_file.open("rb") as file:
            credential = file.read(_MAX_CREDENTIAL_BYTES).decode("ascii", "replace").strip()
        headers = {"Authorization": f"Bearer {credential}", "Content-Type": "application/json"}
        answer = client.post(self._url, content=encode(report), headers=headers)
        answer.raise_for_status()
        if len(answer.content) > _MAX_ANSWER_BYTES:
            raise ProtocolError("the answer is too long")
        return decode(answer.content, PoolDemand)
