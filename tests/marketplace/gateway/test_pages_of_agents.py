"""The examples of docs/responses.md and docs/runs.md run as printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async

from billing.models import Run
from marketplace.responses.models import StoredResponse
from tests.marketplace.gateway.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize(("page", "predictions"), [("responses.md", 3), ("runs.md", 1)])
async def test_the_examples_of_a_page_run(world: World, page: str, predictions: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    names = {"BASE_URL": world.url, "API_KEY": world.key_text, "MODEL": "maker/thing"}
    for block in blocks:
        await asyncio.to_thread(exec, compile(block, page, "exec"), names)
    assert len(world.replica.served) == predictions
    if page == "runs.md":
        run = await sync_to_async(lambda: Run.objects.select_related("node").get())()
        assert run.closed_at is not None and run.calls == 1 and run.node.spent_total_nano_usd > 0
    else:
        assert await sync_to_async(StoredResponse.objects.count)() == 1
