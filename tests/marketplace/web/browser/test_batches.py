"""A batch in a real Chromium: uploaded, priced, started, watched while a worker makes its calls, downloaded."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from playwright.sync_api import expect

from marketplace.jobs import queue, running
from tests.marketplace.web.browser.conftest import Open
from tests.marketplace.web.browser.test_comparisons import look
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.browser


def test_a_batch_from_its_file_to_its_answers(
    open_page: Open, site: tuple[str, World], settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base, world = site
    settings.ENV = dataclasses.replace(settings.ENV, api_url=base)
    monkeypatch.setattr(queue, "_send", lambda: None)
    body = {"model": world.model.full_name, "messages": [{"role": "user", "content": "POS 4821 Northgate Bakery"}]}
    asked = {"method": "POST", "url": "/v1/chat/completions", "body": body | {"max_tokens": 8}}
    rows: list[dict[str, Any]] = [{"custom_id": f"row-{number}", **asked} for number in range(6)]
    good, large = tmp_path / "rows.jsonl", tmp_path / "large.jsonl"
    good.write_text("\n".join(json.dumps(row) for row in rows))
    large.write_text("x" * 3 * 2**20)
    page = open_page(world.consumer)
    page.goto("/dashboard/batches")
    page.get_by_label("File of requests").set_input_files(large)
    page.get_by_role("button", name="Upload and see the cost").click()
    expect(page.get_by_role("alert")).to_contain_text("more than 2 MiB")
    page.get_by_label("File of requests").set_input_files(good)
    page.get_by_role("button", name="Upload and see the cost").click()
    expect(page.get_by_role("heading", name="Before you start")).to_be_visible()
    look(page, tmp_path, "file")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("The lines are being read.")).to_be_visible()

    def work() -> None:
        running.work(seconds=20)
        connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    expect(page.get_by_text("All 6 lines are done.")).to_be_visible()  # without a reload
    look(page, tmp_path, "batch")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the answers").click()
    answers = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert [one["custom_id"] for one in answers] == [row["custom_id"] for row in rows]
    worker.join()
    page.goto("/dashboard/batches")
    look(page, tmp_path, "batches")
