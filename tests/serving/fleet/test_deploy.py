"""The deploy files say what the program does: Serve's own schema, our own settings, names that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from serving.fleet.app import build, deployment_options
from serving.fleet.drain_node import DRAIN_SECONDS
from serving.fleet.environment import RAY_ENVIRONMENT
from serving.fleet.node import applications
from serving.fleet.settings import PoolSettings

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
AUTH_MODE = {"RAY_AUTH_MODE"}  # KubeRay sets it, from authOptions


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


@pytest.fixture(params=["serve.yaml", "compose-fleet.yaml", "rayservice.yaml"])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The Serve configuration of each deploy file."""
    first = documents(request.param)[0]
    found: dict[str, Any] = yaml.safe_load(first["spec"]["serveConfigV2"]) if "spec" in first else first
    return found


def test_serve_takes_each_configuration_and_opens_no_proxy(config: dict[str, Any]) -> None:
    schema = ServeDeploySchema.model_validate(config)
    assert schema.proxy_location == "Disabled"
    for application in schema.applications:
        assert application.import_path == f"{build.__module__}:{build.__name__}"
        assert application.route_prefix is None
        settings = PoolSettings.parse(application.args)
        assert settings.pool == application.name
        assert build(application.args) is not None


def test_no_secret_stands_in_a_configuration(config: dict[str, Any]) -> None:
    for application in config["applications"]:
        assert not application.get("runtime_env"), "what stands there lies in the GCS"
        assert application["args"]["credential_file"].startswith("/")
    text = yaml.safe_dump(config)
    assert not re.search(r"ifc_|irc_|password|[0-9a-f]{32}", text)


def test_a_pod_outlives_the_drain_of_its_replicas() -> None:
    service = documents("rayservice.yaml")[0]
    (pool,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    waits = deployment_options(PoolSettings.parse(pool["args"]))["graceful_shutdown_timeout_s"]
    for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:3] == ["python", "-m", "serving.fleet.drain_node"]
        assert pod["terminationGracePeriodSeconds"] > float(command[command.index("--seconds") + 1]) > waits


def test_kuberay_gets_a_token_a_lasting_head_and_slots_of_the_node() -> None:
    service, policy = documents("rayservice.yaml")
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["authOptions"]["mode"] == "token"
    assert cluster["gcsFaultToleranceOptions"]["redisAddress"].startswith("redis://")
    assert "valueFrom" in cluster["gcsFaultToleranceOptions"]["redisPassword"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    pods = [cluster["headGroupSpec"]["template"]] + [one["template"] for one in cluster["workerGroupSpecs"]]
    for pod in pods:
        assert pod["metadata"]["labels"].items() >= policy["spec"]["podSelector"]["matchLabels"].items()
        container = pod["spec"]["containers"][0]
        set_here = {one["name"]: one["value"] for one in container["env"]}
        assert set_here == {name: value for name, value in RAY_ENVIRONMENT.items() if name not in AUTH_MODE}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["image"].startswith("intarsia-fleet")
    (pool,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    worker = cluster["workerGroupSpecs"][0]["template"]["spec"]
    mounts = {one["mountPath"]: one["name"] for one in worker["containers"][0]["volumeMounts"]}
    state = next(one for one in worker["volumes"] if one["name"] == mounts[pool["args"]["state_dir"]])
    assert "hostPath" in state
    open_ports = [port for rule in policy["spec"]["ingress"] for port in rule.get("ports", [])]
    assert {"port": pool["args"]["ports"][0], "endPort": pool["args"]["ports"][1]} in open_ports


def test_composes_fleet_profile_is_a_head_two_nodes_and_a_lasting_state() -> None:
    services = {name: one for name, one in compose()["services"].items() if one.get("profiles") == ["fleet"]}
    assert set(services) == {"enrolment-fleet", "ray-gcs", "ray-head", "ray-node-0", "ray-node-1"}
    for name in ("ray-head", "ray-node-0", "ray-node-1"):
        assert services[name]["environment"].items() >= RAY_ENVIRONMENT.items()
        assert services[name]["build"]["target"] == services[name]["image"].removeprefix("intarsia-")
        assert services[name]["command"][:3] == ["python", "-m", "serving.fleet.node"]
        assert not services[name].get("ports"), "no port of Ray leaves the host's own networks"
    assert services["ray-gcs"]["networks"] == ["ray"]
    assert compose()["networks"]["ray"]["internal"] is True
    assert float(services["ray-node-0"]["stop_grace_period"].rstrip("s")) > DRAIN_SECONDS
    own = [services[name]["volumes"][1] for name in ("ray-node-0", "ray-node-1")]
    assert own == ["ray-node-0:/var/lib/intarsia", "ray-node-1:/var/lib/intarsia"]


def test_composes_pool_is_the_one_that_its_enrolment_allows() -> None:
    (application,) = applications(DEPLOY / "compose-fleet.yaml")
    settings = PoolSettings.parse(application["args"])
    script = compose()["services"]["enrolment-fleet"]["command"][-1]
    (command,) = re.findall(rf"manage\.py (\w+) {settings.pool} ", script)
    assert (ROOT / "marketplace" / "vault" / "management" / "commands" / f"{command}.py").exists()
    assert f"--credential-file {settings.credential_file} " in script
    allowed = int(script.split("--replicas ")[1].split()[0])
    assert allowed >= 2 * settings.max_replicas, "an update and lost replicas need places, too"
    assert "FROM serving AS fleet\n" in (ROOT / "Dockerfile").read_text()
