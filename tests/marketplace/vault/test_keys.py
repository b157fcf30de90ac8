"""The platform's keys and the intake of creators' data keys."""

from __future__ import annotations

import threading

import pytest
from django.core.management import call_command
from django.db import connection

from marketplace.accounts.seals import root_key
from marketplace.vault import keys, services
from marketplace.vault.errors import DataKeyRefused, NotBootstrapped
from marketplace.vault.models import CreatorKey, DataKey, PlatformKey
from marketplace.vault.signing import load_ticket_signer
from sealed_weights import AuthenticationError, PlatformKeypair, open_creator_kek, unwrap_key, wrap_dek_for_platform
from tests.marketplace.vault.factories import make_sold, wrap_for

pytestmark = pytest.mark.django_db


def test_bootstrap_makes_each_key_once() -> None:
    assert {row.purpose for row in services.bootstrap_platform_keys()} == {"intake", "ticket", "vault", "receipt"}
    assert services.bootstrap_platform_keys() == []
    assert PlatformKey.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_bootstrap_run_twice_at_once_makes_each_key_once() -> None:
    def run() -> None:
        services.bootstrap_platform_keys()
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert PlatformKey.objects.count() == 4


def test_the_command_says_what_it_made(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("bootstrap_vault")
    assert capsys.readouterr().out == "vault keys: intake, ticket, vault, receipt\n"
    call_command("bootstrap_vault")
    assert capsys.readouterr().out == "vault keys: nothing new\n"


def test_before_bootstrap_nothing_can_be_signed() -> None:
    with pytest.raises(NotBootstrapped, match="bootstrap_vault"):
        load_ticket_signer()


def test_no_private_key_is_stored_in_the_clear() -> None:
    services.bootstrap_platform_keys()
    for row in PlatformKey.objects.all():
        private = bytes(keys.private_bytes(row))
        assert private not in bytes(row.wrapped_private_key)


def test_a_wrapped_platform_key_moved_to_another_row_does_not_open() -> None:
    services.bootstrap_platform_keys()
    ticket, vault = PlatformKey.objects.get(purpose="ticket"), PlatformKey.objects.get(purpose="vault")
    vault.wrapped_private_key = ticket.wrapped_private_key
    with pytest.raises(AuthenticationError):
        keys.private_bytes(vault)


def test_an_accepted_data_key_is_stored_under_the_creators_key_alone() -> None:
    sold = make_sold()
    row = DataKey.objects.get(version=sold.version)
    assert bytes(sold.dek) not in bytes(row.wrapped_key)
    creator_key = CreatorKey.objects.get(organization=sold.organization)
    kek = open_creator_kek(root_key(), bytes(creator_key.wrapped_key), sold.organization.pk)
    context = {"purpose": "data-key", "version_id": str(sold.version.pk), "digest": sold.digest}
    assert unwrap_key(kek, bytes(row.wrapped_key), context) == sold.dek
    with pytest.raises(AuthenticationError):
        unwrap_key(kek, bytes(row.wrapped_key), {**context, "digest": "00" * 32})


def test_accepting_the_same_key_again_changes_nothing() -> None:
    sold = make_sold()
    before = bytes(DataKey.objects.get(version=sold.version).wrapped_key)
    services.accept_data_key(version=sold.version, wrapped=wrap_for(sold), digest=sold.digest)
    assert bytes(DataKey.objects.get(version=sold.version).wrapped_key) == before


def test_a_key_wrapped_to_a_retired_intake_key_is_still_accepted() -> None:
    sold = make_sold()
    wrapped = wrap_for(sold)
    DataKey.objects.all().delete()
    PlatformKey.objects.filter(purpose="intake").update(retired_at="2026-01-01T00:00:00Z")
    services.bootstrap_platform_keys()
    services.accept_data_key(version=sold.version, wrapped=wrapped, digest=sold.digest)
    assert DataKey.objects.filter(version=sold.version).exists()


def test_a_wrap_for_another_package_version_or_platform_is_refused_and_not_stored() -> None:
    sold, other = make_sold(), make_sold()
    stranger = PlatformKeypair.generate().public_bytes()
    facts = {
        "creator_id": sold.organization.pk,
        "model_id": sold.version.model_id,
        "version": sold.version.number,
        "digest": sold.digest,
    }
    DataKey.objects.all().delete()
    for wrapped in (
        wrap_for(sold, digest="11" * 32),
        wrap_for(other),
        wrap_dek_for_platform(sold.dek, stranger, **facts),  # type: ignore[arg-type]
        b"",
        b"\0" * 1168,
    ):
        with pytest.raises(DataKeyRefused):
            services.accept_data_key(version=sold.version, wrapped=wrapped, digest=sold.digest)
    assert not DataKey.objects.exists()
