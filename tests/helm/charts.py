"""The chart, rendered by Helm itself, and the values that its tests go through."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from helm_python import Chart

CHART: Final = Path(__file__).resolve().parents[2] / "helm" / "metergate"
NAMESPACE: Final = "llm"

Object = dict[str, Any]

UPSTREAM: Final[Object] = {
    "providers": {
        "deepseek": {"kind": "openai", "base_url": "https://api.deepseek.com/v1", "api_key": "env:DEEPSEEK_API_KEY"}
    },
    "models": [{"name": "deepseek-chat", "routes": [{"provider": "deepseek", "model": "deepseek-chat"}]}],
}
MINIMAL: Final[Object] = {
    "secret": {"name": "metergate", "env": [{"name": "DEEPSEEK_API_KEY", "key": "deepseek"}]},
    "config": UPSTREAM,
}
ENGINE: Final[Object] = {
    "model": "/models/llama-3.1-8b",
    "servedName": "llama-3.1-8b",
    "replicas": 2,
    "contextWindow": 32768,
    "maxOutputTokens": 8192,
    "costPerHour": "3.50 USD",
    "args": ["--gpu-memory-utilization", "0.9", "--max-num-seqs=128"],
    "gpu": {"count": 1},
    "modelVolume": {"claim": "models"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}
GOOD: Final[dict[str, Object]] = {
    "minimal": MINIMAL,
    "single": {**MINIMAL, "redis": {"enabled": False}, "gateway": {"replicas": 1}},
    "gpu": {"secret": {"name": "metergate"}, "engines": {"llama": ENGINE}},
    "production": {
        **MINIMAL,
        "image": {"digest": "sha256:" + "a" * 64},
        "gateway": {
            "replicas": 5,
            "spread": {"whenUnsatisfiable": "DoNotSchedule"},
            "journal": {"size": "50Gi", "storageClass": "fast"},
            "autoscaling": {"enabled": True, "maxReplicas": 20},
        },
        "ingress": {"enabled": True, "host": "llm.example.com", "className": "nginx", "tlsSecret": "llm-tls"},
        "networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
    },
    "everything": {
        **MINIMAL,
        "pullSecrets": ["registry"],
        "secret": {**MINIMAL["secret"], "keys": {"metricsToken": "metrics-token"}},
        "gateway": {
            "keda": {"enabled": True, "prometheusAddress": "http://prometheus.monitoring:9090"},
            "podLabels": {"team": "platform"},
            "podAnnotations": {"example.com/a": "b"},
            "priorityClassName": "high",
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "extraEnv": [{"name": "METERGATE_LOG_LEVEL", "value": "debug"}],
        },
        "adopt": {"claims": ["home-mg-metergate-gateway-7"]},
        "engines": {
            "llama": ENGINE,
            "small": {"model": "smollm2-135m-instruct", "modelVolume": {"size": "10Gi"}, "runtimeClassName": "nvidia"},
        },
        "ingress": {"enabled": True, "host": "llm.example.com"},
        "gatewayApi": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["llm.example.com"]},
        "networkPolicy": {
            "callers": [{"namespaceSelector": {}}],
            "operators": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}],
        },
        "monitoring": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboards": {"enabled": True},
        },
    },
}

BAD: Final[dict[str, tuple[Object, str]]] = {
    "nothing at all": ({}, "secret.name"),
    "nothing to serve": ({"secret": {"name": "metergate"}}, "nothing to serve"),
    "a misspelt value": ({**MINIMAL, "gateway": {"replica": 3}}, "replica"),
    "two gateways without shared limits": ({**MINIMAL, "redis": {"enabled": False}}, "redis.enabled"),
    "a key in the configuration": (
        {**MINIMAL, "config": {**UPSTREAM, "providers": {"x": {"kind": "openai", "api_key": "sk-live-1"}}}},
        "api_key",
    ),
    "a database address in the configuration": (
        {**MINIMAL, "config": {**UPSTREAM, "database_url": "postgresql://u:p@h/d"}},
        "database_url",
    ),
    "a grace shorter than the streams": ({**MINIMAL, "gateway": {"gracePeriodSeconds": 60}}, "gracePeriodSeconds"),
    "two autoscalers": (
        {
            **MINIMAL,
            "gateway": {
                "autoscaling": {"enabled": True},
                "keda": {"enabled": True, "prometheusAddress": "http://prometheus:9090"},
            },
        },
        "fight over the replicas",
    ),
    "an autoscaler that cannot ask": ({**MINIMAL, "gateway": {"keda": {"enabled": True}}}, "prometheusAddress"),
    "an ingress without a host": ({**MINIMAL, "ingress": {"enabled": True}}, "ingress.host"),
    "an engine without a model": ({**MINIMAL, "engines": {"llama": {}}}, "model"),
    "an engine with two volumes": (
        {**MINIMAL, "engines": {"llama": {"model": "m", "modelVolume": {"claim": "a", "size": "1Gi"}}}},
        "modelVolume",
    ),
    "an engine that bears a provider's name": (
        {
            **MINIMAL,
            "config": {**UPSTREAM, "providers": {**UPSTREAM["providers"], "llama-0": {"kind": "openai"}}},
            "engines": {"llama": {"model": "m"}},
        },
        "rename one of them",
    ),
    "an hour that costs no money": (
        {**MINIMAL, "engines": {"l": {"model": "m", "costPerHour": "cheap"}}},
        "costPerHour",
    ),
    "a digest that is none": ({**MINIMAL, "image": {"digest": "latest"}}, "digest"),
}


def render(values: Object) -> list[Object]:
    """Every object of the chart under these values, hooks and the test's pod included. Raises `HelmError`."""
    with Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="mg", namespace=NAMESPACE)
    return [
        each
        for path, text in files.items()
        if not path.endswith("NOTES.txt")
        for each in yaml.safe_load_all(text)
        if each is not None
    ]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def pods_of(objects: list[Object]) -> list[tuple[str, Object]]:
    """What each workload makes: its name, and the pod's metadata and spec."""
    pods = [(f"{each['kind']} {each['metadata']['name']}", each) for each in of_kind(objects, "Pod")]
    return pods + [
        (f"{each['kind']} {each['metadata']['name']}", each["spec"]["template"])
        for each in of_kind(objects, "StatefulSet", "Deployment", "Job")
    ]
