"""The endpoints of `/v1` that batches and predictions in the background may ask. A new one is a line here."""

from __future__ import annotations

from typing import Final

# Path → the field of a body that must be there beside `model`.
ENDPOINTS: Final = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/v1/responses": "input",
}
BATCH_TIER = "flex"  # the class batch: each line costs and waits as `service_tier: flex` does
