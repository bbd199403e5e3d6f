"""Hosts as they are found in the field, each judged against artifacts for many targets."""

import pytest

from aot.schema.decision import Accepted, Undecided
from aot.schema.environment import Environment
from aot.select import verdict_on
from tests.fleet import ARTIFACTS, TABLE, as_a_fresh_process, recorded_hosts, table

HOSTS = recorded_hosts()


def test_there_is_a_fleet() -> None:
    assert len(HOSTS) >= 40


def test_the_verdicts_are_those_that_were_reviewed() -> None:
    assert table() == TABLE.read_text()


@pytest.mark.parametrize("name", sorted(ARTIFACTS))
def test_every_artifact_fits_somewhere_and_not_everywhere(name: str) -> None:
    levels = {type(verdict_on(ARTIFACTS[name], as_a_fresh_process(host))) for host in HOSTS.values()}
    assert len(levels) > 1
    assert levels & {Accepted, Undecided}


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_code_of_a_host_s_own_kind_is_judged_by_its_own_card_and_cpu(host: str) -> None:
    """What fits has a capability that this host runs; checked against the catalogue, not against the rules."""
    environment = as_a_fresh_process(HOSTS[host])
    for artifact in ARTIFACTS.values():
        if isinstance(verdict_on(artifact, environment), Accepted):
            assert any(device.runs(artifact.capability) for device in devices(environment))
            assert environment.container.torch in [
                guard.value for guard in artifact.host_guards if guard.kind == "torch"
            ]


def devices(environment: Environment) -> list:
    from aot.schema.capability import Capability

    cpu = environment.node.cpu
    whole = [Capability.of_cpu(cpu.level, environment.node.cpu_features or ())] if cpu else []
    return [*whole, *(gpu.capability for gpu in environment.node.gpus or ())]
