"""How long a replica may take with a prediction before it is given up.

A replica that lives is heard of every second: by tokens, or by a sign of life (`serving.http.keep_alive`). So its first
byte is due within FIRST_BYTE_SECONDS and silence never lasts SILENT_SECONDS, however long the prompt and the queue.
A replica whose engine stands still gives signs of life all the same: a stream must also begin, within three times what
its replica predicted. No limit ends an attempt that no other replica could take over sooner.
"""

from __future__ import annotations

from dataclasses import dataclass

from marketplace.gateway.order import Order
from protocol.latency import LatencyClass

FIRST_BYTE_SECONDS = 2.0
SILENT_SECONDS = 10.0
UPLOAD_BYTES_PER_SECOND = 1 << 20  # of a body that is on its way to a replica
# The least that a stream may take to its first token, however short the predicted wait: predictions are young after a
# start, and steps are slow beside others.
BEGIN_SECONDS: dict[LatencyClass, float] = {"interactive": 10.0, "standard": 20.0, "batch": 60.0}
PREDICTED_TIMES = 3.0
SLOWEST_PREFILL = 100.0  # tokens a second of a replica that is slow and not stuck


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that one attempt may take to its first byte, between two bytes, and to the first token of its stream."""

    first_byte: float
    silence: float
    begin: float | None  # None: as long as the prediction may last


def patience_with(order: Order, *, predicted: float, others: bool) -> Patience:
    """Return the patience with one replica. `predicted`: seconds until the order starts there, with the load of its
    adapter; `others`: another replica could be asked instead."""
    upload = len(order.body) / UPLOAD_BYTES_PER_SECOND
    if not others:
        return Patience(SILENT_SECONDS + upload, SILENT_SECONDS, None)
    begin = max(BEGIN_SECONDS[order.request.latency_class], PREDICTED_TIMES * predicted)
    return Patience(FIRST_BYTE_SECONDS + upload, SILENT_SECONDS, begin + order.max_prompt_tokens / SLOWEST_PREFILL)
