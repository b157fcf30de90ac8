"""One list of codes: whatever the sources refuse with stands in it, and docs/errors.md is made of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from marketplace.accounts.envelope import envelope
from marketplace.accounts.error_codes import CODES, GROUPS, INTERNAL, tables
from marketplace.accounts.errors import InvalidInput, NotAllowed, Refusal

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "errors.md"


def _codes_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            values = [one.value for one in node.keywords if one.arg == "code"]
        elif isinstance(node, ast.FunctionDef):
            named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            values = [default for argument, default in named if argument.arg == "code"]
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
                if isinstance(target, ast.Name) and target.id == "code":
                    values.append(getattr(line, "value", None))
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
                yield value.value


def test_every_code_of_the_sources_is_listed_once_and_none_else() -> None:
    used: dict[str, Path] = {}
    for folder in ("marketplace", "billing"):
        for path in (ROOT / folder).rglob("*.py"):
            if "migrations" not in path.parts:
                used |= dict.fromkeys(_codes_of(ast.parse(path.read_text())), path)
    missing = {code: path.name for code, path in used.items() if code not in CODES and code not in INTERNAL}
    assert not missing, "add them to marketplace/accounts/error_codes.py"
    names = [code for _, rows in GROUPS for code, _, _ in rows]
    assert len(names) == len(set(names)) and not INTERNAL & set(names)
    assert all(400 <= status < 600 for status in CODES.values())


def test_the_page_is_made_of_the_list() -> None:
    text = PAGE.read_text()
    assert text.endswith(tables()), f"{PAGE.name} ends with what error_codes.tables() returns"


def test_a_refusal_has_one_form_on_both_sides() -> None:
    refusal = InvalidInput("must be less", code="max_value", field="n")
    expected = {"code": "max_value", "message": "must be less", "type": "invalid_request_error", "param": "n"}
    assert envelope(refusal, "r1") == {"error": {**expected, "request_id": "r1"}}
    for one, kind in (
        (NotAllowed("no"), "permission_error"),
        (Refusal("wait", code="rate_limited", status=429), "rate_limit_error"),
        (Refusal("spent", code="budget_exceeded", status=429), "billing_error"),
        (Refusal("away", code="database", status=503), "server_error"),
    ):
        assert envelope(one, "")["error"]["type"] == kind
