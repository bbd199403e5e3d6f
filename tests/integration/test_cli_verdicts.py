"""`aot doctor`, `explain` and `matrix` as processes: a host file says elsewhere what `load` says on the host."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aot.config import Config
from aot.environment import observe_environment
from aot.runtime.pod import load
from aot.schema.codec import convert
from aot.schema.decision import Decision, Level
from aot.schema.environment import host_cpu
from aot.schema.guard import HostGuard
from aot.schema.lock import Lock, LockEntry, encode_lock
from aot.schema.names import Reference
from aot.schema.profile import AMX, CPU_TARGETS
from tests.builders import a_manifest, a_profile, a_spec, a_toolchain, an_artifact, host_guards
from tests.commands import Shell, a_shell
from tests.fleet import HOSTS

SETTINGS = {"deterministic": "false", "default_dtype": "float32", "matmul_precision": "highest", "grad": "true"}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """default/mini for every CPU target and this machine's torch, and for a torch that it does not have."""
    here = str(observe_environment().container.torch)
    with a_shell(tmp_path_factory.mktemp("shell")) as shell:
        wanted = [(a_profile(name, capability=capability), here) for name, capability in CPU_TARGETS.items()]
        other = a_toolchain(torch="2.11.0+cpu")
        wanted.append((a_profile("cpu-other-torch", capability="cpu:x86-64", toolchain=other), other.torch))
        for profile, release in wanted:
            shell.service.register(profile)
            spec = a_spec(profile=profile.name)
            build = shell.service.submit(spec, tags=("latest",)).build
            guards = host_guards(profile.capability, torch=release)
            guards += tuple(HostGuard(kind=kind, value=value) for kind, value in SETTINGS.items())
            guards += (HostGuard(kind="kernel", value="5.16"),) if profile.capability == AMX else ()
            artifact = an_artifact(capability=profile.capability, host_guards=guards)
            manifest = a_manifest(spec, profile=profile, artifacts=(artifact,))
            shell.service.publish(shell.service.claim(profile.name, build=build.id), manifest)
        yield shell


@pytest.fixture
def host(shell: Shell, tmp_path: Path) -> Path:
    path = tmp_path / "host.json"
    path.write_text(shell.aot("doctor", "--json").out)
    return path


def loaded(shell: Shell, tmp_path: Path) -> tuple[Decision, ...]:
    """What `load` decides in this process, settings of torch included."""
    config = Config.from_environ({**shell.environ, "AOT_CACHE_DIR": str(tmp_path / "pod")})
    model = load("mini", torch.nn.Linear(4, 4), config=config)
    assert model.selection is not None, model.reasons
    return model.selection.decisions


def explained(shell: Shell, *arguments: str) -> tuple[Decision, ...]:
    return convert(shell.aot("explain", "mini", *arguments, "--json").json["decisions"], tuple[Decision, ...])


def test_a_host_file_gives_elsewhere_the_verdicts_that_load_gives_on_the_host(
    shell: Shell, host: Path, tmp_path: Path
) -> None:
    told = explained(shell, "--host", str(host))
    assert told == loaded(shell, tmp_path)
    assert {decision.verdict.level for decision in told} >= {Level.FITS, Level.REJECTED}
    assert told == explained(shell)
    # Of each target, AMX among them, what the CPU itself runs is what fits.
    own = host_cpu(observe_environment().node)
    assert own is not None
    fitting = {decision.bundle for decision in told if decision.verdict.level is Level.FITS}
    published = shell.service.call("search").bundles
    targets = {view.digest: CPU_TARGETS[view.profile] for view in published if view.profile in CPU_TARGETS}
    assert fitting == {digest for digest, capability in targets.items() if own.runs(capability)}


def test_settings_that_only_load_sees_are_assumed_and_said_to_be(shell: Shell, host: Path, tmp_path: Path) -> None:
    ran = shell.aot("explain", "mini", "--host", str(host))
    assert ran.code == 0 and "is taken as torch starts" in ran.err
    torch.use_deterministic_algorithms(True)
    try:
        decided = loaded(shell, tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    assert {decision.verdict.level for decision in decided} == {Level.REJECTED}


def test_a_described_host_that_nothing_fits_is_told_what_to_build(shell: Shell) -> None:
    ran = shell.aot("explain", "mini", "--host", "h100-sxm,driver=580.65.06,torch=2.13.0+cu130")
    assert ran.code == 4
    assert any(line.startswith("  aot build default/mini:latest --source SOURCE") for line in ran.lines)
    narrow = shell.with_environ(COLUMNS="80").aot("explain", "mini", "--host", "h100-sxm,torch=2.13.0+cu130")
    assert max(map(len, narrow.lines)) <= 80 and narrow.lines[0].split()[-1] == "coverage"


def test_an_unknown_card_is_bad_input(shell: Shell) -> None:
    ran = shell.aot("explain", "mini", "--host", "h1000-sxm")
    assert (ran.code, ran.out) == (2, "") and "h100-sxm" in ran.err
    assert shell.aot("explain", "unknown", "--host", "h100-sxm").code == 7
    assert shell.aot("explain", "mini", "--host", "nowhere.json").code == 2


def test_what_changed_since_a_lock_is_no_failure(shell: Shell, tmp_path: Path) -> None:
    old = a_manifest(a_spec(profile="cpu-x86-64"), profile=a_profile("cpu-x86-64", capability="cpu:x86-64-v2"))
    entry = LockEntry(
        reference=Reference.parse("mini"),
        profile=old.profile.name,
        bundle=explained(shell)[0].bundle,
        build_key=old.build_key,
        factors=old.factors,
    )
    lock = tmp_path / "aot.lock"
    lock.write_bytes(encode_lock(Lock(entries=(entry,))))
    ran = shell.aot("explain", "mini", "--since", str(lock))
    assert ran.code == 0
    assert "  capability was cpu:x86-64-v2, is cpu:x86-64" in ran.lines
    assert len(shell.aot("explain", "mini", "--since", str(lock), "--json").json) == 1 + len(CPU_TARGETS)
    assert shell.aot("explain", "mini", "--since", str(lock), "--host", "no-gpu").code == 2


def test_a_fleet_is_crossed_and_the_exit_code_tells_of_a_host_without(shell: Shell, host: Path) -> None:
    fits = shell.aot("matrix", "mini", "--hosts", str(host))
    assert (fits.code, fits.lines[-1].startswith("1 host(s): 1 served")) == (0, True)
    fleet = shell.aot("matrix", "mini", "--hosts", str(HOSTS), "--hosts", "no-gpu,torch=2.13.0", "--json")
    assert fleet.code == 4
    assert len(fleet.json["hosts"]) == len(list(HOSTS.glob("*.json"))) + 1
    assert shell.aot("matrix", "mini", "--hosts", str(host), str(host)).code == 2
    assert shell.aot("matrix", "mini").code == 2
