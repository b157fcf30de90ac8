"""The store of sealed packages: `BLOB_STORE` and the variables of a service that speaks S3, parsed once.

| BLOB_STORE | packages are |
|---|---|
| empty | files below `BLOB_DIR`, which every web process and worker sees |
| `s3://bucket` or `s3://bucket/prefix` | objects of AWS, or of any service that speaks S3 (`BLOB_S3_ENDPOINT`) |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")


class BucketError(ValueError):
    """A variable says no store; the message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket and how to reach it. `endpoint` is empty for AWS; without keys, the machine's own role is used."""

    name: str
    prefix: str
    endpoint: str
    region: str
    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        """Return everything but the keys, which so stay out of logs and tracebacks."""
        return f"Bucket({self.name!r}, prefix={self.prefix!r}, endpoint={self.endpoint!r}, region={self.region!r})"


def parse_bucket(source: Mapping[str, str]) -> Bucket | None:
    """Return the bucket that the variables name, None for the folder. Raises BucketError."""
    url = source.get("BLOB_STORE", "")
    if not url:
        return None
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc) or (prefix and not _PREFIX.fullmatch(prefix)):
        raise BucketError("BLOB_STORE must be s3://bucket or s3://bucket/prefix, or empty: then it is BLOB_DIR")
    endpoint = source.get("BLOB_S3_ENDPOINT", "").rstrip("/")
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or urlsplit(endpoint).path):
        raise BucketError("BLOB_S3_ENDPOINT must be http(s)://host:port, or empty for AWS")
    access, secret = source.get("BLOB_S3_ACCESS_KEY", ""), source.get("BLOB_S3_SECRET_KEY", "")
    if bool(access) != bool(secret):
        raise BucketError("BLOB_S3_ACCESS_KEY and BLOB_S3_SECRET_KEY: set both, or neither: the machine's role is used")
    return Bucket(parts.netloc, prefix, endpoint, source.get("BLOB_S3_REGION", "") or "us-east-1", access, secret)
