"""The tree of a day: its leaves in segments, the hash of any run of them, and the place of a charge."""

from __future__ import annotations

from datetime import date, datetime
from functools import lru_cache
from uuid import UUID

from marketplace.receipts.models import SEGMENT, Day, Segment
from protocol.proofs.merkle import EMPTY_ROOT, RangeHash, node_hash, range_hash_of, root_of, split

ID, HASH = 16, 32  # bytes
Leaf = tuple[UUID, datetime, bytes]  # prediction, when it was charged, hash


def append(day: Day, leaves: list[Leaf]) -> None:
    """Put leaves behind those of the day's tree. Under the lock of `locks.lock_trees`; saves the day's count."""
    number = day.leaves // SEGMENT
    while leaves:
        room = SEGMENT - day.leaves % SEGMENT
        part, leaves = leaves[:room], leaves[room:]
        ids = b"".join(prediction.bytes for prediction, _, _ in part)
        hashes = b"".join(leaf for _, _, leaf in part)
        times = [moment for _, moment, _ in part]
        before = Segment.objects.filter(day=day.day, number=number).first()
        if before is None:
            Segment.objects.create(
                day=day.day,
                number=number,
                ids=ids,
                hashes=hashes,
                root=root_of(_cut(hashes)),
                first_at=min(times),
                last_at=max(times),
            )
        else:
            hashes = bytes(before.hashes) + hashes
            Segment.objects.filter(day=day.day, number=number).update(
                ids=bytes(before.ids) + ids,
                hashes=hashes,
                root=root_of(_cut(hashes)),
                first_at=min(*times, before.first_at),
                last_at=max(*times, before.last_at),
            )
        day.leaves += len(part)
        number += 1
    day.save()


def known_ids(day: date, first: datetime, last: datetime) -> set[UUID]:
    """Return the predictions in the day's tree that may have been charged in this time; perhaps more."""
    rows = Segment.objects.filter(day=day, first_at__lte=last, last_at__gte=first).values_list("ids", flat=True)
    return {UUID(bytes=bytes(ids[at : at + ID])) for ids in rows for at in range(0, len(ids), ID)}


def place_of(day: date, prediction_id: UUID, charged_at: datetime) -> tuple[int, bytes] | None:
    """Return the index and the hash of a charge's leaf, or None if it is not in the tree yet."""
    rows = Segment.objects.filter(day=day, first_at__lte=charged_at, last_at__gte=charged_at)
    for number, ids, hashes in rows.order_by("number").values_list("number", "ids", "hashes"):
        for place in range(len(ids) // ID):
            if bytes(ids[place * ID : (place + 1) * ID]) == prediction_id.bytes:
                return number * SEGMENT + place, bytes(hashes[place * HASH : (place + 1) * HASH])
    return None


def range_hash(day: date, size: int) -> RangeHash:
    """Return the hash of any run of the tree of the day's first `size` leaves. Reads the segments that it must."""
    roots = [
        bytes(root)
        for root in Segment.objects.filter(day=day, number__lt=-(-size // SEGMENT))
        .order_by("number")
        .values_list("root", flat=True)
    ]

    @lru_cache(maxsize=4)
    def leaves(number: int) -> list[bytes]:
        return _cut(bytes(Segment.objects.values_list("hashes", flat=True).get(day=day, number=number)))

    def hash_of(first: int, end: int) -> bytes:
        if first == end:
            return EMPTY_ROOT
        number, place = divmod(first, SEGMENT)
        if place == 0 and end - first == SEGMENT:
            return roots[number]
        if end - first <= SEGMENT:
            return range_hash_of(leaves(number))(place, place + end - first)
        middle = first + split(end - first)
        return node_hash(hash_of(first, middle), hash_of(middle, end))

    return hash_of


def _cut(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH] for at in range(0, len(hashes), HASH)]
