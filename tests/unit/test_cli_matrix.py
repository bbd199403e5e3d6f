"""`aot matrix`: a fleet against bundles."""

from pathlib import Path

import pytest

from aot.cli.matrix import cell_text, cross, matrix_lines
from aot.config import Config
from aot.schema.codec import decode, encode
from aot.schema.decision import Level
from aot.schema.environment import Environment
from aot.schema.spec import Spec
from aot.select import verdict_on
from tests.builders import a_manifest, a_node, a_profile, a_spec, an_artifact, an_environment, host_guards
from tests.fleet import as_a_fresh_process, recorded_hosts
from tests.simulator import RegistrySimulator

V4 = a_profile("cpu-v4", capability="cpu:x86-64-v4")
HOSTS = {
    "good": an_environment(),
    "arm": an_environment(node=a_node(machine="aarch64")),
    "unseen": Environment(node=an_environment().node),
}


@pytest.fixture
def simulator() -> RegistrySimulator:
    return RegistrySimulator()


@pytest.fixture
def config(simulator: RegistrySimulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr("aot.client.connect.open_client", lambda *_, **__: simulator.client())
    return Config(
        cache_dir=tmp_path,
        data_dir=tmp_path,
        url="http://registry.test",
        token="a-token",
        trusted_keys=(str(simulator.key.public),),
    )


def other(**fields: object) -> Spec:
    return a_spec("other", **fields)  # type: ignore[arg-type]


def test_a_cell_is_a_level_with_the_first_kind_of_reason(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest())
    rows = {row.host: row for row in cross(["mini"], HOSTS, config=config).hosts}
    assert {host: cell_text(row.cells[0]) for host, row in rows.items()} == {
        "good": "fits",
        "arm": "rejected: machine",
        "unseen": "undecided: torch",
    }
    assert rows["arm"].unserved == ("default/mini:latest",)
    assert rows["unseen"].undecided == ("default/mini:latest",) and not rows["unseen"].unserved
    assert rows["good"].chosen and not rows["good"].undecided


def test_a_host_is_unserved_where_one_of_several_references_has_nothing(
    simulator: RegistrySimulator, config: Config
) -> None:
    simulator.add(a_manifest())
    simulator.add(a_manifest(other(profile="cpu-v4"), profile=V4))
    crossed = cross(["mini", "other"], HOSTS, config=config)
    assert [column.title for column in crossed.columns] == ["mini:latest cpu-v3", "other:latest cpu-v4"]
    assert crossed.hosts[0].unserved == ("default/other:latest",)
    assert matrix_lines(crossed)[-1] == "3 host(s): 0 served, 0 undecided until load, 3 with nothing that fits"


def test_artifacts_that_differ_are_counted(simulator: RegistrySimulator, config: Config) -> None:
    artifacts = (an_artifact(), an_artifact(host_guards=host_guards(torch="2.11.0+cpu")))
    simulator.add(a_manifest(artifacts=artifacts))
    [row] = cross(["mini"], {"good": HOSTS["good"]}, config=config).hosts
    assert cell_text(row.cells[0]) == "fits (1 of 2)"


@pytest.mark.parametrize("width", [80, 160, None])
def test_the_table_keeps_to_the_width_and_every_cell_is_shown(
    simulator: RegistrySimulator, config: Config, width: int | None
) -> None:
    for index in range(6):
        profile = a_profile(f"profile-{index}-with-a-name")
        simulator.add(a_manifest(a_spec(f"model-{index}", profile=profile.name), profile=profile))
    crossed = cross([f"model-{index}" for index in range(6)], HOSTS, config=config)
    lines = matrix_lines(crossed, width=width)
    assert width is None or max(map(len, lines)) <= width
    assert sum(line.count("rejected: machine") for line in lines) == 6
    assert (sum(line.startswith("host ") for line in lines) > 1) is (width is not None)


def test_the_recorded_fleet_is_judged_as_the_rules_judge_it(simulator: RegistrySimulator, config: Config) -> None:
    manifest = a_manifest()
    simulator.add(manifest)
    hosts = recorded_hosts()
    crossed = cross(["mini"], hosts, config=config)
    expected = {
        host: verdict_on(manifest.artifacts[0], as_a_fresh_process(environment)).level
        for host, environment in hosts.items()
    }
    assert {row.host: row.cells[0].level for row in crossed.hosts} == expected
    assert len(set(expected.values())) > 1
    counts = matrix_lines(crossed)[-3].split()
    assert counts[1:] == [str(list(expected.values()).count(level)) for level in Level]


def test_json_holds_every_reason_kind(simulator: RegistrySimulator, config: Config) -> None:
    simulator.add(a_manifest())
    crossed = cross(["mini"], HOSTS, config=config)
    assert decode(encode(crossed), type(crossed)) == crossed
    assert crossed.hosts[2].cells[0].kinds[:2] == ("torch", "libc")
