"""The form of keys, and their life."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from marketplace.accounts import key_services, policies, services
from marketplace.accounts.api_keys import digest_api_key, generate_api_key, parse_api_key
from marketplace.accounts.errors import Conflict, InvalidCredentials, InvalidInput, NotAllowed
from marketplace.accounts.models import ApiKey
from tests.marketplace.catalog.factories import make_key, make_organization


def test_a_generated_key_parses_to_its_prefix_and_no_two_are_alike() -> None:
    keys = {generate_api_key() for _ in range(100)}
    prefixes = {parse_api_key(key) for key in keys}
    assert len(keys) == len(prefixes) == 100
    for key in keys:
        prefix = parse_api_key(key)
        assert prefix is not None and key.startswith(f"ik_{prefix}_") and len(key.removeprefix(f"ik_{prefix}_")) >= 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ik_",
        "ik_aaaaaaaaaaaa",
        "ik_aaaaaaaaaaaa_",
        "ik_aaaaaaaaaaaa_" + "A" * 31,
        "ik_aaaaaaaaaaaa_" + "A" * 129,
        "ik_AAAAAAAAAAAA_" + "A" * 40,
        "ik_aaaaaaaaaaa1_" + "A" * 40,
        "sk_aaaaaaaaaaaa_" + "A" * 40,
        "ik_aaaaaaaaaaaa_" + "A" * 40 + "\n",
        " ik_aaaaaaaaaaaa_" + "A" * 40,
        "ik_aaaaaaaaaaaa_" + "é" * 40,
    ],
)
def test_anything_else_does_not_parse(text) -> None:
    assert parse_api_key(text) is None


@given(st.text())
def test_no_text_breaks_the_parser(text) -> None:
    assert parse_api_key(text) is None or text.startswith("ik_")


def test_the_digest_depends_on_every_character_and_on_the_pepper() -> None:
    key = generate_api_key()
    digest = digest_api_key(key, "pepper")
    assert len(digest) == 32
    assert digest != digest_api_key(key + "A", "pepper")
    assert digest != digest_api_key(key, "other")


@pytest.mark.django_db
def test_the_key_itself_is_stored_nowhere() -> None:
    key, text = make_key(make_organization())
    stored = ApiKey.objects.values().get()
    assert bytes(stored["digest"]) == digest_api_key(text, settings.ENV.api_key_pepper)
    assert text.split("_", 2)[2] not in str(stored)
    assert services.authenticate_api_key(text=text) == key


@pytest.mark.django_db
def test_a_key_with_the_right_prefix_and_another_secret_is_refused() -> None:
    _, text = make_key(make_organization())
    for wrong in (text[:-1] + ("A" if text[-1] != "A" else "B"), text + "A", text[:16] + "A" * 43):
        with pytest.raises(InvalidCredentials):
            services.authenticate_api_key(text=wrong)
    assert ApiKey.objects.get().last_used_at is None


@pytest.mark.django_db
def test_last_use_is_written_at_most_once_a_minute(django_assert_num_queries) -> None:
    _, text = make_key(make_organization())
    with django_assert_num_queries(2):
        services.authenticate_api_key(text=text)
    with django_assert_num_queries(1):
        services.authenticate_api_key(text=text)


@pytest.mark.django_db
def test_revoking_ends_a_key_at_once_and_keeps_the_first_time() -> None:
    key, text = make_key(make_organization())
    first = services.revoke_api_key(key=key).revoked_at
    assert services.revoke_api_key(key=key).revoked_at == first
    with pytest.raises(InvalidCredentials) as refusal:
        services.authenticate_api_key(text=text)
    assert refusal.value.code == "revoked_api_key"


@pytest.mark.django_db
def test_rotation_overlaps_and_never_lengthens_what_was_granted() -> None:
    organization = make_organization()
    key, text = make_key(organization, "predict")
    new, new_text = services.rotate_api_key(key=key, created_by=None)
    assert new.scopes == ["predict"] and new.name == key.name
    assert services.authenticate_api_key(text=text) and services.authenticate_api_key(text=new_text)
    key.refresh_from_db()
    assert key.expires_at is not None and key.expires_at <= timezone.now() + services.ROTATION_OVERLAP

    soon = timezone.now() + timedelta(hours=1)
    ending, _ = services.create_api_key(
        organization=organization, name="x", scopes=["predict"], created_by=None, expires_at=soon
    )
    successor, _ = services.rotate_api_key(key=ending, created_by=None)
    ending.refresh_from_db()
    assert successor.expires_at == ending.expires_at == soon
    services.revoke_api_key(key=ending)
    with pytest.raises(Conflict):
        services.rotate_api_key(key=ending, created_by=None)


@pytest.mark.django_db
@pytest.mark.parametrize("scopes", [[], ["root"], ["predict", "root"]])
def test_unknown_scopes_make_no_key(scopes) -> None:
    with pytest.raises(InvalidInput):
        services.create_api_key(organization=make_organization(), name="x", scopes=scopes, created_by=None)
    assert not ApiKey.objects.exists()


@pytest.mark.django_db
def test_an_organization_has_a_limited_number_of_active_keys(monkeypatch) -> None:
    monkeypatch.setattr(key_services, "MAX_ACTIVE_KEYS", 2)
    organization = make_organization()
    key, _ = make_key(organization)
    make_key(organization)
    with pytest.raises(NotAllowed):
        make_key(organization)
    services.revoke_api_key(key=key)
    make_key(organization)


@pytest.mark.parametrize(
    ("held", "wanted", "may"),
    [
        ({"account"}, {"predict"}, True),
        ({"account"}, {"publish"}, False),
        ({"publish"}, {"publish"}, True),
        ({"publish"}, {"predict"}, False),
        ({"predict"}, {"account"}, False),
        (set(), {"predict"}, False),
    ],
)
def test_scopes_that_a_role_may_hand_out(held, wanted, may) -> None:
    assert policies.may_grant(held, wanted) is may


@pytest.mark.django_db
def test_an_organization_makes_so_many_keys_a_day_and_revoking_them_makes_no_room(monkeypatch) -> None:
    monkeypatch.setattr(key_services, "MAX_NEW_KEYS", 2)
    organization = make_organization()
    for _ in range(2):
        services.revoke_api_key(key=make_key(organization, "predict")[0])
    with pytest.raises(NotAllowed) as refused:
        make_key(organization, "predict")
    assert refused.value.code == "too_many_new_keys" and ApiKey.objects.count() == 2
    ApiKey.objects.update(created_at=timezone.now() - timedelta(days=2))
    make_key(organization, "predict")
