"""Pages and the control API: one network's slow bodies and slow views leave places to others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from marketplace.api import page_shares
from marketplace.api.page_shares import PAGE_BODIES, PAGES, PageShares

PATIENCE = 30.0


class _Site:
    """An application as Django is one: it reads the body, then answers when it is let to."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.go = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.running.append(scope["client"][0])
        if scope["path"] == "/slow":
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def _visit(site: PageShares, address: str, path: str = "/", *, trickles: bool = False) -> int:
    """Make a request and return its status."""
    status: list[int] = []

    async def receive() -> dict[str, Any]:
        if trickles:
            await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": trickles}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    scope = {"type": "http", "path": path, "headers": [], "client": (address, 1)}
    await asyncio.wait_for(site(scope, receive, send), PATIENCE)
    return status[0]


async def test_slow_views_of_one_network_leave_places_and_its_queue_ends() -> None:
    app = _Site()
    site = PageShares(app)
    count = PAGES.share + PAGES.waiting + 5
    slow = [asyncio.create_task(_visit(site, "192.0.2.1", "/slow")) for _ in range(count)]
    async with asyncio.timeout(PATIENCE):
        while sum(task.done() for task in slow) < 5:
            await asyncio.sleep(0)
    assert app.running == ["192.0.2.1"] * PAGES.share
    assert [task.result() for task in slow if task.done()] == [429] * 5
    assert await _visit(site, "192.0.2.2") == 200
    assert await _visit(site, "192.0.2.1", "/internal/heartbeat") == 200, "replicas wait for nobody"
    app.go.set()
    assert sorted(await asyncio.gather(*slow)) == [200] * (count - 5) + [429] * 5
    assert not site._pages.held and not site._bodies.held


async def test_bodies_that_trickle_take_a_share_and_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_shares, "PIECE_SECONDS", 0.5)
    site = PageShares(_Site())
    slow = [asyncio.create_task(_visit(site, "192.0.2.1", trickles=True)) for _ in range(PAGE_BODIES.share + 3)]
    await asyncio.sleep(0.05)
    assert site._bodies.held == {"192.0.2.1": PAGE_BODIES.share} and not site._pages.held
    assert await _visit(site, "192.0.2.2") == 200
    assert set(await asyncio.gather(*slow)) == {408}
    assert not site._bodies.held


async def test_a_caller_that_leaves_gives_its_place_back() -> None:
    app = _Site()
    site = PageShares(app)
    leaves = asyncio.create_task(_visit(site, "192.0.2.1", "/slow"))
    await asyncio.sleep(0.01)
    assert site._pages.held == {"192.0.2.1": 1}
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    assert not site._pages.held
