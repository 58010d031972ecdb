"""Laws of the chart: Helm renders it, Kubernetes' own schemas accept every object, and what it starts is what we ship."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from helm_python import HelmError
from helm_python.chart import lint

from gateway.cli import cli
from gateway.settings import load_settings
from local_engine.cli import make_parser
from tests.helm.charts import BAD, CHART, GOOD, MINIMAL, NAMESPACE, Object, of_kind, pods_of, render

CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}
"""Kinds that a cluster has only with their operators; Kubernetes ships no schema for them."""


@pytest.fixture(params=GOOD, scope="module")
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(GOOD[request.param])


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("version", ["v1.29.0", "v1.34.0"])
def test_helm_lints_it_without_a_warning(name: str, version: str) -> None:
    report = lint(CHART, GOOD[name], strict=True, namespace=NAMESPACE, kube_version=version)
    assert not report["errors"]
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_refused_by_name(name: str) -> None:
    values, named = BAD[name]
    with pytest.raises(HelmError) as refusal:
        render(values)
    assert named in str(refusal.value)


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_kubernetes_own_schemas_accept_every_object(objects: list[Object], version: str) -> None:
    for each in objects:
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)


def test_names_are_unique_and_fit_a_dns_label(objects: list[Object]) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for _, name in names)


def test_every_pod_meets_the_restricted_standard(objects: list[Object]) -> None:
    for name, pod in pods_of(objects):
        spec = pod["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
        for container in spec["containers"] + spec.get("initContainers", []):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert not own.get("privileged") and "resources" in container, name
        for volume in spec.get("volumes", []):
            assert volume.keys() - {"name"} <= {"configMap", "emptyDir", "persistentVolumeClaim"}, name


def test_selectors_find_their_own_pods_and_no_others(objects: list[Object]) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods_of(objects)}

    def found(selector: Mapping[str, str]) -> set[str]:
        return {name for name, own in labels.items() if selector.items() <= own.items()}

    for workload in of_kind(objects, "StatefulSet"):
        name = f"StatefulSet {workload['metadata']['name']}"
        assert found(workload["spec"]["selector"]["matchLabels"]) == {name}
        assert workload["spec"]["serviceName"] in {each["metadata"]["name"] for each in of_kind(objects, "Service")}
        for spread in workload["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            assert found(spread["labelSelector"]["matchLabels"]) == {name}
    selectors = [each["spec"]["selector"] for each in of_kind(objects, "Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(objects, "PodDisruptionBudget")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(objects, "NetworkPolicy")]
    for selector in selectors:
        names = found(selector)
        assert names and all(name.startswith("StatefulSet") for name in names), selector
    services = [each["metadata"]["labels"] for each in of_kind(objects, "Service")]
    for monitor in of_kind(objects, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert any(wanted.items() <= own.items() for own in services)


def test_ports_by_name_exist_where_they_point(objects: list[Object]) -> None:
    ports = {
        name: {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", [])}
        for name, pod in pods_of(objects)
    }
    labels = {name: pod["metadata"]["labels"] for name, pod in pods_of(objects)}
    for service in of_kind(objects, "Service"):
        for name, own in labels.items():
            if service["spec"]["selector"].items() <= own.items():
                assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[name]


def test_no_secret_is_written_anywhere(objects: list[Object]) -> None:
    assert not of_kind(objects, "Secret")
    for _, pod in pods_of(objects):
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", []):
                if "value" in variable:
                    assert not any(
                        word in variable["name"] for word in ("KEY", "TOKEN", "PEPPER", "PASSWORD", "DATABASE")
                    )


def test_the_product_reads_the_settings_it_is_given(
    objects: list[Object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = [each for each in of_kind(objects, "ConfigMap") if "metergate.yaml" in each["data"]]
    (gateway,) = [pod for name, pod in pods_of(objects) if name.endswith("-gateway")]
    (container,) = gateway["spec"]["containers"]
    secrets = {
        "METERGATE_DATABASE_URL": "postgresql://metergate@db/metergate",
        "METERGATE_REDIS_URL": "redis://valkey:6379/0",
    }
    environ = {
        each["name"]: each.get("value") or secrets.get(each["name"], f"a-long-secret-for-{each['name']}")
        for each in container["env"]
    }
    file = tmp_path / "metergate.yaml"
    file.write_text(config["data"]["metergate.yaml"])
    settings = load_settings(file, environ)
    assert settings.models
    assert settings.shutdown_grace_s < gateway["spec"]["terminationGracePeriodSeconds"]
    listening = {settings.listen.rpartition(":")[2], (settings.admin_listen or "").rpartition(":")[2]}
    assert listening == {str(port["containerPort"]) for port in container["ports"]}
    engines = {
        each["metadata"]["name"]: each
        for each in of_kind(objects, "StatefulSet")
        if "engine" in each["metadata"]["name"]
    }
    bundled = {name: each for name, each in settings.providers.items() if each.kind == "engine"}
    assert len(bundled) == sum(each["spec"]["replicas"] for each in engines.values())
    for provider in bundled.values():
        assert provider.base_url is not None and provider.api_key is not None
        pod, service, namespace = provider.base_url.removeprefix("http://").split(".")[:3]
        assert service in engines and namespace == NAMESPACE and pod.removeprefix(service).lstrip("-").isdecimal()


def test_commands_in_the_pods_are_commands_of_ours(objects: list[Object]) -> None:
    for name, pod in pods_of(objects):
        for container in pod["spec"]["containers"]:
            if "command" in container:
                continue
            args = container["args"]
            if args[:2] == ["engine", "serve"]:
                parsed = make_parser().parse_args(args[2:])
                assert parsed.host == "0.0.0.0" and parsed.port == container["ports"][0]["containerPort"]
                continue
            command: click.Command = cli
            while isinstance(command, click.Group):
                with command.make_context(name, list(args), allow_interspersed_args=False) as context:
                    _, found, args = command.resolve_command(context, args)
                assert found is not None
                command = found
            command.make_context(name, list(args))


def test_providers_reload_in_place_and_the_rest_restarts() -> None:
    def checksum(values: Object) -> str:
        (gateway,) = of_kind(render(values), "StatefulSet")
        annotations: dict[str, str] = gateway["spec"]["template"]["metadata"]["annotations"]
        return annotations["checksum/config"]

    config = MINIMAL["config"]
    another = {**config, "models": [{**config["models"][0], "context_window": 1000}]}
    assert checksum({**MINIMAL, "config": another}) == checksum(MINIMAL)
    assert checksum({**MINIMAL, "config": {**config, "auth_stale_s": 60}}) != checksum(MINIMAL)


def test_a_scaled_down_journal_is_shipped_by_a_job() -> None:
    objects = render(GOOD["everything"])
    (job,) = [each for each in of_kind(objects, "Job") if "adopt" in each["metadata"]["name"]]
    (home,) = [each for each in job["spec"]["template"]["spec"]["volumes"] if each["name"] == "home"]
    assert home["persistentVolumeClaim"]["claimName"] == "home-mg-metergate-gateway-7"
    gateway = next(each for each in of_kind(objects, "StatefulSet") if each["metadata"]["name"].endswith("-gateway"))
    assert gateway["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert home["persistentVolumeClaim"]["claimName"].startswith(f"home-{gateway['metadata']['name']}-")


def test_documented_values_are_the_schema_s() -> None:
    """Every default has a place in the schema and the other way round: no setting is undocumented."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(own: Any, rule: Any, path: str) -> None:
        if not isinstance(own, dict) or "properties" not in rule or rule.get("additionalProperties", True):
            return
        assert own.keys() == rule["properties"].keys() - {"global"}, path
        for name, value in own.items():
            compare(value, rule["properties"][name], f"{path}.{name}")

    compare(values, schema, "")
