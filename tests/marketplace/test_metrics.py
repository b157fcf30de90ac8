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
import yaml
from django.conf import settings as django_settings
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from marketplace.config.celery import app
from marketplace.config.env import Env, EnvError
from marketplace.gateway.metrics import Stopwatch, count_refusal, count_request
from marketplace.operations.models import Probe
from marketplace.operations.task_times import KEYS, note_task
from marketplace.vault.models import Replica
from tests.marketplace.vault.factories import make_replica

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
        valkey.delete(*KEYS)
    make_replica()
    Probe.objects.create(component="api", ok=False, milliseconds=1)
    note_task(django_settings.ENV.valkey_url, "a.task", "SUCCESS", 1.5)
    note_task(django_settings.ENV.valkey_url, "a.task", "FAILURE")
    Stopwatch().end("hold")
    count_request("failed")
    count_refusal("rate_limited")
    count_refusal("<script>")
    families = {family.name: family for family in text_string_to_metric_families(scrape())}
    shown = {name for name in families if not name.endswith("_created")}
    listed = re.findall(r"^\| \w+, `(intarsia_\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(shown)
    samples = {(s.name, *sorted(s.labels.values())): s.value for family in families.values() for s in family.samples}
    assert samples["intarsia_tasks_total", "a.task", "failure"] == 1
    assert 0 <= samples["intarsia_task_age_seconds", "a.task"] < 60
    assert samples["intarsia_task_seconds_total", "a.task"] == 1.5
    assert 0 <= samples["intarsia_replica_silent_seconds", "r1"] < 60
    assert samples["intarsia_component_up", "api"] == 0 and samples["intarsia_gateway_requests_total", "failed"] >= 1
    assert samples[("intarsia_valkey_up",)] == 1 and samples[("intarsia_open_holds",)] == 0
    assert samples["intarsia_gateway_refusals_total", "rate_limited"] >= 1
    assert samples["intarsia_gateway_refusals_total", "other"] >= 1
    assert samples["intarsia_gateway_phase_seconds_count", "hold"] >= 1
    Replica.objects.update(retired_at=timezone.now())
    assert "intarsia_replica_silent_seconds{" not in scrape(), "a replica that said good-bye is missed by nobody"


@pytest.mark.django_db
def test_without_valkey_the_rest_is_shown(settings) -> None:
    settings.ENV = dataclasses.replace(settings.ENV, metrics_token=TOKEN, valkey_url="redis://127.0.0.1:9/0")
    text = scrape()
    assert "intarsia_valkey_up 0.0" in text and "intarsia_open_holds 0.0" in text
    note_task("redis://127.0.0.1:9/0", "a.task", "SUCCESS")  # is logged, and fails no task


def known_metrics() -> set[str]:
    """Each page of docs lists exactly what its own test scrapes."""
    pages = [(DOCS / page).read_text() for page in ("metrics.md", "operations.md")]
    return {name for page in pages for name in re.findall(r"`(intarsia_\w+)` \|", page)}


def unknown(expressions: list[str], *, recorded: frozenset[str] = frozenset()) -> set[str]:
    """The metrics in these expressions that nothing exports."""
    used = {name for one in expressions for name in re.findall(r"\bintarsia[:_][\w:]+", one)} - recorded
    known = known_metrics()
    return {name for name in used if name not in known and SUFFIX.sub("", name) not in known}


def test_alert_rules_name_metrics_that_exist_and_say_what_to_do() -> None:
    groups = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    recorded = frozenset(rule["record"] for rule in rules if "record" in rule)
    alerts = [rule for rule in rules if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 15
    assert unknown([rule["expr"] for rule in rules], recorded=recorded) == set()
    for rule in alerts:
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"], rule["alert"]
        page, _, part = rule["annotations"].get("runbook", "docs/operations.md").partition("#")
        headings = re.findall(r"(?m)^#+ (.+)$", (DOCS.parent / page).read_text())
        assert not part or part in {heading.lower().replace(" ", "-") for heading in headings}, part
        for brackets in ("()", "[]", "{}"):
            assert rule["expr"].count(brackets[0]) == rule["expr"].count(brackets[1]), rule["alert"]


def test_the_compose_file_mounts_what_prometheus_and_grafana_read() -> None:
    compose = yaml.safe_load((DOCS.parent / "docker-compose.yml").read_text())
    for name in ("prometheus", "grafana"):
        service = compose["services"][name]
        assert service["profiles"] == ["monitoring"] and re.search(r":v?\d+\.\d+\.\d+$", service["image"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DOCS.parent / source).exists() if source.startswith("./") else source in compose["volumes"]
    jobs = yaml.safe_load((DOCS / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for one in job["static_configs"] for target in one["targets"]}
    assert {target.partition(":")[0] for target in targets} <= set(compose["services"])
    for file in (DOCS / "monitoring" / "grafana").glob("*.yml"):
        assert yaml.safe_load(file.read_text())["apiVersion"] == 1


def test_dashboards_name_metrics_that_exist() -> None:
    boards = sorted((DOCS / "dashboards").glob("*.json"))
    assert [board.stem for board in boards] == ["platform", "replicas"]
    for board in boards:
        targets = [target for panel in json.loads(board.read_text())["panels"] for target in panel["targets"]]
        assert len(targets) >= 12
        assert unknown([target["expr"] for target in targets]) == set()


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
