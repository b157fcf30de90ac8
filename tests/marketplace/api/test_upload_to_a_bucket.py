"""A package from a creator's upload to a replica's disk, through a bucket of a real S3 service."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.test import Client

from marketplace.catalog import blobs
from marketplace.catalog.buckets import Bucket
from marketplace.catalog.models import Version
from marketplace.catalog.package_stores import package_store
from marketplace.publishing import services as publishing
from serving.platform.downloads import Downloads
from tests.bucket_service import bucket_service
from tests.marketplace.api.client import error_of
from tests.marketplace.api.test_upload import Upload, queued  # noqa: F401
from tests.marketplace.catalog.factories import stored_path
from tests.marketplace.vault.factories import make_replica

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("queued")]


@pytest.fixture(scope="module")
def service() -> Iterator[Bucket]:
    with bucket_service() as found:
        yield found


@pytest.fixture(autouse=True)
def _in_a_bucket(settings, service: Bucket) -> None:
    settings.ENV = dataclasses.replace(settings.ENV, blob_bucket=service)


def ask_url(digest: str, session: str) -> str:
    answer = Client().post(
        f"/internal/v1/packages/{digest}/url",
        b"{}",
        content_type="application/json",
        headers={"Authorization": f"Bearer {session}"},
    )
    assert answer.status_code == 200, answer.content
    return str(answer.json()["url"])


def test_a_replica_fetches_from_the_bucket_what_a_creator_uploaded(
    tmp_path: Path, settings, service: Bucket, django_capture_on_commit_callbacks
) -> None:
    upload = Upload(tmp_path)
    upload.upload()
    with django_capture_on_commit_callbacks(execute=True):
        assert upload.complete().status_code == 200
    digest = upload.sealed.digest
    assert package_store().size(digest) == len(upload.bytes)
    assert not stored_path(digest).exists() and not blobs.part_path(upload.version.id).exists()

    settings.ROOT_URLCONF = "marketplace.config.urls"
    session = make_replica().session_token
    platform = SimpleNamespace(api_url="http://unused/", package_url=lambda asked: ask_url(asked, session))
    partial = tmp_path / "replica.part"
    partial.write_bytes(upload.bytes[:100])
    Downloads(platform, [service.endpoint]).fetch(digest, len(upload.bytes), partial)  # type: ignore[arg-type]
    assert partial.read_bytes() == upload.bytes
    assert Client().get(f"/internal/v1/packages/{digest}").status_code == 403, "the platform serves none itself"


def test_while_the_bucket_is_away_an_upload_stays_open_and_is_completed_later(
    tmp_path: Path, settings, service: Bucket
) -> None:
    upload = Upload(tmp_path)
    upload.upload()
    settings.ENV = dataclasses.replace(
        settings.ENV, blob_bucket=dataclasses.replace(service, endpoint="http://127.0.0.1:9")
    )
    assert error_of(upload.complete(), 507)["code"] == "storage_unavailable"
    assert upload.version.state == "uploading" and upload.version.package_digest is None
    settings.ENV = dataclasses.replace(settings.ENV, blob_bucket=service)
    assert upload.complete().json()["state"] == "verifying"


def test_an_upload_that_was_stored_and_then_expired_leaves_no_package(tmp_path: Path) -> None:
    upload = Upload(tmp_path)
    upload.upload()
    blobs.keep(upload.version.id, upload.sealed.digest)  # and the process died before its commit
    Version.objects.update(created_at="2020-01-01T00:00:00Z")
    assert publishing.expire_abandoned_uploads() == 1
    assert package_store().size(upload.sealed.digest) is None
    assert list(blobs.parts()) == []
