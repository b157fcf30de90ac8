"""Reads. Strangers see through `published_models` and `visible_model`; every other read asks for the owner."""

from __future__ import annotations

from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db.models import (
    Exists,
    F,
    Func,
    IntegerField,
    Manager,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
    UUIDField,
    Value,
)
from django.db.models.functions import Now

from marketplace.accounts.models import Organization
from marketplace.catalog import policies, search
from marketplace.catalog.models import BaseModel, Evaluation, Model, Price, Source, Version

ORDERINGS = ("ranked", "relevance", "newest", "updated", "price", "name")
_PUBLISHED = Version.State.PUBLISHED
_LATEST = ("-effective_at", "-id")  # the order in which a later price precedes an earlier one


def published_models(
    *, query: str = "", industry: str = "", base: str = "", tag: str = "", ordering: str = "ranked"
) -> QuerySet[Model]:
    """Return the public catalogue: public models with a published version, with everything that `Model.facts` needs.

    `query` is searched by words, spelling and meaning (`catalog.search`): at most 100 models for each, annotated with
    their `place` and `found_by_meaning`. `base` is a base's name or fingerprint; `ordering` is one of ORDERINGS:
    `ranked` is by standing (marketplace/standing), and so is `relevance` without a query.
    """
    found = listed(published_names().filter(organization__suspended_at=None))
    if industry:
        found = found.filter(industry__iexact=industry)
    if base:
        found = found.filter(Q(base_model__name=base) | Q(base_model__fingerprint=base))
    if tag:
        found = found.filter(tags__contains=[tag.lower()])
    if query.strip():
        found = _search(found, search.find(query, search.Filters(industry=industry, base=base, tag=tag)))
        if ordering == "relevance":
            return found.order_by(F("place"))
    if ordering == "price":
        return found.order_by(F("output_price").asc(nulls_last=True), "id")
    if ordering == "name":
        return found.order_by("organization__slug", "slug")
    if ordering in ("newest", "updated"):
        return found.order_by("-updated_at" if ordering == "updated" else "-created_at", "-id")
    # Each listed model has its standing, so an index gives the order.
    return found.filter(standing__isnull=False).order_by("standing__place", "standing__model_id")


def new_models(*, limit: int) -> QuerySet[Model]:
    """Return the new models that have their turn on the shelf today, at most `limit` of them."""
    return published_models().filter(standing__shelf__isnull=False).order_by("standing__shelf")[:limit]


def models_of(*, organization: Organization) -> QuerySet[Model]:
    """Return every model of the organization, drafts and private ones too, newest first."""
    return listed(Model.objects.filter(organization=organization)).order_by("-created_at", "-id")


def visible_model(*, org_slug: str, slug: str, viewer: Organization | None) -> Model | None:
    """Return the model `org_slug/slug` if `viewer` may see it, or None."""
    model = listed(Model.objects.filter(organization__slug=org_slug, slug=slug)).first()
    if model is None:
        return None
    is_published = model.facts.newest is not None
    return model if policies.may_view(model=model, is_published=is_published, viewer=viewer) else None


def owned_model(*, organization: Organization, org_slug: str, slug: str) -> Model | None:
    """Return the model `org_slug/slug` if it belongs to `organization`, or None."""
    return listed(Model.objects.filter(organization=organization, organization__slug=org_slug, slug=slug)).first()


def versions_of(*, model: Model, published_only: bool) -> QuerySet[Version]:
    """Return the model's versions, newest first; strangers see the published ones."""
    versions = Version.objects.filter(model=model).select_related("model__organization", "model__base_model")
    return (versions.filter(state=_PUBLISHED) if published_only else versions).order_by("-number")


def published_version(*, org_slug: str, slug: str, number: int | None) -> Version | None:
    """Return the published version `number` of a model, or its newest one.

    For the platform itself: the owner of the model does not matter.
    """
    versions = Version.objects.filter(model__organization__slug=org_slug, model__slug=slug, state=_PUBLISHED)
    if number is not None:
        versions = versions.filter(number=number)
    return versions.select_related("model__organization").order_by("-number").first()


def owned_version(*, organization: Organization, version_id: UUID) -> Version | None:
    """Return one version of the organization's models with model, base and signing key, or None."""
    related = ("model__organization", "model__base_model", "signing_key")
    return Version.objects.filter(pk=version_id, model__organization=organization).select_related(*related).first()


def in_force(prices: Manager[Price] | QuerySet[Price]) -> QuerySet[Price]:
    """Return the rows of `prices` that have begun; the latest of a version, or else of its model, is its price."""
    return prices.filter(effective_at__lte=Now())


def price_of(*, version: Version) -> Price | None:
    """Return the price of a version right now, or None."""
    prices = in_force(Price.objects).filter(Q(version=None) | Q(version=version), model_id=version.model_id)
    return prices.order_by(F("version").desc(nulls_last=True), *_LATEST).first()


def prices_of(*, model: Model) -> QuerySet[Price]:
    """Return every price of the model, past and announced ones too, the last to begin first."""
    return Price.objects.filter(model=model).select_related("version").order_by(*_LATEST)


def announced_prices(*, model: Model) -> QuerySet[Price]:
    """Return the prices of the model that have not begun yet, the next one first."""
    return prices_of(model=model).filter(effective_at__gt=Now()).reverse()


def evaluations_of(*, model: Model) -> QuerySet[Evaluation]:
    """Return everything the platform measured on the model's versions, newest first."""
    return Evaluation.objects.filter(version__model=model).select_related("version").order_by("-created_at", "-id")


def bases() -> QuerySet[BaseModel]:
    """Return every base model, newest first."""
    return BaseModel.objects.order_by("-created_at", "-id")


def bases_named(name: str) -> list[BaseModel]:
    """Return the base with this fingerprint, or every base with this name (a name may have been used for several)."""
    return list(BaseModel.objects.filter(Q(fingerprint=name) | Q(name=name)).order_by("-created_at", "-id"))


def industries() -> list[str]:
    """Return the industries of the public catalogue, in alphabetical order."""
    public = published_names().filter(organization__suspended_at=None).exclude(industry="")
    return list(public.values_list("industry", flat=True).distinct().order_by("industry"))


def published_names() -> QuerySet[Model]:
    """Return the models that strangers find by name: public ones with a published version."""
    published = Exists(Version.objects.filter(model=OuterRef("pk"), state=_PUBLISHED))
    return Model.objects.filter(published, visibility=Model.Visibility.PUBLIC)


def listed(models: QuerySet[Model]) -> QuerySet[Model]:
    """Add to `models` what every listing shows, in a fixed number of queries: `output_price` and the facts."""
    price = (
        in_force(Price.objects)
        .select_related("version")
        .order_by("model_id", "version_id", *_LATEST)
        .distinct("model_id", "version_id")
    )
    evaluation = Evaluation.objects.order_by("version_id", "-id").distinct("version_id")
    version = (
        Version.objects.filter(state=_PUBLISHED)
        .order_by("model_id", "-number")
        .distinct("model_id")
        .prefetch_related(Prefetch("evaluations", queryset=evaluation, to_attr="newest_evaluations"))
    )
    newest_version = Version.objects.filter(model=OuterRef(OuterRef("pk")), state=_PUBLISHED).order_by("-number")
    newest_price = (
        in_force(Price.objects)
        .filter(Q(version=None) | Q(version=Subquery(newest_version.values("pk")[:1])), model=OuterRef("pk"))
        .order_by(F("version").desc(nulls_last=True), *_LATEST)
    )
    return (
        models.select_related("organization", "base_model", "standing")
        .prefetch_related(
            Prefetch("sources", queryset=Source.objects.select_related("upstream__organization").order_by("place")),
            Prefetch("prices", queryset=price, to_attr="current_prices"),
            Prefetch("versions", queryset=version, to_attr="newest_versions"),
        )
        .annotate(
            output_price=Subquery(newest_price.values("output_micro_usd_per_mtok")[:1]),
        )
    )


def _search(models: QuerySet[Model], hits: list[search.Hit]) -> QuerySet[Model]:
    """Keep what was found, with its `place` (1 is the best) and whether its meaning alone was."""
    ids = [hit.model_id for hit in hits]
    places = Value(ids, output_field=ArrayField(UUIDField()))
    by_meaning = [hit.model_id for hit in hits if hit.by_meaning_alone]
    return models.filter(pk__in=ids).annotate(
        place=Func(places, F("pk"), function="array_position", output_field=IntegerField()),
        found_by_meaning=Q(pk__in=by_meaning) if by_meaning else Value(False),
    )
