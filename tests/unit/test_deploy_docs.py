"""docs/deploy.md against the code: every variable that is read, with the default that holds, and files that exist."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from registry.db.session import open_sessions
from registry.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deploy.md").read_text()
# Told by a parent to its own child: nobody sets it.
PRIVATE = {"AOT_EVENTS_FD"}


def variables_read() -> set[str]:
    """Every string of the code that is a variable's name and nothing else, as it stands where variables are read."""
    return {
        node.value
        for package in ("aot", "registry", "worker")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"AOT_[A-Z][A-Z_]*", node.value)
    }


def rows() -> dict[str, str]:
    """The default by the variable's name, as the page's tables of settings say them."""
    found = {}
    for names, default in re.findall(r"^\| (`AOT_[^|]*) \| ([^|]*) \|", PAGE, re.M):
        variables, defaults = re.findall(r"`(AOT_\w+)`", names), default.split(", ")
        for index, variable in enumerate(variables):
            found[variable] = (defaults[index] if len(defaults) == len(variables) else default).strip("`")
    return found


def test_the_page_lists_every_variable_that_the_code_reads_and_no_other() -> None:
    read = variables_read() - PRIVATE
    assert {"AOT_URL", "AOT_DATABASE_URL", "AOT_WORKER_NAME"} < read
    assert set(rows()) == read


def test_the_page_says_how_many_connections_a_replica_holds(tmp_path: Path) -> None:
    sessions = open_sessions(f"sqlite:///{tmp_path / 'registry.sqlite3'}")
    pools = [engine.pool for engine in (sessions.engine, sessions.glancing_engine)]
    most = sum(pool.size() + pool._max_overflow for pool in pools)  # type: ignore[attr-defined]
    kept = sum(pool.size() for pool in pools)  # type: ignore[attr-defined]
    sessions.close()
    assert f"opens at most {most} connections to the database" in PAGE and f"keeps up to {kept} of those open" in PAGE
    [default, raised] = re.findall(r"`max_connections` is (\d+) unless you raise it, say to (\d+)", PAGE)[0]
    assert 3 * kept < int(default), "three replicas fit while little is asked of them"
    assert 4 * most < int(raised)


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("AOT_LEASE_SECONDS", "lease"),
        ("AOT_ATTEMPT_SECONDS", "attempt_lives"),
        ("AOT_RESEND_SECONDS", "resend_after"),
        ("AOT_LINK_SECONDS", "link_lives"),
        ("AOT_SEEN_SECONDS", "seen_every"),
        ("AOT_KEEP_SECONDS", "keep"),
        ("AOT_KEEP_OUT_SECONDS", "keep_out"),
        ("AOT_KEEP_PENDING_SECONDS", "keep_pending"),
        ("AOT_GRACE_SECONDS", "grace"),
        ("AOT_MAX_ATTEMPTS", "max_attempts"),
        ("AOT_MAX_BODY_BYTES", "max_body_bytes"),
        ("AOT_HOST", "host"),
        ("AOT_PORT", "port"),
        ("AOT_BLOB_URL", "blob_url"),
    ],
)
def test_the_defaults_are_those_of_the_code(variable: str, field: str) -> None:
    unset, said = Settings.from_environ({}), Settings.from_environ({variable: rows()[variable]})
    assert getattr(said, field) == getattr(unset, field)


def test_files_that_the_page_names_exist() -> None:
    named = set(re.findall(r"(?<!exec )deploy/[\w./-]*\w/?", PAGE))
    assert len(named) >= 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_pod_example_is_yaml_and_pulls_with_options_that_exist() -> None:
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
    [init] = next(block for block in blocks if "initContainers" in block)["initContainers"]
    from typer.main import get_command

    from aot.cli.app import create_app

    options = {
        option
        for parameter in get_command(create_app()).commands["pull"].params  # type: ignore[attr-defined]
        for option in parameter.opts
    }
    assert init["args"][0] == "pull"
    assert {word for word in init["args"] if word.startswith("--")} <= options


def test_the_bucket_policy_is_the_one_that_is_described() -> None:
    [section] = re.findall(r"## Permissions in the bucket\n(.*?)\n## ", PAGE, re.S)
    described = set(re.findall(r"`(s3:\w+)`", section))
    assert described == set(re.findall(r'"(s3:\w+)"', (ROOT / "deploy/s3-policy.json").read_text()))
