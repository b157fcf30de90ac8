"""The state machine of versions, alone and under concurrency."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection

from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed, TooLarge
from marketplace.catalog.models import Version
from marketplace.publishing import services as publishing
from marketplace.publishing import uploads
from protocol.errors import ProtocolError
from tests.marketplace.catalog.factories import Creator, make_model, make_version, set_price
from tests.marketplace.publishing.factories import give_sketch

State = Version.State
ACTIONS: dict[str, Callable[[Version], object]] = {
    State.PUBLISHED: lambda version: publishing.publish_version(version=version),
    State.RETIRED: lambda version: publishing.retire_version(version=version),
    State.REVOKED: lambda version: publishing.revoke_version(version=version, reason="x"),
    State.VERIFIED: lambda version: publishing.record_verification(version=version, ok=True, report={}),
}


@pytest.mark.django_db
@pytest.mark.parametrize("to", list(ACTIONS))
@pytest.mark.parametrize("start", State.values)
def test_every_step_is_allowed_or_refused_as_the_table_says(start, to) -> None:
    version = make_version(state=start)
    allowed = to in Version.NEXT_STATES[start]
    idempotent = start == to
    quiet = to == State.VERIFIED  # a late second answer of a replica is ignored
    if start == State.IN_REVIEW:  # only a decision moves it on to sale, and only a refusal back
        allowed, quiet = allowed and to in (State.RETIRED, State.REVOKED), True
    if allowed or idempotent or quiet:
        ACTIONS[to](version)
    else:
        with pytest.raises(Conflict):
            ACTIONS[to](version)
    version.refresh_from_db()
    assert version.state == (to if allowed or idempotent else start)


@pytest.mark.django_db
def test_a_stale_object_cannot_undo_a_newer_state() -> None:
    version = make_version(state=State.VERIFIED)
    stale = Version.objects.get(pk=version.pk)
    publishing.revoke_version(version=version, reason="x")
    with pytest.raises(Conflict):
        publishing.publish_version(version=stale)
    assert Version.objects.get().state == State.REVOKED


@pytest.mark.django_db
def test_publishing_needs_a_price_and_sets_the_time() -> None:
    model = make_model()
    version = Version.objects.create(model=model, number=1, state=State.VERIFIED)
    give_sketch(version)
    with pytest.raises(Conflict) as refusal:
        publishing.publish_version(version=version)
    assert refusal.value.code == "no_price" and Version.objects.get().state == State.VERIFIED
    set_price(model)
    publishing.publish_version(version=version)
    first = Version.objects.get().published_at
    publishing.publish_version(version=version)
    assert first is not None and Version.objects.get().published_at == first


@pytest.mark.django_db
def test_a_refused_verification_keeps_the_refusal() -> None:
    version = make_version(state=State.VERIFYING)
    refusal = {"refusal": {"field": "rank", "rule": "at most 256", "message": "rank 512"}}
    publishing.record_verification(version=version, ok=False, report=refusal)
    publishing.record_verification(version=version, ok=True, report={})
    version = Version.objects.get()
    assert (version.state, version.report) == (State.REFUSED, refusal)


@pytest.mark.django_db
def test_what_a_replica_says_of_pefts_answers_is_read_before_it_is_kept() -> None:
    version = make_version(state=State.VERIFYING)
    counts = {"rows": 1, "same": 1, "tokens": 9, "agreed": 9, "base_agreed": 3, "peft": "float32", "served": "int8"}
    with pytest.raises(ProtocolError):
        publishing.record_verification(version=version, ok=True, report={"peft": counts | {"agreed": 10}})
    version.refresh_from_db()
    assert version.state == State.VERIFYING and version.report == {}
    publishing.record_verification(version=version, ok=True, report={"peft": counts})
    assert Version.objects.get().report == {"peft": counts}


@pytest.mark.django_db
def test_starting_a_version_checks_everything_first(tmp_path, monkeypatch) -> None:
    creator, other = Creator.make(tmp_path / "a"), Creator.make(tmp_path / "b")
    model = make_model(creator.organization)

    def start(**changed: object) -> Version:
        return publishing.start_version(
            **{"model": model, "signing_key": creator.signing_key, "package_size": 10, **changed}
        )

    for changed, error in (
        ({"package_size": 0}, TooLarge),
        ({"package_size": uploads.MAX_PACKAGE_SIZE + 1}, TooLarge),
        ({"changelog": "x" * 10_001}, InvalidInput),
        ({"signing_key": other.signing_key}, InvalidInput),
    ):
        with pytest.raises(error):
            start(**changed)
    assert not Version.objects.exists()
    monkeypatch.setattr(uploads, "MAX_OPEN_UPLOADS", 2)
    assert [start().number, start().number] == [1, 2]
    with pytest.raises(NotAllowed):
        start()
    Version.objects.update(state=State.REFUSED)
    assert start().number == 3, "numbers are never used again"


def _together(actions: list[Callable[[], object]]) -> list[object]:
    """Run `actions` at once, each with a connection of its own; what each returned or raised."""
    barrier = threading.Barrier(len(actions))
    results: list[object] = [None] * len(actions)

    def run(index: int) -> None:
        barrier.wait(10)
        try:
            results[index] = actions[index]()
        except Exception as error:
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


@pytest.mark.django_db(transaction=True)
def test_versions_started_at_once_get_different_numbers(tmp_path) -> None:
    creator = Creator.make(tmp_path)
    model = make_model(creator.organization)
    started = _together(
        [lambda: publishing.start_version(model=model, signing_key=creator.signing_key, package_size=10)] * 6
    )
    assert sorted(version.number for version in started) == [1, 2, 3, 4, 5, 6]


@pytest.mark.django_db(transaction=True)
def test_a_version_published_and_revoked_at_once_ends_revoked(monkeypatch) -> None:
    monkeypatch.setattr("marketplace.vault.tasks.push_revocation.delay", lambda _: None)
    for _ in range(5):
        version = make_version(make_model(slug=f"m{Version.objects.count()}"), state=State.VERIFIED)
        _together(
            [
                lambda v=version: publishing.publish_version(version=Version.objects.get(pk=v.pk)),
                lambda v=version: publishing.revoke_version(version=Version.objects.get(pk=v.pk), reason="x"),
            ]
        )
        version.refresh_from_db()
        assert version.state == State.REVOKED


@pytest.mark.django_db(transaction=True)
def test_chunks_sent_at_once_never_interleave(tmp_path) -> None:
    from io import BytesIO

    from marketplace.catalog import blobs

    creator = Creator.make(tmp_path)
    size = 1 << 20
    version = publishing.start_version(
        model=make_model(creator.organization), signing_key=creator.signing_key, package_size=size
    )
    bodies = [bytes([n]) * size for n in range(1, 5)]
    results = _together(
        [
            lambda body=body: publishing.append_package_chunk(
                version=version, offset=0, stream=BytesIO(body), length=size
            )
            for body in bodies
        ]
    )
    assert sorted(str(type(one).__name__) for one in results) == ["OffsetMismatch"] * 3 + ["int"]
    assert blobs.part_path(version.id).read_bytes() in bodies
