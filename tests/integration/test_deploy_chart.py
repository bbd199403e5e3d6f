"""The Helm chart: linted and rendered by Helm's own engine, every object checked against Kubernetes' schemas.

No cluster is asked. Kinds of KEDA and of the Prometheus operator are not in those schemas: what is checked of them is
said in their tests.
"""

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from aot.errors import InvalidConfig
from aot.schema.codec import encode
from aot.schema.endpoints import ENDPOINTS
from aot.schema.names import Name
from aot.schema.wire.workers import ProfileListing, ProfileView, Scope
from aot.trust import SigningKey
from registry.api.metrics import metrics
from registry.settings import Settings as RegistrySettings
from tests.builders import a_profile
from worker.settings import Settings as WorkerSettings

CHART = Path(__file__).parents[2] / "deploy/helm/aot-registry"
FOREIGN = ("keda.sh/", "monitoring.coreos.com/")
VALUE_SETS = ("minimal", "production", "gpu")
# The oldest that Chart.yaml allows, and the newest whose schemas are known.
KUBERNETES = ("1.33", kubernetes_validate.latest_version())
OBJECTS = {
    "minimal": 6,  # migration, registry, service, disruption budget, account, sweeper
    "production": 13,  # and an ingress, two policies, a monitor, a worker, its scaler and that one's token
    "gpu": 7,  # without an account, with two workers
}


def values_of(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return values


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="aot", namespace="serving")
    return [
        found
        for path, text in files.items()
        if path.endswith(".yaml")
        for found in yaml.safe_load_all(text)
        if found is not None
    ]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [found for found in objects if (found["kind"], found["metadata"]["name"]) == (kind, name)]
    return found


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod templates by the name of their owner."""
    return {
        found["metadata"]["name"]: found["spec"]["template"]
        for found in objects
        if found["kind"] in ("Deployment", "Job")
    }


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["spec"]["containers"]
    return found


def environment(pod: dict[str, Any], **secrets: str) -> dict[str, str]:
    """What the container reads, with `secrets` (by the secret's name) where it refers to one."""
    found = {}
    for variable in container(pod)["env"]:
        match variable:
            case {"value": str(value)}:
                found[variable["name"]] = value
            case {"valueFrom": {"secretKeyRef": {"name": name}}}:
                found[variable["name"]] = secrets[name.replace("-", "_")]
            case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
                found[variable["name"]] = "aot-worker-cpu-v3-7d9f8b6c5-x2x4z"
    return found


def is_part_of(labels: dict[str, str], selector: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


@pytest.mark.parametrize("name", VALUE_SETS)
def test_helm_lint_finds_nothing(name: str) -> None:
    report = helm_python.lint(CHART, values_of(name), strict=True)
    # 1 is information: Helm would like an icon.
    assert report["total_charts_linted"] == 1
    assert ([found for found in report["messages"] if found["severity"] > 1], report["errors"]) == ([], [])


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", VALUE_SETS)
def test_every_object_is_what_kubernetes_takes(name: str, version: str) -> None:
    objects = render(values_of(name))
    assert len(objects) == OBJECTS[name]
    known = [found for found in objects if not found["apiVersion"].startswith(FOREIGN)]
    for found in known:
        kubernetes_validate.validate(found, version, strict=True)
    assert len(objects) - len(known) == (3 if name == "production" else 0)


def test_the_schemas_refuse_a_misspelt_field() -> None:
    deployment = one(render(values_of("minimal")), "Deployment", "aot")
    deployment["spec"]["template"]["spec"]["securityContxt"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES[0], strict=True)


@pytest.mark.parametrize(
    "change",
    [
        {"blobUrl": "directory"},
        {"publicUrl": ""},
        {"replicas": 3},
        {"secrets": {"database": {"name": "a", "key": "url", "value": "postgresql://u:p@h/d"}}},
        {"image": {"repository": "aot-registry/server", "tag": "latest"}},
        {"settings": {"PATH": "/tmp"}},
        {"ingress": {"enabled": True, "host": "aot.example.com"}},
        {"metrics": {"serviceMonitor": {"enabled": True, "token": {"value": "aot_secret"}}}},
        {"workers": [{"name": "a", "image": {"repository": "r"}}]},
        {
            "workers": [
                {
                    "name": "a",
                    "image": {"repository": "r"},
                    "token": {"name": "t", "key": "k"},
                    "autoscaling": {"enabled": True},
                }
            ]
        },
    ],
    ids=[
        "directory",
        "no-url",
        "typo",
        "plain-secret",
        "latest",
        "not-ours",
        "second-host",
        "plain-token",
        "no-token",
        "scaled-without-profile",
    ],
)
def test_wrong_values_are_refused_before_anything_is_rendered(change: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError):
        render({**values_of("minimal"), **change})


@pytest.mark.parametrize("name", VALUE_SETS)
def test_secrets_are_references_and_none_is_made(name: str) -> None:
    objects = render(values_of(name))
    assert "Secret" not in {found["kind"] for found in objects}
    for pod in pods(objects).values():
        for variable in container(pod)["env"]:
            if re.search("DATABASE_URL|BROKER_URL|TOKEN$|SECRET", variable["name"]):
                assert "secretKeyRef" in variable["valueFrom"], variable["name"]


def test_the_registry_understands_what_it_is_told() -> None:
    pod = pods(render(values_of("production")))["aot"]
    admin = "a-given-administrators-token"
    told = environment(
        pod, aot_database="postgresql+psycopg://u:p@h/d", aot_broker="redis://h/0", aot_admin_token=admin
    )
    settings = RegistrySettings.from_environ(told)
    assert not settings.embedded
    assert settings.admin_token == admin
    assert settings.blob_url == "s3://company-aot/production?region=eu-central-1"
    assert settings.public_url == "https://aot.example.com"
    assert settings.link_lives.total_seconds() == 1800
    assert [str(path) for path in settings.signing_keys] == ["/var/lib/aot-keys/2026.key", "/var/lib/aot-keys/2027.key"]
    assert [port["containerPort"] for port in container(pod)["ports"]] == [settings.port]
    [source] = container(pod)["envFrom"]
    assert source == {"secretRef": {"name": "aot-bucket"}}


def test_the_administrators_token_is_the_registrys_alone_and_need_not_be_given() -> None:
    for name, told in (("production", {"aot"}), ("minimal", set())):
        found = pods(render(values_of(name)))
        reads = {owner: [variable["name"] for variable in container(pod)["env"]] for owner, pod in found.items()}
        assert {owner for owner, names in reads.items() if "AOT_ADMIN_TOKEN" in names} == told


@pytest.mark.parametrize("owner", ["aot", "aot-sweeper"])
def test_a_mounted_key_is_made_the_users_own_before_it_is_read(owner: str, tmp_path: Path) -> None:
    pod = pods(render(values_of("production")))[owner]
    secret, copies = tmp_path / "secret", tmp_path / "copies"
    secret.mkdir()
    copies.mkdir()
    made = {name: SigningKey.generate() for name in ("2026.key", "2027.key")}
    for name, key in made.items():
        key.save(secret / name)
        (secret / name).chmod(0o440)  # the least that a secret's volume gives to a group
    with pytest.raises(InvalidConfig):
        SigningKey.load(secret / "2026.key")

    [init] = pod["spec"]["initContainers"]
    mounted = {mount["mountPath"]: mount["name"] for mount in init["volumeMounts"]}
    assert mounted == {"/var/lib/aot-keys": "keys", "/run/aot-keys": "keys-secret"}
    assert {"name": "keys", "mountPath": "/var/lib/aot-keys", "readOnly": True} in container(pod)["volumeMounts"]
    places = {"/run/aot-keys": str(secret), "/var/lib/aot-keys": str(copies)}
    command = [re.sub("|".join(places), lambda found: places[found[0]], word) for word in init["command"]]
    subprocess.run(command, check=True)
    assert {path.name: SigningKey.load(path).public for path in copies.iterdir()} == {
        name: key.public for name, key in made.items()
    }


def test_a_worker_understands_what_it_is_told_and_holds_no_other_credentials(tmp_path: Path) -> None:
    objects = render(values_of("production"))
    pod = pods(objects)["aot-worker-cpu-v3"]
    told = environment(pod, aot_broker="redis://h/0")
    [token] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "token"]
    [mount] = [mount for mount in container(pod)["volumeMounts"] if mount["name"] == "token"]
    assert token["secret"]["secretName"] == "aot-worker-token"
    assert told["AOT_TOKEN_FILE"] == f"{mount['mountPath']}/token"
    (tmp_path / "token").write_text("aot_worker\n")
    settings = WorkerSettings.from_environ({**told, "AOT_TOKEN_FILE": str(tmp_path / "token")})
    assert (settings.token, settings.profile) == ("aot_worker", Name("cpu-x86-64-v3"))
    assert settings.url == f"http://{one(objects, 'Service', 'aot')['metadata']['name']}"
    assert "AOT_DATABASE_URL" not in told
    assert "envFrom" not in container(pod)
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_what_bubblewrap_needs_is_given_to_sandboxed_workers_alone() -> None:
    found = pods(render(values_of("gpu")))
    for name, sandboxed in (("aot-worker-h100", True), ("aot-worker-l4-trusted", False), ("aot", False)):
        pod = found[name]["spec"]
        assert (pod.get("hostUsers") is False) == sandboxed
        assert (container(found[name])["securityContext"].get("procMount") == "Unmasked") == sandboxed
        assert pod["securityContext"]["seccompProfile"]["type"] == ("Unconfined" if sandboxed else "RuntimeDefault")
    assert environment(found["aot-worker-l4-trusted"], aot_broker="redis://h")["AOT_TRUST_SOURCES"] == "vision,speech"


@pytest.mark.parametrize("name", VALUE_SETS)
def test_no_container_runs_as_root_or_writes_to_its_image(name: str) -> None:
    for pod in pods(render(values_of(name))).values():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for one_of_them in (*pod["spec"].get("initContainers", ()), container(pod)):
            security = one_of_them["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_migration_runs_before_anything_else_and_with_nothing_of_the_release() -> None:
    job = one(render(values_of("minimal")), "Job", "aot-migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert container(job["spec"]["template"])["args"] == ["migrate"]
    assert "serviceAccountName" not in job["spec"]["template"]["spec"], "it does not exist before the first install"


def test_probes_ask_what_exists() -> None:
    registry = container(pods(render(values_of("minimal")))["aot"])
    assert registry["livenessProbe"]["httpGet"]["path"] == "/"
    assert registry["readinessProbe"]["exec"]["command"] == ["python", "/opt/aot/probe.py"]
    assert "COPY deploy/probe.py ./probe.py" in (CHART.parents[1] / "Dockerfile").read_text()
    assert '"/v1/ready"' in (CHART.parents[1] / "probe.py").read_text()
    assert ENDPOINTS["get_ready"].path == "/v1/ready"


def test_one_replica_may_leave_at_a_time() -> None:
    objects = render(values_of("production"))
    registry = one(objects, "Deployment", "aot")
    assert registry["spec"]["replicas"] == 3
    assert registry["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    budget = one(objects, "PodDisruptionBudget", "aot")["spec"]
    assert budget["maxUnavailable"] == 1
    assert is_part_of(registry["spec"]["template"]["metadata"]["labels"], budget["selector"]["matchLabels"])
    alone = render({**values_of("minimal"), "registry": {"replicas": 1}})
    assert "PodDisruptionBudget" not in {found["kind"] for found in alone}


def test_selectors_find_their_pods_and_no_others() -> None:
    objects = render(values_of("production"))
    selector = one(objects, "Service", "aot")["spec"]["selector"]
    found = {name for name, pod in pods(objects).items() if is_part_of(pod["metadata"]["labels"], selector)}
    assert found == {"aot"}
    [policy] = [found for found in objects if found["kind"] == "NetworkPolicy" and found["metadata"]["name"] == "aot"]
    allowed = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert {name for name, pod in pods(objects).items() if is_part_of(pod["metadata"]["labels"], allowed)} == {
        "aot-worker-cpu-v3"
    }


def test_the_ingress_leads_the_public_address_to_the_registrys_port() -> None:
    objects = render(values_of("production"))
    ingress, service = one(objects, "Ingress", "aot"), one(objects, "Service", "aot")
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["metadata"]["annotations"] == {"nginx.ingress.kubernetes.io/proxy-body-size": "64m"}
    assert ingress["spec"]["tls"] == [{"hosts": ["aot.example.com"], "secretName": "aot-tls"}]
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    assert (rule["host"], path["path"], path["pathType"]) == ("aot.example.com", "/", "Prefix")
    backend = path["backend"]["service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize(
    ("url", "host", "tls"),
    [
        ("https://aot.example.com:8443", "aot.example.com", [{"hosts": ["aot.example.com"]}]),
        ("http://aot.internal", "aot.internal", None),
    ],
)
def test_an_ingress_has_the_host_and_the_scheme_of_the_public_address(url: str, host: str, tls: Any) -> None:
    objects = render({**values_of("minimal"), "publicUrl": url, "ingress": {"enabled": True}})
    spec = one(objects, "Ingress", "aot")["spec"]
    assert ([rule["host"] for rule in spec["rules"]], spec.get("tls")) == ([host], tls)
    assert "ingressClassName" not in spec
    kubernetes_validate.validate(one(objects, "Ingress", "aot"), KUBERNETES[0], strict=True)


def test_without_being_asked_there_is_no_ingress() -> None:
    assert "Ingress" not in {found["kind"] for found in render(values_of("minimal"))}


def test_the_monitor_finds_the_service_and_reads_a_route_with_a_token_by_reference() -> None:
    """Of the Prometheus operator's kind: labels, port and path are those of what is there, and Prometheus gets in."""
    objects = render(values_of("production"))
    monitor, service = one(objects, "ServiceMonitor", "aot"), one(objects, "Service", "aot")
    assert is_part_of(service["metadata"]["labels"], monitor["spec"]["selector"]["matchLabels"])
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    [endpoint] = monitor["spec"]["endpoints"]
    assert (endpoint["port"], {endpoint["path"]}) == (service["spec"]["ports"][0]["name"], metrics.paths)
    assert endpoint["authorization"] == {"credentials": {"name": "aot-metrics-token", "key": "token"}}
    [rule] = one(objects, "NetworkPolicy", "aot")["spec"]["ingress"]
    assert "monitoring" in str(rule["from"])
    assert "ServiceMonitor" not in {found["kind"] for found in render(values_of("minimal"))}


def test_the_scaler_reads_the_queue_where_the_registry_says_it() -> None:
    """Of KEDA's kinds: the target exists, the token is a reference, and the path leads to a number in a real reply."""
    objects = render(values_of("production"))
    scaler = one(objects, "ScaledObject", "aot-worker-cpu-v3")["spec"]
    worker = one(objects, "Deployment", scaler["scaleTargetRef"]["name"])
    assert "replicas" not in worker["spec"], "the scaler sets them; an upgrade must not"
    profile = environment(pods(objects)[worker["metadata"]["name"]], aot_broker="redis://h")["AOT_PROFILE"]
    endpoint = ENDPOINTS["list_profiles"]
    for trigger in scaler["triggers"]:
        assert (trigger["type"], trigger["metadata"]["authMode"], endpoint.scope) == (
            "metrics-api",
            "bearer",
            Scope.READ,
        )
        assert trigger["metadata"]["url"] == f"http://aot.serving.svc{endpoint.path}"
        token = one(objects, "TriggerAuthentication", trigger["authenticationRef"]["name"])["spec"]["secretTargetRef"]
        assert token == [{"parameter": "token", "name": "aot-scaler-token", "key": "token"}]
    # Queued, running → how many of at most 8 workers; two builds are worth one here.
    cases = {(0, 0): 0, (7, 0): 4, (1, 1): 1, (0, 4): 4, (9, 2): 6}
    assert {case: workers_for(scaler, profile, *case) for case in cases} == cases


def workers_for(scaler: dict[str, Any], profile: str, queued: int, running: int) -> int:
    """As KEDA: each trigger reads a number, which is there also where it is 0, and the largest wish counts."""
    counts = {"queued": queued, "running": running, "live_builds": queued + running}
    view = ProfileView(profile=a_profile(name=profile), live_workers=1, **counts)
    reply = json.loads(encode(ProfileListing(profiles=(view,))))
    wishes = []
    for trigger in scaler["triggers"]:
        path = re.fullmatch(r'profiles\.#\(profile\.name=="([^"]+)"\)\.(\w+)', trigger["metadata"]["valueLocation"])
        assert path is not None
        [value] = [row[path[2]] for row in reply["profiles"] if row["profile"]["name"] == path[1]]
        wishes.append(math.ceil(value / int(trigger["metadata"]["targetValue"])))
    return max(wishes)


def test_names_stay_within_what_kubernetes_allows() -> None:
    values = values_of("production")
    values["workers"][0]["name"] = "w" * 20
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="r" * 53, namespace="serving")
    found = [
        (found["kind"], found["metadata"]["name"])
        for path, text in files.items()
        if path.endswith(".yaml")
        for found in yaml.safe_load_all(text)
        if found
    ]
    assert len(found) == OBJECTS["production"]
    assert len(set(found)) == len(found)
    assert max(len(name) for _, name in found) <= 63
