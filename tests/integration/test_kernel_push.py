"""Kernels in the registry: pending with the reason, live never unproven, and in nobody's way."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.errors import BundleNotFound, InvalidInput, InvalidProfile, InvalidSpec, ProfileNotFound, QualificationFailed
from aot.keys import factors_of, key_of
from aot.schema.names import Name
from aot.schema.recipe import Recipe, Route
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.bundles import PushRequest
from tests.builders import a_device, a_manifest, a_profile, a_spec, altered, manifest_text
from tests.commands import Shell, a_shell
from tests.integration import cross_builds as cross
from tests.kernel_builders import (
    a_kernel_artifact,
    a_kernel_manifest,
    a_kernel_profile,
    a_kernel_source,
    a_kernel_spec,
)
from tests.service import Service, a_service

REASON = "not run: needs a cuda:sm_90 device"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def test_pushed_kernels_are_pending_with_the_reason(service: Service) -> None:
    reply = service.push(a_kernel_manifest(), tags=("v1",))
    assert reply.state is BundleState.PENDING
    view = service.call("get_bundle", digest=reply.bundle)
    assert (view.state, view.waiting, view.routes) == (BundleState.PENDING, REASON, ("kernel",))
    build = service.call("get_build", build=reply.build)
    assert (build.state, build.waiting, build.profile) == (BuildState.QUEUED, REASON, "cuda-sm_90-triton-3.9.0")
    [listed] = service.call("search").bundles
    assert listed.waiting == REASON


def test_the_reason_outlives_a_sweep_and_no_worker_is_sent_for(service: Service) -> None:
    reply = service.push(a_kernel_manifest())
    service.queue.take()
    service.clock.advance(3600)
    service.sweep()
    assert service.call("get_build", build=reply.build).waiting == REASON
    assert service.queue.take() == []
    assert service.ask("cpu-v3").claim is None


def test_pending_kernels_can_be_resolved_by_nobody(service: Service) -> None:
    reply = service.push(a_kernel_manifest(), tags=("v1",))
    with pytest.raises(BundleNotFound):
        service.call("resolve", namespace="default", name="add", target=reply.bundle)


def test_two_targets_are_two_bundles_and_pushed_twice_is_once(service: Service) -> None:
    nvidia, amd = service.push(a_kernel_manifest()), service.push(a_kernel_manifest("rocm:gfx942"))
    assert nvidia.bundle != amd.bundle
    assert service.call("get_bundle", digest=amd.bundle).waiting == "not run: needs a rocm:gfx942 device"
    assert service.push(a_kernel_manifest()) == nvidia
    names = [view.profile.name for view in service.call("list_profiles").profiles]
    assert names == ["cpu-v3", "cuda-sm_90-triton-3.9.0", "rocm-gfx942-triton-3.9.0"]


def test_kernels_built_on_another_host_with_that_triton_are_the_same_profile(service: Service) -> None:
    service.push(a_kernel_manifest())
    toolchain = altered(a_kernel_profile().toolchain, torch="2.11.0+cu130", compiler="g++ 14.1.0")
    other = a_kernel_manifest(profile=a_kernel_profile(toolchain=toolchain))
    assert service.push(other).state is BundleState.PENDING


def test_a_claim_of_tuning_without_its_report_is_refused(service: Service) -> None:
    with pytest.raises(InvalidInput, match="claims to be tuned"):
        service.push(a_kernel_manifest(artifacts=(a_kernel_artifact(tuned=True),)))
    assert service.call("search").bundles == ()


def test_kernels_cannot_take_the_name_of_another_profile(service: Service) -> None:
    for profile in (
        altered(a_kernel_profile(), name=Name("h100")),
        altered(a_kernel_profile(), name=Name("cuda-sm_80-triton-3.9.0")),
        altered(a_kernel_profile(), device=a_device()),
    ):
        manifest = a_kernel_manifest(profile=profile)
        with pytest.raises(InvalidProfile, match=r"belong to the profile cuda-sm_90-triton-3\.9\.0"):
            service.push(manifest)


def test_no_worker_builds_kernels(service: Service) -> None:
    spec = altered(a_kernel_spec(), profile=Name("cpu-v3"))
    with pytest.raises(InvalidSpec, match="pushed: no worker builds them"):
        service.submit(spec)


def test_no_model_waits_for_a_worker_that_kernels_do_without(service: Service) -> None:
    service.push(a_kernel_manifest())
    of_kernels = a_kernel_profile()
    spec = a_spec(profile=of_kernels.name)
    for ask in (lambda: service.submit(spec), lambda: service.push(a_manifest(spec, profile=of_kernels))):
        with pytest.raises(
            InvalidProfile, match="no worker builds models for it; workers have registered cpu-v3"
        ) as no:
            ask()
        assert "start one on a machine with a cuda:sm_90 card" in no.value.hint
        assert no.value.details == {"profiles": ["cpu-v3"]}
    with pytest.raises(ProfileNotFound, match=r"known are cpu-v3\n"):
        service.submit(a_spec(profile="unknown"))
    # A worker with the card takes the name over, and builds both.
    service.register(altered(of_kernels, device=a_device()), worker="worker-2")
    assert service.submit(spec).created


@pytest.mark.parametrize("routes", [(Route.PACKAGE,), (Route.KERNEL, Route.PACKAGE)])
def test_the_route_of_a_kernel_is_its_only_one(service: Service, routes: tuple[Route, ...]) -> None:
    spec = a_kernel_spec(recipe=Recipe(routes=routes))
    with pytest.raises(InvalidInput):
        service.push(a_kernel_manifest(spec=spec))
    with pytest.raises(InvalidSpec, match="do not fit the source"):
        service.submit(a_spec(recipe=Recipe(routes=(Route.PACKAGE, Route.KERNEL))))


def test_kernels_without_a_signature_or_with_a_bad_entry_are_refused(service: Service) -> None:
    for source in (a_kernel_source(signatures=()), a_kernel_source(entry="no colon")):
        with pytest.raises(InvalidSpec):
            service.push(a_kernel_manifest(spec=a_kernel_spec(source=source)))


def test_unproven_kernels_go_live_by_no_way(service: Service) -> None:
    """Not even through a worker that says it is their profile: the one rule of proofs holds."""
    manifest = a_kernel_manifest()
    service.push(manifest)
    service.register(a_kernel_profile(), worker="worker-2")
    claim = service.ask("cuda-sm_90-triton-3.9.0", worker="worker-2").claim
    assert claim is not None and claim.build_key == key_of(factors_of(manifest.spec, manifest.profile))
    with pytest.raises(QualificationFailed, match="not proven"):
        service.publish(claim, manifest)


def test_models_are_pushed_as_before(service: Service) -> None:
    text, _ = manifest_text(a_manifest())
    service.upload((*a_manifest().spec.blobs, *a_manifest().blobs))
    reply = service.call("push", PushRequest(manifest=text))
    assert service.call("get_build", build=reply.build).waiting == ""


# The command line


SIGNATURES = """
[[signature]]
name = "f32"
types = { x = "*fp32", y = "*fp32", out = "*fp32", n = "i32" }
constants = { BLOCK = 1024 }
divisible = ["x", "y", "out"]
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with a_shell(tmp_path_factory.mktemp("shell")) as shell:
        yield shell


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[str, ...]:
    tree = cross.write_kernels(tmp_path / "src")
    (tmp_path / "signatures.toml").write_text(SIGNATURES)
    options = ("--source", str(tree), "--entry", "kernels:add", "--signatures", str(tmp_path / "signatures.toml"))
    return ("kernel", "build", "add:v1", *options)


@pytest.mark.torch
def test_kernels_are_built_for_two_targets_written_and_pushed(
    shell: Shell, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    targets = ("--target", "cuda:sm_80", "--target", "rocm:gfx1100")
    ran = shell.aot(*arguments, *targets, "--push", "--as-bundle", str(out), "--json")
    assert ran.code == 0, ran.err
    nvidia, amd = json.loads(ran.out)
    assert (nvidia["target"], nvidia["state"], nvidia["tuned"]) == ("cuda:sm_80", "pending", False)
    assert (amd["target"], amd["directory"]) == ("rocm:gfx1100", str(out / "rocm-gfx1100"))
    assert sorted(path.name for path in out.iterdir()) == ["cuda-sm_80", "rocm-gfx1100"]
    shown = shell.aot("show", nvidia["bundle"])
    assert "state      pending: not run: needs a cuda:sm_80 device" in shown.lines
    inspected = shell.aot("inspect", amd["directory"])
    assert "  untuned: built without the card, no configuration was measured" in inspected.lines
    assert "  needs capability rocm:gfx1100" in inspected.lines
    assert shell.aot("push", nvidia["directory"]).out.startswith(f"{nvidia['bundle']} pending")


@pytest.mark.torch
def test_kernels_that_are_built_and_pushed_twice_are_one_bundle(shell: Shell, arguments: tuple[str, ...]) -> None:
    words = (*arguments, "--target", "cuda:sm_89", "--push")
    [first] = json.loads(shell.aot(*words, "--json").out)
    again = shell.aot(*words)
    assert again.code == 0, again.err
    assert again.lines == [
        f"cuda:sm_89 {first['bundle']} untuned, not run",
        f"  pending, and was before: nothing was added: build {first['build']} needs a cuda:sm_89 device",
    ]


@pytest.mark.torch
def test_a_bundle_on_disk_is_pushed_later_with_its_source(
    shell: Shell, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "src" / "kernels.py").write_text(cross.KERNELS + "# not uploaded yet\n")
    out = tmp_path / "out"
    assert shell.aot(*arguments, "--target", "cuda:sm_86", "--as-bundle", str(out)).code == 0
    refused = shell.aot("push", str(out / "cuda-sm_86"))
    assert refused.code != 0 and "--source TREE" in refused.err
    pushed = shell.aot("push", str(out / "cuda-sm_86"), "--source", str(tmp_path / "src"))
    assert pushed.code == 0 and " pending" in pushed.out


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--target", "cuda:sm_91", "--push"), "did you mean cuda:sm_90"),
        (("--target", "cuda:sm_80"), "nothing would be kept"),
        (("--target", "cuda:sm_80", "--push", "--source", "/nowhere"), "/nowhere is no directory"),
        (("--target", "cuda:sm_80", "--push", "--signatures", "/nowhere.toml"), "/nowhere.toml cannot be read"),
    ],
)
def test_what_cannot_be_built_is_told_before_anything_is(
    shell: Shell, arguments: tuple[str, ...], more: tuple[str, ...], text: str
) -> None:
    ran = shell.aot(*arguments, *more)
    assert ran.code == 2
    assert text in ran.err


def test_the_targets_are_listed(shell: Shell) -> None:
    ran = shell.aot("kernel", "targets", "--json")
    listed = {one["target"]: one for one in json.loads(ran.out)}
    assert len(listed) == 15
    assert listed["rocm:gfx950"] == {"target": "rocm:gfx950", "warp_size": 64, "shared_bytes": 163840}
