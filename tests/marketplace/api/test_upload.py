"""From `start_version` to `revoked`, over HTTP, with really sealed packages."""

from __future__ import annotations

import pytest

from marketplace.catalog import blobs
from marketplace.catalog.models import Version
from marketplace.publishing import services as publishing
from marketplace.vault.models import DataKey
from protocol.encoding import encode_base64url
from sealed_weights import CreatorIdentity, generate_key
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import Creator, make_model, set_price, stored_path
from tests.marketplace.publishing.factories import sketch_report

pytestmark = pytest.mark.django_db


class Upload:
    """One upload by one creator."""

    def __init__(self, tmp_path, **seal_options) -> None:
        self.creator = Creator.make(tmp_path)
        self.model = make_model(self.creator.organization)
        self.api = Api.of(self.creator.organization)
        self.dek = generate_key()
        started = self.api.post(
            f"models/{self.model.full_name}/versions",
            {
                "signing_key_id": str(self.creator.signing_key.id),
                "package_size": self.creator.package_size(self.model),
                "changelog": "first",
            },
        )
        assert started.status_code == 201, started.content
        self.started = started.json()
        self.path = f"versions/{self.started['id']}"
        self.sealed = self.creator.seal(model=self.model, number=self.started["number"], dek=self.dek, **seal_options)
        self.bytes = self.sealed.path.read_bytes()

    @property
    def version(self) -> Version:
        return Version.objects.get(pk=self.started["id"])

    def put(self, data: bytes, offset: int | str):
        return self.api.put_bytes(f"{self.path}/package", data, offset)

    def upload(self) -> None:
        assert self.put(self.bytes, 0).status_code == 204

    def complete(self, **changed):
        wrapped = self.creator.wrap(
            model=self.model, number=self.started["number"], dek=self.dek, digest=self.sealed.digest
        )
        body = {"digest": self.sealed.digest, "wrapped_data_key": encode_base64url(wrapped), **changed}
        return self.api.post(f"{self.path}/complete", body)


@pytest.fixture
def upload(tmp_path) -> Upload:
    return Upload(tmp_path)


@pytest.fixture
def queued(monkeypatch) -> list[str]:
    """Versions queued for verification, and revocations pushed."""
    found: list[str] = []
    monkeypatch.setattr(
        "marketplace.publishing.verification.verify_version.delay", lambda one: found.append(f"verify {one}")
    )
    monkeypatch.setattr("marketplace.vault.tasks.push_revocation.delay", lambda one: found.append(f"push {one}"))
    return found


def test_starting_a_version_tells_everything_that_sealing_needs(upload) -> None:
    started = upload.started
    assert started["number"] == 1
    assert started["creator_id"] == str(upload.creator.organization.id)
    assert started["model_id"] == str(upload.model.id)
    assert started["base_fingerprint"] == upload.model.base_model.fingerprint
    assert started["base_config"] == {"model_type": "llama"}
    assert started["upload_url"].endswith(f"/api/v1/versions/{started['id']}/package")
    assert started["intake_key"] == upload.api.get("vault/intake-key").json()
    assert started["state"] == "uploading"


def test_a_package_goes_from_upload_to_published_to_revoked(upload, queued, django_capture_on_commit_callbacks) -> None:
    half = len(upload.bytes) // 2
    assert upload.put(upload.bytes[:half], 0)["Upload-Offset"] == str(half)
    head = upload.api.call("HEAD", f"{upload.path}/package")
    assert (head["Upload-Offset"], head["Upload-Length"]) == (str(half), str(len(upload.bytes)))
    assert upload.put(upload.bytes[half:], half)["Upload-Offset"] == str(len(upload.bytes))

    with django_capture_on_commit_callbacks(execute=True):
        completed = upload.complete()
    assert completed.status_code == 200, completed.content
    assert completed.json()["state"] == "verifying"
    assert completed.json()["package_digest"] == upload.sealed.digest
    assert queued == [f"verify {upload.started['id']}"]
    assert stored_path(upload.sealed.digest).read_bytes() == upload.bytes
    assert not blobs.part_path(upload.version.id).exists()
    assert DataKey.objects.filter(version=upload.version).exists()

    publishing.record_verification(version=upload.version, ok=True, report={"rank": 8, **sketch_report()})
    assert upload.version.report == {"rank": 8}, "the sketch of the weights is shown to nobody"
    assert error_of(upload.api.post(f"{upload.path}/publish"), 409)["code"] == "no_price"
    set_price(upload.model)
    assert upload.api.post(f"{upload.path}/publish").json()["state"] == "published"
    assert upload.api.post(f"{upload.path}/publish").json()["state"] == "published"
    assert upload.api.get(f"models/{upload.model.full_name}").json()["newest_version"] == 1

    error_of(upload.api.post(f"{upload.path}/revoke", {}), 400)
    with django_capture_on_commit_callbacks(execute=True):
        revoked = upload.api.post(f"{upload.path}/revoke", {"reason": "trained on the wrong data"})
    assert revoked.json()["state"] == "revoked"
    assert revoked.json()["report"]["revocation"] == {"reason": "trained on the wrong data"}
    assert queued[1:] == [f"push {upload.started['id']}"]
    assert error_of(upload.api.post(f"{upload.path}/publish"), 409)["code"] == "wrong_state"


def test_completing_twice_is_completing_once(upload, queued, django_capture_on_commit_callbacks) -> None:
    upload.upload()
    with django_capture_on_commit_callbacks(execute=True):
        first, second = upload.complete(), upload.complete()
    assert first.json()["state"] == second.json()["state"] == "verifying"
    assert len(queued) == 1
    assert error_of(upload.complete(digest="0" * 64), 409)["code"] == "upload_closed"


def test_a_chunk_at_the_wrong_offset_is_told_the_right_one_and_writes_nothing(upload) -> None:
    upload.put(upload.bytes[:100], 0)
    for offset in (0, 99, 101, 10**11):
        response = upload.put(b"x" * 10, offset)
        assert error_of(response, 409)["code"] == "wrong_offset"
        assert response["Upload-Offset"] == "100"
    assert blobs.part_path(upload.version.id).read_bytes() == upload.bytes[:100]


@pytest.mark.parametrize("offset", ["", "-1", "1.5", "٣", "9" * 13, "x"])
def test_an_offset_that_is_no_number_is_refused(upload, offset) -> None:
    assert error_of(upload.put(b"x", offset), 400)["field"] == "Upload-Offset"
    assert blobs.part_size(upload.version.id) == 0


def test_more_bytes_than_announced_are_refused(upload) -> None:
    upload.upload()
    assert error_of(upload.put(b"x", len(upload.bytes)), 413)["code"] == "package_too_large"
    assert blobs.part_size(upload.version.id) == len(upload.bytes)


def test_a_chunk_over_eight_mebibytes_is_refused_before_it_is_read(upload) -> None:
    response = upload.put(b"x" * (blobs.MAX_CHUNK_SIZE + 1), 0)
    assert error_of(response, 413)["code"] == "body_too_large"
    assert response["Connection"] == "close"
    assert blobs.part_size(upload.version.id) == 0


def test_an_empty_chunk_and_another_content_type_are_refused(upload) -> None:
    error_of(upload.put(b"", 0), 411)
    error_of(upload.api.call("PUT", f"{upload.path}/package", {"a": 1}, **{"Upload-Offset": "0"}), 415)
    error_of(upload.api.get(f"{upload.path}/package"), 405)


def test_an_unfinished_upload_cannot_be_completed(upload, queued) -> None:
    upload.put(upload.bytes[:-1], 0)
    assert error_of(upload.complete(), 409)["code"] == "upload_incomplete"
    assert upload.version.state == "uploading"
    assert not queued


def test_a_wrong_digest_can_be_corrected(upload, queued) -> None:
    upload.upload()
    assert error_of(upload.complete(digest="0" * 64), 422)["code"] == "digest_mismatch"
    error_of(upload.complete(digest="nonsense"), 400)
    assert upload.version.state == "uploading"
    assert upload.complete().status_code == 200


def test_a_data_key_wrapped_for_something_else_is_refused_and_can_be_corrected(upload) -> None:
    upload.upload()
    wrong = upload.creator.wrap(model=upload.model, number=2, dek=upload.dek, digest=upload.sealed.digest)
    for wrapped in (wrong, b"x" * len(wrong), b"x"):
        assert error_of(upload.complete(wrapped_data_key=encode_base64url(wrapped)), 422)["code"] == "wrong_data_key"
        assert upload.version.state == "uploading"
        assert not DataKey.objects.exists()
        assert not stored_path(upload.sealed.digest).exists()
    assert upload.complete().status_code == 200


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        ({"identity": CreatorIdentity.generate()}, "wrong_signature"),
        ({"version": 2}, "wrong_header"),
        ({"creator_id": __import__("uuid").uuid4()}, "wrong_header"),
        ({"model_id": __import__("uuid").uuid4()}, "wrong_header"),
        ({"base_fingerprint": bytes(32)}, "wrong_header"),
    ],
)
def test_a_package_that_lies_is_refused_for_good(tmp_path, queued, lie, code) -> None:
    upload = Upload(tmp_path)
    options = {"model": upload.model, "number": 1, "dek": upload.dek}
    if "version" in lie:
        options["number"] = lie.pop("version")
    upload.sealed = upload.creator.seal(**options, **lie)
    upload.bytes = upload.sealed.path.read_bytes()
    upload.upload()
    assert error_of(upload.complete(), 422)["code"] == code
    assert upload.version.state == "refused"
    assert upload.version.report["refusal"]["rule"] == code
    assert not blobs.part_path(upload.version.id).exists()
    assert not DataKey.objects.exists() and not queued
    assert error_of(upload.put(b"x", 0), 409)["code"] == "upload_closed"


def test_bytes_that_are_no_package_are_refused_for_good(upload, queued) -> None:
    upload.put(b"\0" * len(upload.bytes), 0)
    assert error_of(upload.complete(), 422)["code"] == "malformed_package"
    assert upload.version.state == "refused" and not queued


def test_one_flipped_bit_is_refused(upload) -> None:
    flipped = bytearray(upload.bytes)
    flipped[len(flipped) // 2] ^= 1
    upload.put(bytes(flipped), 0)
    assert error_of(upload.complete(), 422)["code"] == "wrong_signature"


def test_an_expired_upload_is_refused_and_its_bytes_are_gone(upload) -> None:
    upload.upload()
    assert publishing.expire_abandoned_uploads() == 0
    Version.objects.update(created_at="2020-01-01T00:00:00Z")
    assert publishing.expire_abandoned_uploads() == 1
    assert upload.version.state == "refused"
    assert blobs.part_size(upload.version.id) == 0


def test_a_full_disk_keeps_what_arrived(upload, monkeypatch) -> None:
    upload.put(upload.bytes[:100], 0)
    import errno
    import os

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("marketplace.catalog.blobs.os.open", full)
        assert error_of(upload.put(upload.bytes[100:], 100), 507)["code"] == "storage_full"
    assert upload.put(upload.bytes[100:], 100).status_code == 204
    assert upload.complete().status_code == 200


@pytest.mark.django_db(transaction=True)
async def test_a_chunk_arrives_through_asgi_as_through_wsgi(tmp_path) -> None:
    from asgiref.sync import sync_to_async
    from django.test import AsyncClient

    upload = await sync_to_async(Upload)(tmp_path)
    response = await AsyncClient().put(
        f"/api/v1/{upload.path}/package",
        data=upload.bytes,
        content_type="application/octet-stream",
        headers={**upload.api.headers, "Upload-Offset": "0"},
    )
    assert response.status_code == 204, response.content
    assert response["Upload-Offset"] == str(len(upload.bytes))
    assert blobs.part_path(upload.started["id"]).read_bytes() == upload.bytes


def test_tasks_of_this_process_go_to_the_projects_broker() -> None:
    from celery import current_app

    from marketplace.publishing.verification import verify_version

    assert current_app.main == verify_version.app.main == "intarsia"
