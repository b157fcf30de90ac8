"""Every list of both APIs pages by a cursor, or is bounded for a reason that stands here."""

from __future__ import annotations

from typing import Any

from marketplace.api.description import description

# Answers that are lists, or hold one as what they are about, and come whole.
BOUNDED = {
    "list_alarms": "one row for each measured quantity",
    "list_alert_kinds": "one row for each kind of alert",
    "list_platform_bases": "the bases that staff have added, each with its checkpoints: some dozens",
    "list_promises": "one row for each kind of promise",
    "list_refunds": "of one payment: at most 50 (`billing.refunds.MAX_REFUNDS`)",
    "list_replicas": "the fleet as it is now, from several sources: at most 200",
    "list_models_in_use": "at a glance: the newest 100 models, ranked",
    "list_callable_models": "OpenAI's form, which has no pages",
}
CURSORS = {"cursor", "after"}


def resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = components[schema["$ref"].rsplit("/", 1)[1]]
    return schema


def is_list(operation: dict[str, Any], components: dict[str, Any]) -> bool:
    """Whether the answer is an array, or an object around one by the name that pages give it."""
    for content in operation["responses"].get("200", {}).get("content", {}).values():
        schema = resolved(content.get("schema", {}), components)
        parts = schema.get("properties", {})
        names = ("results", "data", "by_day", "by_model")
        held = [resolved(parts[name], components) for name in names if name in parts]
        if schema.get("type") == "array" or any(one.get("type") == "array" for one in held):
            return True
    return False


def test_every_list_pages_by_cursor_or_is_bounded() -> None:
    made = description()
    components = made["components"]["schemas"]
    lists, whole = set(), set()
    for methods in made["paths"].values():
        operation = methods.get("get")
        if operation is None or not is_list(operation, components):
            continue
        lists.add(operation["operationId"])
        if not CURSORS & {one["name"] for one in operation.get("parameters", [])}:
            whole.add(operation["operationId"])
    assert len(lists) > 50
    named = {one for one in components_of_lists(made) if one not in lists}
    assert not named, f"an operation called list_… that is seen as no list: {sorted(named)}"
    assert whole == BOUNDED.keys(), sorted(whole ^ BOUNDED.keys())


def components_of_lists(made: dict[str, Any]) -> set[str]:
    """The operations that call themselves lists."""
    ids = {one["operationId"] for methods in made["paths"].values() for one in methods.values()}
    return {one for one in ids if one.startswith("list_")}
