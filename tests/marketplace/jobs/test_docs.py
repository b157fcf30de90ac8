"""docs/batches.md: its examples run as they stand, one after the other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.marketplace.gateway.conftest import FUNDS, World, money
from tests.marketplace.jobs.conftest import work
from tests.marketplace.jobs.test_batches import COST

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "batches.md").read_text()


async def test_the_examples_run_against_a_gateway_and_a_worker(api: World) -> None:
    names: dict[str, Any] = {
        "BASE_URL": api.url,
        "PREDICT_KEY": api.key_text,
        "MODEL": "maker/thing",
        "POLL_SECONDS": 0.05,
    }
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2

    def run() -> None:
        for block in blocks:
            exec(compile(block, "docs/batches.md", "exec"), names)

    examples = asyncio.create_task(asyncio.to_thread(run))
    while not examples.done():
        await work(seconds=5)
        await asyncio.sleep(0.05)
    await examples
    assert names["batch"].status == "completed" and names["made"]["status"] == "succeeded"
    assert (await money(api))["posted"] == FUNDS - 3 * COST
