"""docs/protocol.md and the package say the same: every message, field, action and route, in both directions."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import get_args

import msgspec

import protocol
from protocol import admin, demand, fleet, leases, packages, replicas
from protocol.messages import Answer, Request
from protocol.tickets import Action
from protocol.version import PROTOCOL_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
FIELD = re.compile(r"`([a-z_0-9]+)`")


def messages() -> dict[str, type[msgspec.Struct]]:
    """Every public struct of the package by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    for module in pkgutil.iter_modules(protocol.__path__):
        for name, value in vars(importlib.import_module(f"protocol.{module.name}")).items():
            is_message = isinstance(value, type) and issubclass(value, msgspec.Struct)
            if is_message and not name.startswith("_") and value not in (msgspec.Struct, Request, Answer):
                found[name] = value
    return found


def described() -> dict[str, list[str]]:
    """The fields in the table of each section that is named like a message."""
    sections: dict[str, list[str]] = {}
    for section in re.split(r"^### ", PAGE, flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        text = re.split(r"^## ", text, flags=re.M)[0]
        if re.fullmatch(r"[A-Z][A-Za-z]+", title) and title != "Answers":
            rows = [line for line in text.splitlines() if line.startswith("| `")]
            sections[title] = [name for row in rows for name in FIELD.findall(row.split("|")[1])]
    return sections


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    text = PAGE.split(f"## {heading}", 1)[1].split("\n### ", 1)[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]


def test_every_message_has_its_section_and_every_section_its_message() -> None:
    assert sorted(described()) == sorted(messages())


def test_every_field_is_described_once() -> None:
    for name, struct in messages().items():
        assert sorted(described()[name]) == sorted(struct.__struct_fields__), name


def test_the_actions_are_those_of_the_tickets() -> None:
    rows = rows_of("2. Platform")
    actions = [action.strip("`") for action, _, _ in rows]
    assert sorted([*actions, "predict", "prefill"]) == sorted(get_args(Action))
    assert list(admin.CALLS) == actions
    for action, (asked, answered) in admin.CALLS.items():
        assert rows[actions.index(action)][1] == f"{asked.__name__} → {answered.__name__}"
    (ticket,) = [line for line in PAGE.splitlines() if line.startswith("| `action` |")]
    assert sorted(FIELD.findall(ticket.split("|")[2])) == sorted(get_args(Action))


def test_the_routes_are_those_of_the_code() -> None:
    paths = [call.strip("`").split(" ", 1)[1] for call, _ in rows_of("3. Replica")]
    assert paths == [
        replicas.ENROL_PATH,
        replicas.CHALLENGE_PATH,
        replicas.REGISTER_PATH,
        replicas.HEARTBEAT_PATH,
        replicas.GOODBYE_PATH,
        replicas.HAND_OVER_PATH,
        fleet.FLEET_PATH,
        leases.LEASES_PATH,
        packages.PACKAGE_URL_PATH,
        packages.PACKAGE_PATH,
        demand.DEMAND_PATH,
    ]
    assert replicas.INTERNAL_PATH in PAGE and admin.ADMIN_PATH in PAGE


def test_the_version_is_that_of_the_code() -> None:
    assert f"The protocol has version {PROTOCOL_VERSION}." in PAGE
