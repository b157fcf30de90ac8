"""The price and the split that the gateway finds for a model name, a customer and a moment."""

from __future__ import annotations

import uuid
from datetime import timedelta
from email.utils import parsedate_to_datetime

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from billing.models import SplitPart
from marketplace.accounts.errors import NotAllowed, NotFound
from marketplace.accounts.models import Organization
from marketplace.catalog import services
from marketplace.catalog.models import Model, Rollout, Source, Version
from marketplace.catalog.rollouts import takes_part
from marketplace.gateway.offers import Offer
from marketplace.gateway.principals import Principal
from marketplace.teams import organizations
from protocol.names import parse_model_name
from tests.marketplace.catalog.factories import add_member
from tests.marketplace.gateway.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def offer(world: World, name: str = "maker/thing", consumer: Organization | None = None) -> Offer:
    database = world.gateway._ready.parts.books.database
    buyer = consumer or world.consumer
    return await world.gateway._offers.find(
        database, parse_model_name(name), consumer=Principal(buyer.pk, buyer.slug, None)
    )


@sync_to_async
def parts(found: Offer) -> list[tuple[str, int, str | None]]:
    names = {organization.pk: organization.slug for organization in Organization.objects.all()}
    rows = SplitPart.objects.filter(split_id=found.split_id).order_by("place")
    return [(row.reason, row.basis_points, row.organization_id and names[row.organization_id]) for row in rows]


@sync_to_async
def set_price(model: Model, amount: int, **terms: object) -> None:
    services.set_price(model=model, input_micro_usd_per_mtok=amount, output_micro_usd_per_mtok=amount, **terms)


async def test_a_version_has_its_own_price_and_an_announced_one_waits(world: World) -> None:
    second = await sync_to_async(Version.objects.create)(
        model=world.model, number=2, state="published", package_digest="ef" * 32, published_at=timezone.now()
    )
    await set_price(world.model, 5, version=world.version)
    await set_price(world.model, 7, effective_at=timezone.now() + timedelta(hours=1))
    await set_price(world.model, 9, version=second, effective_at=timezone.now() + timedelta(hours=1))
    first = await offer(world, "maker/thing@1")
    newest = await offer(world)
    assert first.price.output_micro_usd_per_mtok == 5
    assert newest.version_id == second.pk and newest.price.output_micro_usd_per_mtok == 3_000_000
    assert first.price_id != newest.price_id


@sync_to_async
def move(version: Version, state: str) -> None:
    Version.objects.filter(pk=version.pk).update(state=state)


@pytest.mark.parametrize("name", ["maker/thing", "maker/thing@1"])
async def test_a_version_in_review_is_nothing_to_strangers_and_answers_its_own_organization(
    world: World, name: str
) -> None:
    await move(world.version, "in_review")
    for visibility in ("public", "unlisted", "private"):
        await sync_to_async(Model.objects.update)(visibility=visibility)
        world.let_pass(1)
        with pytest.raises(NotFound) as refusal:
            await offer(world, name)
        assert refusal.value.code == "model_not_found"
        assert (await offer(world, name, world.creator)).version_id == world.version.pk
    listed = await world.http.get("/v1/models")
    assert (await listed.json())["data"] == []


async def test_its_own_calls_by_name_stay_with_the_published_version_while_a_newer_one_is_in_review(
    world: World,
) -> None:
    newer = await sync_to_async(Version.objects.create)(
        model=world.model, number=2, state="in_review", package_digest="ef" * 32
    )
    for consumer in (world.consumer, world.creator):
        assert (await offer(world, "maker/thing", consumer)).version_id == world.version.pk
    assert (await offer(world, "maker/thing@2", world.creator)).version_id == newer.pk
    with pytest.raises(NotFound):
        await offer(world, "maker/thing@2")


async def test_a_retired_model_answers_strangers_the_same_while_a_newer_version_is_in_review(world: World) -> None:
    await move(world.version, "retired")
    await sync_to_async(Version.objects.create)(
        model=world.model, number=2, state="in_review", package_digest="ef" * 32
    )
    with pytest.raises(NotAllowed) as refusal:
        await offer(world)
    assert refusal.value.status == 403


def listing(world: World, slug: str) -> Model:
    organization = Organization.objects.create(slug=slug, name=slug)
    return Model.objects.create(organization=organization, slug=slug, base_model=world.model.base_model, title=slug)


async def test_a_split_pays_the_models_above_and_the_referrer(world: World) -> None:
    @sync_to_async
    def arrange() -> Organization:
        # The catalogue's tests look at chains (tests/marketplace/catalog/test_derivation.py).
        near, far = (listing(world, slug) for slug in ("near", "far"))
        for model, above, royalty in ((near, far, 5_000), (world.model, near, 1_000)):
            Source.objects.create(model=model, upstream=above, royalty_bps=royalty, place=1, count=1)
        friend = Organization.objects.create(slug="friend", name="Friend")
        ends = timezone.now() + timedelta(days=1)
        return Organization.objects.create(slug="brought", name="Brought", referred_by=friend, referral_ends_at=ends)

    brought = await arrange()
    earners = [("creator", 7_200, "maker"), ("upstream", 400, "near"), ("upstream", 400, "far")]
    assert await parts(await offer(world)) == [*earners, ("platform", 2_000, None)]
    found = await offer(world, consumer=brought)
    assert await parts(found) == [*earners, ("referral", 500, "friend"), ("platform", 1_500, None)]
    assert (await offer(world, consumer=brought)).split_id == found.split_id, "equal parts are one split"


async def test_a_split_pays_every_model_of_a_blend_and_those_above_them_once(world: World) -> None:
    @sync_to_async
    def arrange() -> None:
        left, right, top = (listing(world, slug) for slug in ("left", "right", "top"))
        for below in (left, right):
            Source.objects.create(model=below, upstream=top, royalty_bps=5_000, place=1, count=1)
        for place, (above, royalty) in enumerate([(left, 2_000), (right, 1_000)], start=1):
            Source.objects.create(model=world.model, upstream=above, royalty_bps=royalty, place=place, count=2)

    await arrange()
    blend = [("creator", 5_600, "maker"), ("blend", 800, "left"), ("upstream", 1_200, "top"), ("blend", 400, "right")]
    assert await parts(await offer(world)) == [*blend, ("platform", 2_000, None)]


async def test_a_referral_that_has_ended_pays_nobody(world: World) -> None:
    @sync_to_async
    def arrange() -> Organization:
        friend = Organization.objects.create(slug="friend", name="Friend")
        ended = timezone.now() - timedelta(seconds=1)
        return Organization.objects.create(slug="brought", name="Brought", referred_by=friend, referral_ends_at=ended)

    found = await offer(world, consumer=await arrange())
    assert await parts(found) == [("creator", 8_000, "maker"), ("platform", 2_000, None)]


@sync_to_async
def rename(organization: Organization, slug: str) -> None:
    organizations.rename(organization=organization, by=add_member(organization, "owner"), slug=slug)


async def test_a_former_name_of_the_creator_means_the_same_model(world: World) -> None:
    before = await offer(world)
    await rename(world.creator, "maker-two")
    world.let_pass(1)
    assert (await offer(world)).version_id == (await offer(world, "maker-two/thing")).version_id == before.version_id
    for unknown in ("maker/other", "nobody/thing"):
        with pytest.raises(NotFound):
            await offer(world, unknown)


@sync_to_async
def second_version(world: World, **fields: object) -> Version:
    return Version.objects.create(
        model=world.model, number=2, state="published", package_digest="ef" * 32, published_at=timezone.now(), **fields
    )


async def test_a_rollout_gives_each_customer_one_version_and_its_price_and_a_pin_holds(world: World) -> None:
    second = await second_version(world)
    await sync_to_async(Model.objects.update)(default_version=world.version)
    await set_price(world.model, 9, version=second)
    rollout = await sync_to_async(Rollout.objects.create)(
        model=world.model, version=second, baseline=world.version, percent=50
    )
    rest: dict[str, object] = {"rollout_id": rollout.pk, "model_id": world.model.pk}
    ids = [uuid.uuid4() for _ in range(1_000)]
    shares = [sum(takes_part(organization_id=one, percent=percent, **rest) for one in ids) for percent in (0, 10, 100)]
    assert shares[0] == 0 and 50 < shares[1] < 160 and shares[2] == 1_000
    for _ in range(20):
        someone = Principal(uuid.uuid4(), "someone", None)
        database = world.gateway._ready.parts.books.database
        inside = takes_part(organization_id=someone.organization_id, percent=50, **rest)
        for name, number in (("maker/thing", 2 if inside else 1), ("maker/thing@1", 1), ("maker/thing@2", 2)):
            found = await world.gateway._offers.find(database, parse_model_name(name), consumer=someone)
            assert (found.number, found.price.output_micro_usd_per_mtok == 9) == (number, number == 2), name


async def test_a_rollout_counts_while_its_version_is_on_sale(world: World) -> None:
    second = await second_version(world)
    await sync_to_async(Model.objects.update)(default_version=world.version)
    await sync_to_async(Rollout.objects.create)(model=world.model, version=second, baseline=world.version, percent=100)
    assert (await offer(world)).number == 2
    await move(second, "in_review")
    world.let_pass(1)
    assert (await offer(world)).number == 1


async def test_an_answer_tells_of_the_announced_end_of_its_version(world: World) -> None:
    second = await second_version(world)
    announced = timezone.now()
    ending = {"deprecated_at": announced, "ends_at": announced + timedelta(days=14), "replacement": second}
    await sync_to_async(Version.objects.filter(pk=world.version.pk).update)(**ending)
    body = {"model": "maker/thing@1", "messages": [{"role": "user", "content": "hi"}]}
    quote = await world.http.post("/v1/quote", json=body)
    assert quote.status == 200
    assert quote.headers["deprecation"] == f"@{int(announced.timestamp())}"
    assert parsedate_to_datetime(quote.headers["sunset"]).date() == ending["ends_at"].date()
    assert 'maker/thing@2>; rel="successor-version"' in quote.headers["link"]
    body["model"] = "maker/thing"
    assert "deprecation" not in (await world.http.post("/v1/quote", json=body)).headers
    await move(world.version, "retired")
    world.let_pass(1)
    with pytest.raises(NotAllowed, match="Call maker/thing@2 instead"):
        await offer(world, "maker/thing@1")
