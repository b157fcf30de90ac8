"""The operations of the control API that consumers use. All raise the errors of HttpClient."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import Any
from uuid import UUID

from creator_cli.control_api import ControlApi
from creator_cli.errors import CliError
from creator_cli.names import ModelName
from creator_cli.reading import Reader

GROUPS = ("day", "model", "key")
_FIELD = {"day": "day", "model": "model", "key": "key_id"}
_SUMS = ("predictions", "prompt_tokens", "completion_tokens", "cost_nano_usd")
_PAGE = 1_000
_MAX_GROUPS = 100_000


def usage_groups(
    api: ControlApi, *, first: date, by: Sequence[str], model: str | None, key: UUID | None
) -> list[dict[str, Any]]:
    """Return sums of usage since the day `first` (UTC) by day, model or key, of one model or key if it is named."""
    wanted = {"model": model, "key_id": None if key is None else str(key)}
    filters = {field: value for field, value in wanted.items() if value is not None}
    asked = [name for name in GROUPS if name in by or _FIELD[name] in filters]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for group in _groups(api, first, asked):
        if any(group.get(field) != value for field, value in filters.items()):
            continue
        names = {_FIELD[name]: group.get(_FIELD[name]) for name in GROUPS if name in by}
        row = found.setdefault((*names.values(),), {**names, **dict.fromkeys(_SUMS, 0)})
        for field in _SUMS:
            row[field] += Reader(group, "usage").integer(field)
    return list(found.values())


def _groups(api: ControlApi, first: date, by: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    since = f"{first.isoformat()}T00:00:00Z"
    for group in api.pages("usage/summary", since=since, group_by=",".join(by), limit=str(_PAGE)):
        if len(found) == _MAX_GROUPS:
            raise CliError(f"more than {_MAX_GROUPS} groups", hint="ask for fewer days, or with --by model")
        found.append(group)
    return found


def usage_file(api: ControlApi, *, first: date, last: date, model: str | None, key: UUID | None) -> bytes:
    """Return the newest 50,000 predictions of these days as CSV."""
    params = {"first": first.isoformat(), "last": last.isoformat()}
    params |= {} if model is None else {"model": model}
    params |= {} if key is None else {"key": str(key)}
    return api.get("usage/csv", **params).body


def latest_predictions(api: ControlApi, *, count: int) -> list[dict[str, Any]]:
    """Return the newest predictions that the organization paid for, the oldest of them first."""
    page = Reader(api.get("usage", limit=str(count)).json(), "usage")
    return [dict(row) for row in reversed(page.items("results")) if Reader(row, "prediction").text("prediction_id")]


def model_in_use(api: ControlApi, name: ModelName, *, days: int, version: int | None) -> dict[str, Any]:
    """Return the sums of one version of a model of the creator's, in blocks with enough calls by enough payers."""
    params = {"days": str(days)} | ({} if version is None else {"version": str(version)})
    value = api.get(f"models/{name}/in-use", **params).json()
    Reader(value, "model in use").items("blocks")
    return dict(value)


def wallet(api: ControlApi) -> dict[str, Any]:
    """Return the organization's credit, in nano-dollars."""
    value = api.get("wallet").json()
    Reader(value, "wallet").integer("available_nano_usd")
    return dict(value)


def api_keys(api: ControlApi) -> list[dict[str, Any]]:
    """Return the organization's keys, newest first; never the keys themselves."""
    return [dict(row) for row in api.pages("keys")]


def create_key(
    api: ControlApi,
    *,
    name: str,
    scopes: Collection[str],
    expires_at: str | None,
    monthly_limit_nano_usd: int | None,
    models: Collection[str],
) -> dict[str, Any]:
    """Create a key, which the answer shows once. Not repeated: a lost answer shows in the list."""
    payload = {
        "name": name,
        "scopes": list(scopes),
        "expires_at": expires_at,
        "monthly_limit_nano_usd": monthly_limit_nano_usd,
        "models": list(models),
    }
    return _shown_once(api.post("keys", payload).json())


def rotate_key(api: ControlApi, key_id: UUID, *, overlap_seconds: int) -> dict[str, Any]:
    """Replace a key; the old one works on for a while. Not repeated."""
    return _shown_once(api.post(f"keys/{key_id}/rotate", {"overlap_seconds": overlap_seconds}).json())


def _shown_once(value: Any) -> dict[str, Any]:
    Reader(value, "key").text("key")
    return dict(value)
