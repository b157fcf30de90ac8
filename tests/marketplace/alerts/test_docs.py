"""docs/webhooks.md: its check of a signature accepts what the platform posts, and nothing changed or old."""

from __future__ import annotations

import re
import time
import uuid
from pathlib import Path
from typing import Any

from billing.budgets.webhooks import secret_of, signed_headers
from billing.models import Webhook

PAGE = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()


def test_the_example_tells_our_messages_from_others() -> None:
    names: dict[str, Any] = {}
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/webhooks.md", "exec"), names)
    is_ours = names["is_ours"]
    hook, body, now = Webhook(id=uuid.uuid4()), b'{"type": "model.drift"}', int(time.time())
    headers = signed_headers(hook, "alert_7", body, now)
    assert is_ours(secret_of(hook), headers, body)
    assert not is_ours(secret_of(Webhook(id=uuid.uuid4())), headers, body)
    assert not is_ours(secret_of(hook), headers, body + b" ")
    assert not is_ours(secret_of(hook), {**headers, "webhook-id": "alert_8"}, body)
    assert not is_ours(secret_of(hook), signed_headers(hook, "alert_7", body, now - 301), body)
