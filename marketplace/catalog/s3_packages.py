"""Sealed packages in a bucket, through django-storages. Imported only where `BLOB_STORE` names one (extra `s3`)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.core.files import File
from storages.backends.s3 import S3Storage

from marketplace.catalog.errors import StorageUnavailable
from marketplace.catalog.package_folder import checked, storage_errors

if TYPE_CHECKING:
    from marketplace.catalog.buckets import Bucket

PART_BYTES = 16 << 20  # of a multipart upload: 10,000 of them are 160 GB
CHUNK_BYTES = 1 << 20
MIN_BYTES_PER_SECOND = 1 << 20  # a slower store counts as away
_TIMES = Config(
    connect_timeout=3,
    read_timeout=20,
    retries={"max_attempts": 3, "mode": "standard"},
    signature_version="s3v4",  # presigned URLs of the older version outlive no key rotation and fail in newer regions
)


class S3Store:
    """`packages/<digest>` below the bucket's prefix. Objects appear whole: S3 shows no upload before its end."""

    def __init__(self, bucket: Bucket) -> None:
        """Connect at the first call. A service of one's own is asked by path, AWS by the bucket's host name."""
        style = "path" if bucket.endpoint else "virtual"
        self._storage = S3Storage(
            bucket_name=bucket.name,
            location="/".join(part for part in (bucket.prefix, "packages") if part),
            endpoint_url=bucket.endpoint or None,
            region_name=bucket.region,
            access_key=bucket.access_key or None,
            secret_key=bucket.secret_key or None,
            default_acl=None,
            querystring_auth=True,
            file_overwrite=True,
            client_config=_TIMES.merge(Config(s3={"addressing_style": style})),
            transfer_config=TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES),
        )

    def put(self, part: Path, digest: str) -> None:
        """Send the file in parts, unless the same package is there."""
        with storage_errors():
            wanted = part.stat().st_size
        if self.size(digest) == wanted:
            return
        with _store_errors(), part.open("rb") as file:
            self._storage.save(checked(digest), File(file))
        if self.size(digest) != wanted:
            raise StorageUnavailable("the platform's storage kept something else; try again later")

    def size(self, digest: str) -> int | None:
        """Return the bytes of a package, None if there is none."""
        with _store_errors():
            try:
                return int(self._storage.size(checked(digest)))
            except FileNotFoundError:
                return None

    @contextmanager
    def reading(self, digest: str, *, max_bytes: int) -> Iterator[Path]:
        """Yield a copy in the machine's temporary folder. Whether it is genuine is proven where it is opened."""
        with tempfile.NamedTemporaryFile(prefix="package-") as copy:
            with _store_errors():
                self._copy(digest, copy, max_bytes)
            copy.flush()
            yield Path(copy.name)

    def _copy(self, digest: str, copy: tempfile._TemporaryFileWrapper[bytes], max_bytes: int) -> None:
        deadline = time.monotonic() + 30.0 + max_bytes / MIN_BYTES_PER_SECOND
        stored = self._storage.bucket.Object(f"{self._storage.location}/{checked(digest)}")
        try:
            body = stored.get()["Body"]
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                raise FileNotFoundError(digest) from None
            raise
        for chunk in body.iter_chunks(CHUNK_BYTES):
            if copy.tell() + len(chunk) > max_bytes or time.monotonic() > deadline:
                body.close()
                raise StorageUnavailable("the platform's storage sends too much, or too slowly; try again later")
            copy.write(chunk)

    def remove(self, digest: str) -> None:
        """Delete a package, if there is one."""
        with _store_errors():
            self._storage.delete(checked(digest))

    def signed_url(self, digest: str, *, seconds: int) -> str | None:
        """Return a URL that fetches this one object, and does nothing else, for `seconds`. Asks nobody."""
        with _store_errors():
            return str(self._storage.url(checked(digest), expire=seconds))


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise StorageUnavailable("the platform's storage is not available; try again later") from error
