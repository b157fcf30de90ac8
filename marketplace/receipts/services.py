"""Writes: charges into the trees of their days, and heads of those trees.

A charge is added once it is old enough that no earlier one can still appear. What appears late all the same is found by
counting, added at the end of its day's tree, and published with another head: the trees only grow.
"""

from __future__ import annotations

import hashlib
from calendar import monthrange
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import msgspec
from django.db import connection, transaction

from billing.models import Usage
from billing.statements import STATEMENT_SECONDS
from marketplace.receipts import trees
from marketplace.receipts.charges import charges_of
from marketplace.receipts.keys import receipt_signer
from marketplace.receipts.locks import lock_trees
from marketplace.receipts.models import Day, Head
from protocol.encoding import encode_base64url
from protocol.proofs.charges import DayHead
from protocol.proofs.merkle import leaf_hash

# A charge's time is the start of its settlement, which the database cancels after STATEMENT_SECONDS.
SETTLED_FOR = timedelta(seconds=6 * STATEMENT_SECONDS)
PAGE = 4_096  # charges read at once, in a transaction of their own
CHECKED_AGAIN = 3  # days before today whose charges are counted again
_FIRST_WINDOW, _LAST_WINDOW = timedelta(minutes=1), timedelta(hours=6)  # read at once: there is no index on the time


def grow(day: date) -> int:
    """Add the day's charges that are old enough to its tree, in the order of their time; return how many it gained."""
    end = min(_start(day) + timedelta(days=1), _now() - SETTLED_FOR)
    gained, more = 0, True
    while more:
        with transaction.atomic():
            lock_trees()
            tree = Day.objects.get_or_create(day=day)[0]
            rows = next(_pages(tree.read_to or _start(day), end, tree.read_to_id), [])
            more = bool(rows)
            if rows:
                gained += _append(tree, rows)
                tree.read_to, tree.read_to_id = rows[-1].created_at, rows[-1].prediction_id
                tree.charges += len(rows)
                tree.save()
    return gained


def add_late(day: date) -> int:
    """Add charges of a past day that became visible only after its tree had gone past them; return how many."""
    first, end = _start(day), _start(day) + timedelta(days=1)
    with transaction.atomic():
        lock_trees()
        tree = Day.objects.filter(day=day).first()
        if tree is None or tree.charges == Usage.objects.filter(created_at__gte=first, created_at__lt=end).count():
            return 0
        gained, seen = 0, 0
        for rows in _pages(first, end):
            known = trees.known_ids(day, rows[0].created_at, rows[-1].created_at)
            seen += len(rows)
            gained += _append(tree, [row for row in rows if row.prediction_id not in known])
        tree.charges = seen
        tree.save()
        return gained


def publish(day: date) -> Head | None:
    """Sign the root of the day's tree as it is; None if it has no leaf that an earlier head does not cover."""
    with transaction.atomic():
        lock_trees()
        tree = Day.objects.filter(day=day).first()
        last = Head.objects.filter(day=day).order_by("-size").first()
        if tree is None or tree.leaves == (last.size if last else 0):
            return None
        before = Head.objects.order_by("-sequence").first()
        stated = DayHead(
            version=1,
            sequence=before.sequence + 1 if before else 1,
            previous=encode_base64url(bytes(before.hash) if before else bytes(32)),
            day=day.isoformat(),
            size=tree.leaves,
            root=encode_base64url(trees.range_hash(day, tree.leaves)(0, tree.leaves)),
        )
        payload = msgspec.json.encode(stated)
        return Head.objects.create(
            sequence=stated.sequence,
            day=day,
            size=stated.size,
            statement=receipt_signer().sign(payload, "intarsia-day"),
            hash=hashlib.sha256(payload).digest(),
        )


def publish_days() -> list[Head]:
    """Bring today's tree and those of the days before up to date, and publish a head of each that grew."""
    today = _now().date()
    return _bring_up_to_date(today - timedelta(days=ago) for ago in range(CHECKED_AGAIN, -1, -1))


def publish_month(month: date) -> list[Head]:
    """Do the same for all days of a month (any of its days): those from before there were receipts, or missed.

    A month of usage is dropped only when all its days are published.
    """
    first, today = month.replace(day=1), _now().date()
    days = (first + timedelta(days=number) for number in range(monthrange(first.year, first.month)[1]))
    return _bring_up_to_date(day for day in days if day <= today)


def _bring_up_to_date(days: Iterable[date]) -> list[Head]:
    today = _now().date()
    heads = []
    for day in days:
        grow(day)
        if day < today:
            add_late(day)
        heads.append(publish(day))
    return [head for head in heads if head is not None]


def _append(tree: Day, rows: list[Usage]) -> int:
    charges = charges_of(rows)
    leaves = [
        (row.prediction_id, row.created_at, leaf_hash(charges[row.prediction_id].payload()))
        for row in rows
        if row.prediction_id in charges
    ]
    trees.append(tree, leaves)
    return len(leaves)


def _pages(first: datetime, end: datetime, after: UUID | None = None) -> Iterator[list[Usage]]:
    """Yield the charges of a time in order, at most `PAGE` at once; at `first` itself only those behind `after`.

    Time is read in windows: one with few charges is followed by a larger one.
    """
    window = _FIRST_WINDOW
    while first < end:
        following = min(first + window, end)
        rows = Usage.objects.filter(created_at__gte=first, created_at__lt=following)
        if after is not None:
            rows = rows.exclude(created_at=first, prediction_id__lte=after)
        found = list(rows.order_by("created_at", "prediction_id")[:PAGE])
        if found:
            yield found
        if len(found) == PAGE:
            first, after, window = found[-1].created_at, found[-1].prediction_id, _FIRST_WINDOW
        else:
            first, after, window = following, None, min(window * 2, _LAST_WINDOW)


def _start(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _now() -> datetime:
    """Return the database's time: that of the charges."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        row = cursor.fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    moment: datetime = row[0]
    return moment.astimezone(UTC)
