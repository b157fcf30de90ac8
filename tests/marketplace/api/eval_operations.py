"""Operations of evaluations that name a thing of an organization, as (method, path, body); see test_tenants.py."""

from __future__ import annotations

from typing import Any

EVAL_OPERATIONS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "models/{org}/{slug}/eval-sets", None),
    (
        "POST",
        "models/{org}/{slug}/eval-sets",
        {"signing_key_id": "{signing_key}", "package_size": 10, "rows": 1, "scorer": {"kind": "json"}},
    ),
    ("GET", "models/{org}/{slug}/eval-runs", None),
    ("GET", "eval-sets/{eval_set}", None),
    ("HEAD", "eval-sets/{eval_set}/package", None),
    ("PUT", "eval-sets/{eval_set}/package", None),
    ("POST", "eval-sets/{eval_set}/complete", {"digest": "0" * 64, "wrapped_data_key": "AAAA"}),
    ("GET", "eval-sets/{eval_set}/quote", None),
    ("POST", "eval-sets/{eval_set}/runs", {}),
    ("GET", "eval-runs/{eval_run}", None),
]
EVAL_NAMES = {
    "eval-sets",
    "eval-runs",
    "eval-set",
    "eval-set-package",
    "complete-eval-set",
    "quote-eval-run",
    "start-eval-run",
    "eval-run",
}
