"""The compose file: links that clients and the worker can both follow, and a worker whose sandbox works."""

import re
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[2] / "docker-compose.yml"
VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]([^${}]*))?\}")


def services(**variables: str) -> dict[str, Any]:
    """The services, with `${NAME:-default}` filled in as compose does it, the innermost first."""
    text = FILE.read_text()
    while filled := VARIABLE.search(text):
        text = text.replace(filled[0], variables.get(filled[1]) or filled[2] or "")
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def test_links_lead_to_the_registry_from_the_host_and_from_the_worker() -> None:
    for variables, port in (({}, "8750"), ({"AOT_PORT": "9000"}, "9000")):
        found = services(**variables)
        registry, worker = found["registry"], found["worker"]
        assert registry["environment"]["AOT_PUBLIC_URL"] == f"http://localhost:{port}"
        assert str(registry["environment"]["AOT_PORT"]) == port
        assert registry["ports"] == [f"{port}:{port}"]
        assert worker["network_mode"] == "service:registry", "localhost must be the registry there as well"
        assert worker["environment"]["AOT_URL"] == f"http://localhost:{port}"
    url = "https://aot.example.com"
    assert services(AOT_PUBLIC_URL=url)["registry"]["environment"]["AOT_PUBLIC_URL"] == url


def test_the_worker_may_make_namespaces_and_mount_a_proc() -> None:
    assert services()["worker"]["security_opt"] == ["seccomp=unconfined", "systempaths=unconfined"]
