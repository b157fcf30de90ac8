"""docs/start-consumer.md: its Python examples run as they stand, against a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.marketplace.gateway.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = (Path(__file__).parents[3] / "docs" / "start-consumer.md").read_text()


async def test_the_examples_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_API_KEY", world.key_text)
    text = PAGE.replace("https://intarsia.example", world.url).replace("ledgerline/transactions", "maker/thing")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3

    def run() -> str:
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()) as said:
            for block in blocks:
                exec(compile(block, "docs/start-consumer.md", "exec"), names)
        return said.getvalue()

    said = await asyncio.to_thread(run)
    assert "nano-dollars" in said and re.search(r"at most [0-9]+ and usually (None|[0-9]+)", said)
