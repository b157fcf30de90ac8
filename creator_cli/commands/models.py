"""status, versions, publish, appeal, retire, revoke."""

from __future__ import annotations

from typing import Annotated

import typer

from creator_cli.commands.options import AsJson, ModelArgument, VersionArgument, Yes, confirm
from creator_cli.commands.reviews import review_facts, say_review, state_text
from creator_cli.errors import ApiError, CliError
from creator_cli.names import parse_model_name
from creator_cli.output import Output, size_text
from creator_cli.records import ListedModel, Price, Version
from creator_cli.releases import find_version, not_confirmed, wait_for_confirmations
from creator_cli.reviews import hint_appeal
from creator_cli.session import open_api
from creator_cli.settings import load_settings
from protocol.money import usd


def status(
    model: Annotated[
        str | None, typer.Argument(metavar="[ORG/SLUG]", help="One model; all your models if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show your models, or one model with its newest version.

    Example: intarsia status acme/triage
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        if model is None:
            _show_models(api.models(), out)
            return
        name = parse_model_name(model)
        found = api.model(name)
        if found is None:
            raise CliError(f"there is no model {name}", hint="intarsia status", code="not_found")
        _show_model(found, next(api.versions(name), None), out)


def versions(model: ModelArgument, as_json: AsJson = False) -> None:
    """List the versions of a model, newest first.

    Example: intarsia versions acme/triage
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        found = list(api.versions(parse_model_name(model)))
    if as_json:
        out.document([version.to_json() for version in found])
    elif not found:
        out.say(f"{model} has no versions yet; next: intarsia push DIR --model {model}")
    else:
        rows = [
            (
                version.number,
                version.state,
                size_text(version.size),
                (version.digest or "")[:16],
                f"{version.created_at:%Y-%m-%d %H:%M}",
                version.changelog.partition("\n")[0][:60],
            )
            for version in found
        ]
        out.table(("version", "state", "size", "digest", "created", "changelog"), rows, right=("version", "size"))


def publish(version: VersionArgument, as_json: AsJson = False) -> None:
    """Offer a verified version for sale.

    Example: intarsia publish acme/triage@3
    """
    with open_api(load_settings()) as api:
        found = find_version(api, version)
        try:
            published = api.publish_version(found.id)
        except ApiError as error:
            hint_appeal(error, version)
            raise
    _show_version(published, Output(as_json=as_json))


def appeal(
    version: VersionArgument,
    text: Annotated[str, typer.Option(help="Why the refusal is wrong, in at most 1,000 characters.")],
    as_json: AsJson = False,
) -> None:
    """Appeal the refusal of a version, once. A person answers within one working day.

    Example: intarsia appeal acme/triage@3 --text "We trained it ourselves; the data is ours."
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        found = find_version(api, version)
        if found.review is None or found.review.state != "refused":
            raise CliError(f"{version} was not refused by a review", hint=f"intarsia status {found.model}")
        review = api.appeal_review(found.review.id, text=text)
    if as_json:
        out.document({**found.to_json(), "review": review.to_json()})
    else:
        out.say(f"the appeal about {version} is with a person; answer by {review.due_at:%a %d %b %Y, %H:%M} UTC")


def retire(version: VersionArgument, yes: Yes = False, as_json: AsJson = False) -> None:
    """Take a version off sale for good.

    Example: intarsia retire acme/triage@2 --yes
    """
    with open_api(load_settings()) as api:
        found = find_version(api, version)
        confirm(f"Retire {version}? It cannot be published again.", yes=yes)
        retired = api.retire_version(found.id)
    _show_version(retired, Output(as_json=as_json))


def revoke(
    version: VersionArgument,
    reason: Annotated[str, typer.Option(help="The reason; kept with the version.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Pull the kill switch: replicas refuse the version, cut off its predictions, wipe it, and confirm that.

    Example: intarsia revoke acme/triage@2 --reason "trained on the wrong data" --yes
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        found = find_version(api, version)
        confirm(f"Revoke {version}? Running predictions are cut off. This cannot be undone.", yes=yes)
        revoked = api.revoke_version(found.id, reason=reason)
        with out.waiting(f"{version} is withdrawn; waiting until every replica confirms that its key is gone"):
            holders = wait_for_confirmations(api, revoked)
    if holders.silent:
        raise not_confirmed(version, holders.silent)
    if as_json:
        out.document({**revoked.to_json(), "holders": [one.to_json() for one in holders.all]})
    elif holders.confirmed:
        names = ", ".join(sorted({one.replica for one in holders.confirmed}))
        out.say(f"{version} is revoked; every replica that had its key confirmed that it is gone: {names}")
    else:
        out.say(f"{version} is revoked; no replica has its key")


def _show_models(models: list[ListedModel], out: Output) -> None:
    if out.as_json:
        out.document([_model_json(model) for model in models])
    elif not models:
        out.say("you have no models yet; next: intarsia push DIR --listing model.json")
    else:
        rows = [
            (
                model.name,
                model.visibility,
                model.newest_version or "–",
                model.base_name,
                _price_text(model.price),
                "–" if model.accuracy is None else f"{100 * model.accuracy:.1f} %",
            )
            for model in models
        ]
        out.table(
            ("model", "visibility", "published", "base", "in / out per Mtok", "accuracy"), rows, right=("published",)
        )


def _show_model(model: ListedModel, newest: Version | None, out: Output) -> None:
    if out.as_json:
        out.document({**_model_json(model), "newest": newest.to_json() if newest else None})
        return
    facts: list[tuple[str, object]] = [
        ("model", model.name),
        ("base", model.base_name),
        ("visibility", model.visibility),
        ("price per Mtok", _price_text(model.price)),
        ("published", model.newest_version or "no version"),
    ]
    if newest:
        facts.append(("newest", f"version {newest.number}, {state_text(newest.state)}, {size_text(newest.size)}"))
        facts.extend(review_facts(newest))
        if newest.state == "uploading":
            facts.append(("uploaded", f"{size_text(newest.uploaded)} of {size_text(newest.size)}"))
        refusal = newest.report.get("refusal")
        if isinstance(refusal, dict):
            facts.append(("refused", f"{refusal.get('field')}: {refusal.get('message') or refusal.get('rule')}"))
    out.facts(facts)


def _show_version(version: Version, out: Output) -> None:
    if out.as_json:
        out.document(version.to_json())
    else:
        out.say(f"{version.model}@{version.number} is {state_text(version.state)}")
        say_review(version, out)


def _price_text(price: Price | None) -> str:
    if price is None:
        return "not set"
    return f"{usd(price.input_micro_usd_per_mtok, 6)} / {usd(price.output_micro_usd_per_mtok, 6)}"


def _model_json(model: ListedModel) -> dict[str, object]:
    return {
        "model": model.name,
        "base": model.base_name,
        "visibility": model.visibility,
        "published_version": model.newest_version,
        "price": model.price.to_json() if model.price else None,
        "accuracy": model.accuracy,
    }
