"""The life of a file: announced and counted, filled piece by piece, kept for 30 days, deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization
from marketplace.jobs.content import Writer
from marketplace.jobs.errors import FileTooLarge, StorageFull
from marketplace.jobs.lines import MAX_BYTES, LineReader
from marketplace.jobs.models import Batch, File
from marketplace.vault.ciphers import cipher_of

MAX_FILES = 500  # of one organization
MAX_STORED_BYTES = 2**30  # of one organization, in the clear
MAX_ARRIVING = 4  # uploads of one organization at once
KEPT = timedelta(days=30)
ARRIVES_WITHIN = timedelta(hours=1)


class Upload:
    """A file that arrives: `feed` takes its pieces, `finish` makes it visible, `drop` forgets it."""

    def __init__(self, file: File, *, after_chunk: Callable[[], None] = lambda: None) -> None:
        """Fill a file of `announce`. `after_chunk` gives a connection back while bytes are waited for."""
        self.file = file
        self._reader = LineReader()
        self._writer = Writer(file, cipher_of(file.organization_id))
        self._after_chunk = after_chunk
        after_chunk()

    def feed(self, piece: bytes) -> None:
        """Take the next bytes. Raises FileTooLarge."""
        if self._writer.add(self._reader.feed(piece)):
            self._after_chunk()

    def finish(self, *, name: str, kept: timedelta = KEPT) -> File:
        """Make the file visible. Raises BadLines, which names the lines, and FileTooLarge."""
        self._writer.add(self._reader.end())
        self._writer.flush()
        now = timezone.now()
        self.file.name = _checked_name(name)
        self.file.endpoint, self.file.lines = self._reader.endpoint, self._reader.lines
        self.file.bytes, self.file.ready_at, self.file.expires_at = self._reader.bytes, now, now + kept
        self.file.save(update_fields=["name", "endpoint", "lines", "bytes", "ready_at", "expires_at"])
        return self.file

    def drop(self) -> None:
        """Forget a file that did not arrive."""
        File.objects.filter(pk=self.file.pk, ready_at=None).delete()


@transaction.atomic
def announce(*, organization_id: UUID, size: int | None) -> File:
    """Make room for a file before any of its bytes are read; `size` is the most that it may have, if that is known.

    Raises FileTooLarge, StorageFull.
    """
    if size is not None and size > MAX_BYTES + 2**16:
        raise FileTooLarge(f"a file has at most {MAX_BYTES // 2**20} MiB", field="file")
    reserved = MAX_BYTES if size is None else min(size, MAX_BYTES)
    organization = lock_organization(organization_id)
    mine = File.objects.filter(organization=organization)
    if mine.filter(ready_at=None, expires_at__gt=timezone.now()).count() >= MAX_ARRIVING:
        raise StorageFull(f"{MAX_ARRIVING} files are arriving; wait until one has")
    if mine.count() >= MAX_FILES:
        raise StorageFull(f"an organization has at most {MAX_FILES} files; delete some")
    if (mine.aggregate(sum=Sum("bytes"))["sum"] or 0) + reserved > MAX_STORED_BYTES:
        raise StorageFull(f"the files would have more than {MAX_STORED_BYTES // 2**20:,} MiB; delete some")
    return File.objects.create(
        organization=organization,
        purpose=File.Purpose.BATCH,
        name="",
        bytes=reserved,
        expires_at=timezone.now() + ARRIVES_WITHIN,
    )


def store_file(*, organization: Organization, name: str, content: bytes) -> File:
    """Store a file that is here in one piece. Raises BadLines, FileTooLarge, StorageFull."""
    upload = Upload(announce(organization_id=organization.pk, size=len(content)))
    try:
        upload.feed(content)
        return upload.finish(name=name)
    except BaseException:
        upload.drop()
        raise


@transaction.atomic
def delete_file(*, organization_id: UUID, file_id: UUID) -> None:
    """Delete a file with its content. Raises NotFound, and Conflict while a batch waits to read it."""
    lock_organization(organization_id)
    found = File.objects.filter(organization_id=organization_id, pk=file_id).exclude(ready_at=None)
    if not found.exists():
        raise NotFound("there is no such file")
    if Batch.objects.filter(input_file_id=file_id, state=Batch.State.VALIDATING).exists():
        raise Conflict("a batch is reading this file; try again in a moment", code="file_in_use")
    found.delete()


def delete_expired_files() -> int:
    """Delete files whose time is over, and those that never arrived. Returns how many."""
    reading = Batch.objects.filter(state=Batch.State.VALIDATING).values("input_file")
    old = File.objects.filter(expires_at__lt=timezone.now()).exclude(Q(pk__in=reading))
    ids = list(old.values_list("pk", flat=True)[:500])
    File.objects.filter(pk__in=ids).delete()
    return len(ids)


def _checked_name(name: str) -> str:
    name = name.strip().rpartition("/")[2]
    if not 1 <= len(name) <= 200 or not name.isprintable():
        raise InvalidInput("must be 1 to 200 printable characters", field="filename")
    return name
