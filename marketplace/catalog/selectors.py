"""Reads. Strangers see through `published_models` and `visible_model`; every other read asks for the owner."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.conf import settings
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
    UUIDField,
    Value,
)
from django.db.models.functions import Now

from marketplace.accounts import selectors as accounts
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import Organization
from marketplace.catalog import policies, search
from marketplace.catalog.models import BaseModel, Evaluation, Model, Price, Rollout, Source, Version
from marketplace.catalog.rollouts import default_first
from marketplace.catalog.search import NO_FILTERS, Filters

ORDERINGS = ("ranked", "relevance", "newest", "updated", "price", "name")
_PUBLISHED = Version.State.PUBLISHED
_LOOKUPS = {
    "industry": "industry__iexact",
    "licence": "licence",
    "max_output_micro_usd_per_mtok": "standing__output_micro_usd_per_mtok__lte",
    "max_call_nano_usd": "standing__call_nano_usd__lte",
    "min_accuracy_bps": "standing__accuracy_bps__gte",
    "max_ttft_ms": "standing__ttft_p95_ms__lte",
}
_LATEST = ("-effective_at", "-id")  # the order in which a later price precedes an earlier one


def published_models(*, query: str = "", filters: Filters = NO_FILTERS, ordering: str = "ranked") -> QuerySet[Model]:
    """Return the public catalogue: public models with a published version, with everything that `Model.facts` needs.

    `query` is searched by words, spelling and meaning (`catalog.search`): at most 100 models for each, annotated with
    their `place` and `found_by_meaning`. `ordering` is one of ORDERINGS: `ranked` is by standing
    (marketplace/standing), and so is `relevance` without a query.
    """
    found = _filtered(listed(published_names().filter(organization__suspended_at=None)), filters)
    if query.strip():
        found = _search(found, search.find(query, filters))
        if ordering == "relevance":
            return found.order_by(F("place"))
    if ordering == "price":
        return found.order_by(F("standing__output_micro_usd_per_mtok").asc(nulls_last=True), "id")
    if ordering == "name":
        return found.order_by("organization__slug", "slug")
    if ordering in ("newest", "updated"):
        return found.order_by("-updated_at" if ordering == "updated" else "-created_at", "-id")
    # Each listed model has its standing, so an index gives the order.
    return found.filter(standing__isnull=False).order_by("standing__place", "standing__model_id")


def listed_names() -> QuerySet[Model, tuple[str, str, datetime]]:
    """Return organization, slug and time of the last change of every model in the public catalogue, by standing."""
    found = published_names().filter(standing__isnull=False).order_by("standing__place", "standing__model_id")
    return found.values_list("organization__slug", "slug", "updated_at")


def new_models(*, limit: int) -> QuerySet[Model]:
    """Return the new models that have their turn on the shelf today, at most `limit` of them."""
    return published_models().filter(standing__shelf__isnull=False).order_by("standing__shelf")[:limit]


def models_of(*, organization: Organization) -> QuerySet[Model]:
    """Return every model of the organization, drafts and private ones too, newest first."""
    return listed(Model.objects.filter(organization=organization)).order_by("-created_at", "-id")


def visible_model(*, org_slug: str, slug: str, viewer: Organization | None) -> Model | None:
    """Return the model `org_slug/slug` if `viewer` may see it, or None. A former name of the organization will do."""
    model = listed(Model.objects.filter(organization__slug=org_slug, slug=slug)).first()
    if model is None:
        present = accounts.slug_now(org_slug)
        return visible_model(org_slug=present, slug=slug, viewer=viewer) if present else None
    is_published = model.facts.newest is not None
    return model if policies.may_view(model=model, is_published=is_published, viewer=viewer) else None


def owned_model(*, organization: Organization, org_slug: str, slug: str) -> Model | None:
    """Return the model `org_slug/slug` if it belongs to `organization`, or None. A former name of it will do."""
    if org_slug != organization.slug and accounts.slug_now(org_slug) != organization.slug:
        return None
    return listed(Model.objects.filter(organization=organization, slug=slug)).first()


def logo_owner(*, org_slug: str, slug: str, digest: str, viewer: Organization | None, is_staff: bool) -> Model | None:
    """Return the model whose picture with this digest `viewer` may see, or None.

    A picture that is not shown (yet) is seen by the model's own organization and by the platform's staff.
    """
    model = Model.objects.filter(organization__slug=org_slug, slug=slug).first()
    if model is None or is_staff or (viewer is not None and viewer.pk == model.organization_id):
        return model
    is_published = model.versions.filter(state=_PUBLISHED).exists()
    shown = digest == model.logo and policies.may_view(model=model, is_published=is_published, viewer=viewer)
    return model if shown else None


def logo_url(model: Model) -> str | None:
    """Return the absolute address of the model's logo, which never shows another picture; None without one."""
    if not model.logo:
        return None
    return f"{settings.ENV.public_url}/models/{model.full_name}/logo/{model.logo}.png"


def versions_of(*, model: Model, published_only: bool) -> QuerySet[Version]:
    """Return the model's versions, newest first; strangers see the published ones."""
    related = ("model__organization", "model__base_model", "replacement")
    versions = Version.objects.filter(model=model).select_related(*related)
    return (versions.filter(state=_PUBLISHED) if published_only else versions).order_by("-number")


def history_of(*, model: Model) -> QuerySet[Version]:
    """Return the versions that everybody may read about, newest first: those that are or were on sale."""
    was = Q(state__in=(Version.State.RETIRED, Version.State.REVOKED), published_at__isnull=False)
    return versions_of(model=model, published_only=False).filter(Q(state=_PUBLISHED) | was)


def default_version(*, model: Model) -> Version | None:
    """Return the version that the bare name means, or None without one on sale (`catalog.rollouts` has the rule)."""
    return versions_of(model=model, published_only=True).order_by(*default_first()).first()


def open_rollout(*, model: Model) -> Rollout | None:
    """Return the rollout that runs, or waits for its version to be on sale; None without one."""
    return Rollout.objects.filter(model=model, ended_at=None).select_related("version", "baseline").first()


def rollouts_of(*, model: Model) -> QuerySet[Rollout]:
    """Return every rollout of the model, newest first."""
    found = Rollout.objects.filter(model=model).select_related("version", "baseline")
    return found.order_by("-started_at", "-id")


def published_version(*, org_slug: str, slug: str, number: int | None) -> Version | None:
    """Return the published version `number` of a model, or its default.

    For the platform itself: the owner of the model does not matter. A former name of the organization will do.
    """
    names = [name for name in (org_slug, accounts.slug_now(org_slug)) if name is not None]
    versions = Version.objects.filter(model__organization__slug__in=names, model__slug=slug, state=_PUBLISHED)
    if number is not None:
        versions = versions.filter(number=number)
    return versions.select_related("model__organization").order_by(*default_first()).first()


def owned_version(*, organization: Organization, version_id: UUID) -> Version | None:
    """Return one version of the organization's models with model, base and signing key, or None."""
    related = ("model__organization", "model__base_model", "signing_key", "replacement")
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
    """Return the bases that adapters are made for, newest first: the reference of each line."""
    return BaseModel.objects.filter(is_reference=True).select_related("line").order_by("-created_at", "-id")


def bases_named(name: str) -> list[BaseModel]:
    """Return the checkpoint with this fingerprint, or every one with this name (it may have been used for several)."""
    return list(BaseModel.objects.filter(Q(fingerprint=name) | Q(name=name)).order_by("-created_at", "-id"))


def checkpoint_with(fingerprint: str) -> BaseModel | None:
    """Return the checkpoint with this fingerprint, which receipts name, with its line."""
    return BaseModel.objects.filter(fingerprint=fingerprint).select_related("line").first()


def chosen_base(name: str | None) -> BaseModel:
    """Return the reference of the line that this names, or is a checkpoint of; or of the only one there is.

    name: of a line or a checkpoint, or the fingerprint of a checkpoint. Raises InvalidInput.
    """
    named = Q(fingerprint=name) | Q(name=name) | Q(line__name=name)
    lines = BaseModel.objects.filter(named).values("line") if name else None
    found = list((bases() if lines is None else bases().filter(line__in=lines))[:10])
    if len(found) == 1:
        return found[0]
    several = ", ".join(sorted({base.name for base in found}))
    message = f"there are several, such as {several}: name one" if found else "there is no such base model"
    raise InvalidInput(
        f"{message}; see /api/v1/bases",
        code="unknown_base" if not found else "ambiguous_base",
        field="base",
    )


def published_names() -> QuerySet[Model]:
    """Return the models that strangers find by name: public ones with a published version."""
    published = Exists(Version.objects.filter(model=OuterRef("pk"), state=_PUBLISHED))
    return Model.objects.filter(published, visibility=Model.Visibility.PUBLIC)


def listed(models: QuerySet[Model]) -> QuerySet[Model]:
    """Add to `models` what every listing shows, the facts, in a fixed number of queries."""
    price = (
        in_force(Price.objects)
        .select_related("version")
        .order_by("model_id", "version_id", *_LATEST)
        .distinct("model_id", "version_id")
    )
    evaluation = Evaluation.objects.order_by("version_id", "-id").distinct("version_id")
    version = (
        Version.objects.filter(state=_PUBLISHED)
        .order_by("model_id", *default_first())
        .distinct("model_id")
        .prefetch_related(Prefetch("evaluations", queryset=evaluation, to_attr="newest_evaluations"))
    )
    return models.select_related("organization", "base_model", "standing").prefetch_related(
        Prefetch("sources", queryset=Source.objects.select_related("upstream__organization").order_by("place")),
        Prefetch("prices", queryset=price, to_attr="current_prices"),
        Prefetch("versions", queryset=version, to_attr="newest_versions"),
    )


def _filtered(models: QuerySet[Model], filters: Filters) -> QuerySet[Model]:
    """Keep the models that pass every filter: the conditions of `search.filters`, as Django writes them."""
    wanted = filters.active()
    if base := wanted.pop("base", None):
        models = models.filter(Q(base_model__name=base) | Q(base_model__fingerprint=base))
    if tag := wanted.pop("tag", None):
        models = models.filter(tags__contains=[tag.lower()])
    return models.filter(**{_LOOKUPS[name]: value for name, value in wanted.items()})


def _search(models: QuerySet[Model], hits: list[search.Hit]) -> QuerySet[Model]:
    """Keep what was found, with its `place` (1 is the best) and whether its meaning alone was."""
    ids = [hit.model_id for hit in hits]
    places = Value(ids, output_field=ArrayField(UUIDField()))
    by_meaning = [hit.model_id for hit in hits if hit.by_meaning_alone]
    return models.filter(pk__in=ids).annotate(
        place=Func(places, F("pk"), function="array_position", output_field=IntegerField()),
        found_by_meaning=Q(pk__in=by_meaning) if by_meaning else Value(False),
    )
