"""Every act that the audit log can hold has words on the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from marketplace.access.policies import ANSWERS
from marketplace.accounts import audit
from marketplace.web.act_words import ACT_WORDS
from tests.marketplace.web.conftest import World

ROOT = Path(__file__).parents[3]
ACT = re.compile(r"[a-z_]+\.[a-z_]+")
RECORDERS = {"record", "record_act"}
# Built from a table: `access.{answer}`.
BUILT = {f"access.{answer}" for answer in ANSWERS.values()}


def recorded(tree: ast.Module) -> Iterator[str]:
    """Yield the acts that a module records: in calls of whatever takes an `act`, and what such an argument names."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    with_act = (one for one in functions if any(a.arg == "act" for a in (*one.args.args, *one.args.kwonlyargs)))
    takes = RECORDERS | {one.name for one in with_act}
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name not in takes:
            continue
        arguments = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "act")]
        named = [value for one in arguments if isinstance(one, ast.Name) for value in assigned.get(one.id, [])]
        for node in (inner for argument in (*arguments, *named) for inner in ast.walk(argument)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and ACT.fullmatch(node.value):
                yield node.value


def test_every_act_has_words_and_no_words_are_without_an_act() -> None:
    found = set(BUILT)
    for package in ("billing", "marketplace"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            if "audit" in text or "record_act" in text:
                found.update(recorded(ast.parse(text)))
    assert found == ACT_WORDS.keys(), sorted(found ^ ACT_WORDS.keys())
    assert len(set(ACT_WORDS.values())) == len(ACT_WORDS), "each act is told from every other"


@pytest.mark.django_db
def test_the_log_says_acts_in_words_beside_their_codes(world: World) -> None:
    for act in ("key.revoked", "something.former"):
        audit.record(organization=world.buyer, act=act)
    page = world.client(world.consumer).get("/dashboard/audit").content.decode()
    assert "API key revoked" in page and ">key.revoked<" in page
    assert page.count("something.former") == 2, "an act without words is shown as it is"
