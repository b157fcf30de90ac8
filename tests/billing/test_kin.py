"""Free amounts are given once to all organizations that belong together: members, their mailboxes, cards."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections

from billing.hotpath import place_hold, release_hold
from billing.integrity import find_discrepancies
from billing.models import Allowance, CardUse, Hold
from marketplace.accounts.models import Membership, Organization, User
from tests.billing.support import hold_request, hot_connection, hot_pool, make_organization

pytestmark = pytest.mark.django_db(transaction=True)

FREE = 2_500  # nano-dollars, once


@pytest.fixture(autouse=True)
async def _close_the_thread_connection() -> AsyncIterator[None]:
    yield
    await sync_to_async(connections.close_all)()


def person(email: str, *organizations: Organization) -> User:
    user = User.objects.create_user(email, "a long passphrase")
    for organization in organizations:
        Membership.objects.create(user=user, organization=organization, role=Membership.Role.OWNER)
    return user


def by_member(one: Organization, other: Organization) -> None:
    person(f"{one.slug}@example.com", one, other)


def by_mailbox(one: Organization, other: Organization) -> None:
    person(f"{one.slug}+one@example.com", one)
    person(f"{one.slug.upper()}+two@EXAMPLE.com", other)


def by_card(one: Organization, other: Organization) -> None:
    for organization in (one, other):
        CardUse.objects.create(organization=organization, fingerprint=f"card-{one.slug}")


def kin(organization: Organization) -> set[uuid.UUID]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_kin(%s)", [organization.pk])
        return set(cursor.fetchone()[0])


@pytest.mark.parametrize("tie", [by_member, by_mailbox, by_card])
def test_organizations_are_kin_by_a_tie_and_by_way_of_others(tie: Callable[[Organization, Organization], None]) -> None:
    one, two, three, stranger = (make_organization() for _ in range(4))
    person("someone@example.com", stranger)
    tie(one, two)
    by_card(two, three)
    assert kin(one) == kin(three) == {one.pk, two.pk, three.pk} and kin(stranger) == {stranger.pk}


@pytest.mark.parametrize("tie", [by_member, by_mailbox, by_card])
async def test_twenty_organizations_of_one_person_get_one_free_amount_also_at_once(
    tie: Callable[[Organization, Organization], None],
) -> None:
    @sync_to_async
    def made() -> tuple[Organization, list[Organization]]:
        creator, many = make_organization(), [make_organization(1_000_000) for _ in range(20)]
        for one, other in itertools.pairwise(many):
            tie(one, other)
        return creator, many

    creator, many = await made()
    requests = [hold_request(one, creator, introductory_free_nano_usd=FREE) for one in many]
    async with hot_pool(5) as pool:

        async def place(number: int) -> int:
            async with pool.connection() as conn:
                return (await place_hold(conn, requests[number])).amount_nano_usd

        paid = sum(await asyncio.gather(*(place(number) for number in range(20))))
    assert paid == 20 * 1_000 - FREE

    @sync_to_async
    def given() -> int:
        assert find_discrepancies() == []
        return sum(row.held_nano_usd + row.used_nano_usd for row in Allowance.objects.all())

    assert await given() == FREE
    async with hot_connection() as conn:
        first = await sync_to_async(Hold.objects.filter(introductory_allowance_nano_usd__gt=0).first)()
        assert await release_hold(conn, first.pk, reason="refused")
        again = await place_hold(conn, hold_request(many[-1], creator, introductory_free_nano_usd=FREE))
    assert again.amount_nano_usd == 1_000 - first.introductory_allowance_nano_usd, "what was given back is free again"


async def test_strangers_have_free_amounts_of_their_own() -> None:
    creator, one, other = await sync_to_async(lambda: [make_organization() for _ in range(3)])()
    await sync_to_async(person)("one@example.com", one)
    await sync_to_async(person)("other@example.com", other)
    async with hot_connection() as conn:
        for organization in (one, other):
            hold = await place_hold(conn, hold_request(organization, creator, monthly_free_nano_usd=FREE))
            assert hold.amount_nano_usd == 0
