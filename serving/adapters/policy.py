"""Which adapters come early. Pure: no torch, no clock, no I/O. Which go: `serving.eviction`."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def load_order(
    wanted: Iterable[str], hints: Iterable[str], busy: Collection[str], refused: Collection[str], room: int
) -> list[tuple[str, bool]]:
    """Choose the next `room` loads: what waiting requests want, in the scheduler's order, then the platform's hints.

    busy: digests that are resident or being loaded
    refused: revoked digests

    Returns each digest with whether a request waits for it. Consumes no more of the iterables than it needs.
    """
    chosen: dict[str, bool] = {}
    for source, waiting in ((wanted, True), (hints, False)):
        for digest in source:
            if digest not in busy and digest not in refused and digest not in chosen:
                chosen[digest] = waiting
                if len(chosen) >= room:
                    return list(chosen.items())
    return list(chosen.items())
