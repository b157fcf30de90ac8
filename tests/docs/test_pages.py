"""Documentation and production files match the code they describe."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from devstack.state import REPOSITORY

PAGES = sorted(
    {
        path
        for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "benchmarks/results/*.md", "*/README.md")
        for path in REPOSITORY.glob(pattern)
    }
)
COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(linked), f"{page.name} links to {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """Return the fragments that a Markdown renderer gives a page's headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_term_names_a_module_that_exists() -> None:
    rows = re.findall(r"(?m)^\| ([^|]+) \| [^|]+ \| `([^`]+)` \|$", (REPOSITORY / "docs" / "words.md").read_text())
    assert len(rows) > 80
    for term, module in rows:
        assert (REPOSITORY / module).is_file(), f"{term} lives in {module}, which does not exist"


def test_the_structure_page_names_every_package() -> None:
    text = (REPOSITORY / "docs" / "structure.md").read_text()
    packages = [path.parent for path in REPOSITORY.glob("*/__init__.py")]
    packages += [path.parent for path in (REPOSITORY / "marketplace").glob("*/__init__.py")]
    for package in packages:
        name = str(package.relative_to(REPOSITORY))
        if name not in {"marketplace", "tests", "examples"}:
            assert f"`{name}/`" in text, name


def test_the_base_install_is_the_light_command_alone() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[]", line)[0] for line in project["dependencies"]}
    assert names == {"cryptography", "httpx", "msgspec", "numpy", "platformdirs", "rich", "typer"}
    assert "torch==2.13.0" in project["optional-dependencies"]["serving"]


def test_compose_has_every_role_with_health_and_without_secrets() -> None:
    services = COMPOSE["services"]
    replicas = {"serving-cpu", "serving-gpu", "enrolment-cpu", "enrolment-gpu"}
    watchers = {"prometheus", "grafana"}
    workers = {"worker", "runs", "jobs", "beat"}
    fleet = {"enrolment-fleet", "ray-gcs", "ray-head", "ray-node-0", "ray-node-1"}
    assert {"postgres", "valkey", "migrate", "web", *workers, *replicas, *watchers, *fleet} == set(services)
    assert services["serving-cpu"]["profiles"] == ["cpu"] and services["serving-gpu"]["profiles"] == ["gpu"]
    for name in ("postgres", "valkey", "worker", "runs", "jobs", "beat"):
        assert "test" in services[name]["healthcheck"]
    for name, service in services.items():
        for variable, value in (service.get("environment") or {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|PEPPER|API_KEY", variable) and not variable.endswith("_PATH"):
                # One that is needed only with a bucket may be left out; then it is empty, and no default stands here.
                fits = re.search(r"\$\{\w+:(\?|-\}$)", str(value))
                assert fits, f"{name}: {variable} must come from the environment"
    for name in ("serving-cpu", "serving-gpu"):
        assert not {"DATABASE_URL", "SECRET_KEY", "API_KEY_PEPPER"} & set(services[name].get("environment") or {})


def test_images_run_as_an_ordinary_user_with_health_checks() -> None:
    stages = (REPOSITORY / "Dockerfile").read_text().split("\nFROM ")
    for stage in stages[1:]:
        if stage.startswith("base AS"):
            assert "USER intarsia" in stage and "HEALTHCHECK" in stage
            assert not re.search(r"(?m)^(ENV|ARG) .*(SECRET|PASSWORD|TOKEN)", stage)


def test_the_gpu_replica_has_cuda_and_sizes_itself_from_card_and_container() -> None:
    service = COMPOSE["services"]["serving-gpu"]
    sizes = ("--kv-cache-mb", "--adapter-memory-mb", "--host-adapter-memory-mb", "--adapter-slots", "--max-num-seqs")
    assert "cuda" in service["command"] and not set(sizes) & set(service["command"])
    assert "--gpu-memory-fraction" in service["command"]
    assert service["deploy"]["resources"]["limits"]["memory"] == "${REPLICA_MEMORY:-0}"
    assert service["build"]["target"] == "serving-gpu" != COMPOSE["services"]["serving-cpu"]["build"]["target"]
    stage = (REPOSITORY / "Dockerfile").read_text().split("\nFROM serving AS serving-gpu\n")[1]
    assert "assert torch.version.cuda" in stage and "import torch, triton" in stage
    # Compiled kernels stay on the volume of the state folder.
    (cache,) = re.findall(r"TRITON_CACHE_DIR=(\S+)", stage)
    assert any(cache.startswith(volume.split(":")[1] + "/") for volume in service["volumes"])


def _has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


def test_docker_accepts_the_compose_file() -> None:
    if not _has_compose():
        pytest.skip("there is no docker compose on this machine; the tests above read the file itself")
    wanted = re.findall(r"\$\{(\w+):\?", (REPOSITORY / "docker-compose.yml").read_text())
    environment = dict.fromkeys(wanted, "x") | {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["docker", "compose", "--profile", "cpu", "--profile", "gpu", "--profile", "fleet", "config", "-q"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
