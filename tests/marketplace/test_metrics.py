"""`/metrics` of the platform: for the token alone; what docs/metrics.md lists; and dashboards that name what exists."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from marketplace.config.celery import app
from marketplace.config.env import Env, EnvError
from marketplace.config.task_times import note_task
from marketplace.gateway.metrics import Stopwatch, count_refusal

DOCS = Path(__file__).parents[2] / "docs"
TOKEN = "t" * 32
SUFFIX = re.compile(r"_(total|bucket|sum|count)$")
READ = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


@pytest.fixture
def with_token(settings) -> None:
    settings.ENV = dataclasses.replace(settings.ENV, metrics_token=TOKEN)


def scrape() -> str:
    response = Client().get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert response.status_code == 200 and response["Content-Type"].startswith("text/plain; version=0.0.4")
    return response.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer x", f"Bearer {TOKEN}é", f"Basic {TOKEN}", TOKEN[:-1]])
def test_nobody_else_is_answered(with_token: None, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    response = Client().get("/metrics", headers=headers)
    assert response.status_code == 404 and b"intarsia_open_holds" not in response.content


@pytest.mark.django_db
def test_without_a_token_there_is_no_such_page() -> None:
    assert django_settings.ENV.metrics_token == ""
    assert Client().get("/metrics", headers={"authorization": "Bearer "}).status_code == 404
    with pytest.raises(EnvError, match="METRICS_TOKEN"):
        Env.load({**os.environ, "METRICS_TOKEN": "short"})


@pytest.mark.django_db
def test_every_metric_is_listed_and_every_listed_one_exists(with_token: None) -> None:
    with Redis.from_url(django_settings.ENV.valkey_url) as valkey:
        valkey.delete("metrics:tasks:ended", "metrics:tasks:runs")
    note_task(django_settings.ENV.valkey_url, "a.task", "SUCCESS")
    note_task(django_settings.ENV.valkey_url, "a.task", "FAILURE")
    Stopwatch().end("hold")
    count_refusal("rate_limited")
    count_refusal("<script>")
    families = {family.name: family for family in text_string_to_metric_families(scrape())}
    shown = {name for name in families if not name.endswith("_created")}
    listed = re.findall(r"^\| \w+, `(intarsia_\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(shown)
    samples = {(s.name, *sorted(s.labels.values())): s.value for family in families.values() for s in family.samples}
    assert samples["intarsia_tasks_total", "a.task", "failure"] == 1
    assert 0 <= samples["intarsia_task_age_seconds", "a.task"] < 60
    assert samples[("intarsia_valkey_up",)] == 1 and samples[("intarsia_open_holds",)] == 0
    assert samples["intarsia_gateway_refusals_total", "rate_limited"] >= 1
    assert samples["intarsia_gateway_refusals_total", "other"] >= 1
    assert samples["intarsia_gateway_phase_seconds_count", "hold"] >= 1


@pytest.mark.django_db
def test_without_valkey_the_rest_is_shown(settings) -> None:
    settings.ENV = dataclasses.replace(settings.ENV, metrics_token=TOKEN, valkey_url="redis://127.0.0.1:9/0")
    text = scrape()
    assert "intarsia_valkey_up 0.0" in text and "intarsia_open_holds 0.0" in text
    note_task("redis://127.0.0.1:9/0", "a.task", "SUCCESS")  # is logged, and fails no task


def test_dashboards_name_metrics_that_exist() -> None:
    """Each page of docs lists exactly what its own test scrapes."""
    known: set[str] = set()
    for page in ("metrics.md", "operations.md"):
        known.update(re.findall(r"`(intarsia_\w+)` \|", (DOCS / page).read_text()))
    boards = sorted((DOCS / "dashboards").glob("*.json"))
    assert [board.stem for board in boards] == ["platform", "replicas"]
    for board in boards:
        targets = [target for panel in json.loads(board.read_text())["panels"] for target in panel["targets"]]
        used = {name for target in targets for name in re.findall(r"intarsia_\w+", target["expr"])}
        assert len(used) >= 12
        assert {name for name in used if name not in known and SUFFIX.sub("", name) not in known} == set()


def test_processes_behind_one_port_share_their_times(tmp_path: Path) -> None:
    count = "from marketplace.gateway.metrics import count_refusal; count_refusal('shared_code')"
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(DOCS.parent)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", count], check=True, env=environment)
    done = subprocess.run([sys.executable, "-c", READ], check=True, env=environment, capture_output=True, text=True)
    assert 'intarsia_gateway_refusals_total{code="shared_code"} 2.0' in done.stdout


def test_every_scheduled_task_exists() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert scheduled <= set(app.tasks)
