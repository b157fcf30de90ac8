"""Packages in a folder and in a bucket: the same behaviour, and refusals where the place is away."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from marketplace.catalog.buckets import Bucket, BucketError, parse_bucket
from marketplace.catalog.errors import StorageUnavailable
from marketplace.catalog.package_folder import FolderStore
from marketplace.catalog.package_stores import PackageStore, package_store
from marketplace.catalog.s3_packages import PART_BYTES, S3Store
from tests.bucket_service import bucket_service

DIGEST = "ab" * 32


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with bucket_service() as found:
        yield found


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PackageStore:
    return FolderStore(tmp_path / "blobs") if request.param == "folder" else S3Store(request.getfixturevalue("bucket"))


def part_of(tmp_path: Path, content: bytes) -> Path:
    part = tmp_path / "upload.part"
    part.write_bytes(content)
    return part


def test_a_package_is_kept_read_and_removed(store: PackageStore, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    digest = hashlib.sha256(content).hexdigest()
    assert store.size(digest) is None
    with pytest.raises(FileNotFoundError), store.reading(digest, max_bytes=1):
        pass
    part = part_of(tmp_path, content)
    for _ in range(2):
        store.put(part, digest)
    assert store.size(digest) == len(content)
    assert part.exists(), "the upload keeps its part until the database has the package"
    with store.reading(digest, max_bytes=len(content)) as path:
        assert path.read_bytes() == content
    with pytest.raises(StorageUnavailable), store.reading(digest, max_bytes=len(content) - 1):
        pass
    for _ in range(2):
        store.remove(digest)
    assert store.size(digest) is None


def test_a_name_that_is_no_digest_reaches_no_store(store: PackageStore, tmp_path: Path) -> None:
    for name in ("../../etc/passwd", DIGEST.upper(), "", DIGEST + "\n"):
        with pytest.raises(ValueError, match="64 lower-case"):
            store.size(name)
        with pytest.raises(ValueError, match="64 lower-case"):
            store.put(part_of(tmp_path, b"x"), name)
        with pytest.raises(ValueError, match="64 lower-case"):
            store.remove(name)


def test_a_long_package_goes_up_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    part = part_of(tmp_path, os.urandom(PART_BYTES + 1000))
    store = S3Store(bucket)
    store.put(part, DIGEST)
    stored = store._storage.bucket.Object(f"eu/packages/{DIGEST}")
    assert stored.e_tag.strip('"').endswith("-2")  # S3's mark of an upload in two parts
    with store.reading(DIGEST, max_bytes=part.stat().st_size) as path:
        assert path.read_bytes() == part.read_bytes()
    store.remove(DIGEST)


def test_a_signed_url_names_one_object_and_a_minute(bucket: Bucket) -> None:
    url = S3Store(bucket).signed_url(DIGEST, seconds=60)
    assert url is not None
    parts, query = urlsplit(url), parse_qs(urlsplit(url).query)
    assert (f"{parts.scheme}://{parts.netloc}", parts.path) == (
        bucket.endpoint,
        f"/{bucket.name}/eu/packages/{DIGEST}",
    )
    assert query["X-Amz-Expires"] == ["60"] and query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert bucket.secret_key not in url and FolderStore(Path("/nowhere")).signed_url(DIGEST, seconds=60) is None


def test_a_store_that_is_away_is_a_refusal_to_try_again(bucket: Bucket, tmp_path: Path) -> None:
    gone = S3Store(dataclasses.replace(bucket, endpoint="http://127.0.0.1:9"))
    other = S3Store(dataclasses.replace(bucket, name="no-such-bucket"))
    read_only = tmp_path / "blobs"
    read_only.write_text("a file where a folder should be")
    for store in (gone, other, FolderStore(read_only)):
        with pytest.raises(StorageUnavailable) as refusal:
            store.put(part_of(tmp_path, b"sealed"), DIGEST)
        assert refusal.value.status == 507 and "127.0.0.1" not in str(refusal.value)


def test_the_environment_names_the_store(settings, tmp_path: Path) -> None:
    assert isinstance(package_store(), FolderStore)
    found = parse_bucket(
        {"BLOB_STORE": "s3://packages/eu/1", "BLOB_S3_ACCESS_KEY": "AK", "BLOB_S3_SECRET_KEY": "a secret"}
    )
    assert found == Bucket("packages", "eu/1", "", "us-east-1", "AK", "a secret")
    assert "a secret" not in repr(found) and "AK" not in repr(found)
    settings.ENV = dataclasses.replace(settings.ENV, blob_bucket=found)
    assert isinstance(package_store(), S3Store)
    assert package_store() is package_store()


@pytest.mark.parametrize(
    "wrong",
    [
        {"BLOB_STORE": "/var/packages"},
        {"BLOB_STORE": "s3://"},
        {"BLOB_STORE": "s3://Packages"},
        {"BLOB_STORE": "s3://packages/../else"},
        {"BLOB_STORE": "s3://packages", "BLOB_S3_ENDPOINT": "store:9000"},
        {"BLOB_STORE": "s3://packages", "BLOB_S3_ACCESS_KEY": "AK"},
    ],
)
def test_variables_that_name_no_store_are_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(BucketError, match="BLOB_"):
        parse_bucket(wrong)
