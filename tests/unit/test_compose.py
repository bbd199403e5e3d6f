"""The compose file, read by Compose itself (`docker-compose config`): what it refuses, and what comes out of it.

Compose resolves variables, anchors and paths; no daemon and no image is needed.
"""

import json
import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import crossplane
import pytest

from registry.settings import Settings as RegistrySettings
from registry.storage import choose
from registry.storage.place import S3Place
from worker.settings import Settings as WorkerSettings

ROOT = Path(__file__).parents[2]
COMPOSE = Path(sysconfig.get_path("scripts")) / "docker-compose"
EXAMPLE = ROOT / "deploy/compose/env.example"
SECRETS = {
    "POSTGRES_PASSWORD": "sentinel-postgres",
    "S3_ROOT_USER": "sentinel-root",
    "S3_ROOT_PASSWORD": "sentinel-root-password",
    "AOT_S3_ACCESS_KEY": "sentinel-access",
    "AOT_S3_SECRET_KEY": "sentinel-secret",
    "AOT_ADMIN_TOKEN": "sentinel-administrators-token",
    "AOT_WORKER_TOKEN": "sentinel-token",
}
REGISTRIES = ("registry-1", "registry-2")
WORKERS = ("worker", "worker-gpu")


def config(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = tmp_path / "env"
    environment.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    command = [COMPOSE, "--project-directory", ROOT, "--file", ROOT / "docker-compose.yml", "--env-file", environment]
    return subprocess.run(
        [*command, "--profile", "*", "config", "--format", "json"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def services(tmp_path: Path, **variables: str) -> dict[str, Any]:
    done = config(tmp_path, **SECRETS, **variables)
    assert done.returncode == 0, done.stderr
    assert "variable is not set" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return services(tmp_path_factory.mktemp("compose"))


def test_every_part_is_there(found: dict[str, Any]) -> None:
    base = {"postgres", "valkey", "s3", "s3-setup", "proxy", "migrate", "keys", *REGISTRIES, "sweeper"}
    assert {name for name, service in found.items() if "profiles" not in service} == base
    assert {name: service["profiles"] for name, service in found.items() if "profiles" in service} == {
        "worker": ["worker"],
        "worker-gpu": ["gpu"],
    }


@pytest.mark.parametrize("missing", sorted(set(SECRETS) - {"AOT_WORKER_TOKEN"}))
def test_a_secret_that_is_not_set_stops_compose(tmp_path: Path, missing: str) -> None:
    done = config(tmp_path, **{name: value for name, value in SECRETS.items() if name != missing})
    assert done.returncode != 0
    assert f"required variable {missing} is missing" in done.stderr


def test_the_file_holds_no_secret(found: dict[str, Any]) -> None:
    secret = re.compile("PASSWORD|SECRET|ACCESS_KEY|TOKEN|ROOT_USER|DATABASE_URL")
    values = {
        (name, key): value
        for name, service in found.items()
        for key, value in service.get("environment", {}).items()
        if secret.search(key)
    }
    assert len(values) > 10
    assert {place: value for place, value in values.items() if "sentinel-" not in value} == {}


def test_the_example_names_every_variable_that_compose_reads(found: dict[str, Any]) -> None:
    read = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    lines = EXAMPLE.read_text().splitlines()
    assert set(re.findall(r"^#?([A-Z][A-Z0-9_]+)=", EXAMPLE.read_text(), re.M)) == read
    assert all(line.endswith("=") for line in lines if line[:1].isalpha()), "the example itself holds no secret"


def test_whatever_is_waited_for_can_come_true(found: dict[str, Any]) -> None:
    waits = [
        (name, other, wait["condition"])
        for name, service in found.items()
        for other, wait in service.get("depends_on", {}).items()
    ]
    assert {condition for _, _, condition in waits} == {"service_healthy", "service_completed_successfully"}
    for name, other, condition in waits:
        if condition == "service_healthy":
            assert found[other]["healthcheck"]["test"], f"{name} waits for {other}, which has no health check"
        else:
            assert found[other]["restart"] == "no", f"{name} waits for the end of {other}, which starts again"


@pytest.mark.parametrize("name", [*REGISTRIES, "sweeper"])
def test_the_database_is_migrated_first(found: dict[str, Any], name: str) -> None:
    assert found[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert found["migrate"]["command"] == ["migrate"]


@pytest.mark.parametrize(
    ("variables", "port", "store"),
    [({}, "8750", "9000"), ({"AOT_PORT": "9100", "S3_PORT": "9101"}, "9100", "9101")],
    ids=["default", "moved"],
)
def test_one_url_is_right_on_the_host_and_in_every_container(
    tmp_path: Path, variables: dict[str, str], port: str, store: str
) -> None:
    found = services(tmp_path, **variables)
    published = {(bound["published"], str(bound["target"])) for bound in found["proxy"]["ports"]}
    assert published == {(port, port), (store, store)}
    assert {bound["host_ip"] for bound in found["proxy"]["ports"]} == {"127.0.0.1"}
    for name in REGISTRIES:
        environment = found[name]["environment"]
        assert environment["AOT_PUBLIC_URL"] == f"http://localhost:{port}"
        assert f"endpoint=http://localhost:{store}&" in environment["AOT_BLOB_URL"]
    for name in WORKERS:
        assert found[name]["environment"]["AOT_URL"] == f"http://localhost:{port}"
    for name in (*REGISTRIES, *WORKERS, "sweeper"):
        assert found[name]["network_mode"] == "service:proxy", "localhost must be the proxy there"
        assert found[name]["depends_on"]["proxy"]["restart"], "its network goes when the proxy is made anew"
    listens = {words for block in nginx(port, store) for words in values_of(block, "listen")}
    assert listens == {port, store}


def test_addresses_elsewhere_reach_the_links(tmp_path: Path) -> None:
    found = services(tmp_path, AOT_PUBLIC_URL="https://aot.example.com", AOT_S3_ENDPOINT="https://s3.example.com")
    environment = found["registry-1"]["environment"]
    assert environment["AOT_PUBLIC_URL"] == "https://aot.example.com"
    assert "endpoint=https://s3.example.com&" in environment["AOT_BLOB_URL"]


def test_the_registries_understand_what_they_are_told(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[S3Place] = []
    monkeypatch.setattr("registry.storage.s3.connect_s3", asked.append)
    for name in (*REGISTRIES, "sweeper"):
        settings = RegistrySettings.from_environ(found[name]["environment"])
        assert not settings.embedded
        assert settings.database_url == "postgresql+psycopg://aot:sentinel-postgres@postgres/aot"
        assert settings.broker_url == "redis://valkey:6379/0"
        choose.open_store(settings.blob_url, data_dir=Path("unused"), public_url=settings.public_url)
    place = S3Place(bucket="aot", prefix="blobs", endpoint="http://localhost:9000", region="us-east-1")
    assert asked == [place] * 3


def test_two_registries_share_the_key_and_nothing_else(found: dict[str, Any]) -> None:
    first, second = (found[name] for name in REGISTRIES)
    mounts = [{volume["target"]: volume["source"] for volume in one["volumes"]} for one in (first, second)]
    assert mounts[0]["/var/lib/aot-keys"] == mounts[1]["/var/lib/aot-keys"] == "keys"
    assert mounts[0]["/var/lib/aot"] != mounts[1]["/var/lib/aot"], "`serve` holds its data directory"
    ports = {one["environment"]["AOT_PORT"] for one in (first, second)}
    [upstream] = [block for block in nginx("8750", "9000") if block["directive"] == "upstream"]
    assert {server.split(":")[1] for server in values_of(upstream, "server")} == ports


def test_the_administrators_token_is_the_registries_alone(found: dict[str, Any]) -> None:
    told = {name for name, service in found.items() if "AOT_ADMIN_TOKEN" in service.get("environment", {})}
    assert told == set(REGISTRIES)
    for name in REGISTRIES:
        settings = RegistrySettings.from_environ(found[name]["environment"])
        assert settings.admin_token == SECRETS["AOT_ADMIN_TOKEN"]


def test_workers_hold_no_credentials_of_database_and_bucket(found: dict[str, Any]) -> None:
    for name in WORKERS:
        environment = found[name]["environment"]
        assert set(environment) == {"AOT_URL", "AOT_TOKEN", "AOT_BROKER_URL"}
        assert WorkerSettings.from_environ(environment).token == "sentinel-token"


def test_workers_may_make_namespaces_and_mount_a_proc(found: dict[str, Any]) -> None:
    for name in WORKERS:
        assert found[name]["security_opt"] == ["seccomp=unconfined", "systempaths=unconfined"]


def test_no_process_of_ours_is_the_first_of_its_container(found: dict[str, Any]) -> None:
    for name, service in found.items():
        assert service.get("init", False) == ("build" in service), name


def test_the_gpu_worker_reserves_a_card(found: dict[str, Any]) -> None:
    assert found["worker-gpu"]["build"]["target"] == "worker-cuda"
    [device] = found["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_every_file_that_is_mounted_is_there(found: dict[str, Any]) -> None:
    mounted = {
        volume["source"]
        for service in found.values()
        for volume in service.get("volumes", ())
        if volume["type"] == "bind"
    }
    assert len(mounted) == 3
    assert [path for path in mounted if not Path(path).is_file()] == []


def test_images_are_pinned_to_more_than_a_major_version(found: dict[str, Any]) -> None:
    images = {service["image"] for service in found.values() if "build" not in service}
    assert [image for image in images if not re.search(r":(RELEASE\.)?\d+[.-]\d+", image)] == []


def test_the_object_store_gives_the_registry_a_user_of_its_own(found: dict[str, Any]) -> None:
    registry, root = found["registry-1"]["environment"], found["s3"]["environment"]
    assert registry["AWS_SECRET_ACCESS_KEY"] == found["s3-setup"]["environment"]["AOT_S3_SECRET_KEY"]
    assert registry["AWS_SECRET_ACCESS_KEY"] not in root.values()
    script = ROOT / "deploy/compose/s3-setup.sh"
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


def test_the_proxy_keeps_what_signatures_cover_and_writes_no_link_down() -> None:
    blocks = nginx("8750", "9000")
    [_, store] = [block for block in blocks if block["directive"] == "server"]
    [location] = [block for block in store["block"] if block["directive"] == "location"]
    assert "Host $http_host" in values_of(location, "proxy_set_header")
    assert values_of(location, "proxy_request_buffering") == ["off"]
    assert [block["args"] for block in blocks if block["directive"] == "access_log"] == [["off"]]


def nginx(port: str, store: str) -> list[dict[str, Any]]:
    """The top of the proxy's file, checked by a parser that knows nginx's directives and where they may stand."""
    text = (ROOT / "deploy/compose/nginx.conf.template").read_text()
    filled = text.replace("${AOT_PORT}", port).replace("${S3_PORT}", store)
    assert "${" not in filled
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(f"events {{}}\nhttp {{\n{filled}\n}}\n")
        file.flush()
        parsed = crossplane.parse(file.name, strict=True, single=True)
    assert parsed["status"] == "ok", parsed["errors"]
    [http] = [block for block in parsed["config"][0]["parsed"] if block["directive"] == "http"]
    top: list[dict[str, Any]] = http["block"]
    return top


def values_of(block: dict[str, Any], directive: str) -> list[str]:
    """The arguments of every such directive in `block`; of an upstream's servers, the address alone."""
    found = [inner["args"] for inner in block.get("block", ()) if inner["directive"] == directive]
    return [words[0] if block["directive"] == "upstream" else " ".join(words) for words in found]
