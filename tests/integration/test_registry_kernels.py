"""Kernels of bundles are searched by name, capability, bundle and blob; page by page; by those who may read them."""

from pathlib import Path

import pytest

from aot.errors import InvalidInput
from aot.facts.kernels import read_kernels
from aot.schema.artifact import Artifact, KernelFacts
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.state import BundleState
from aot.schema.wire.bundles import WithdrawRequest
from aot.schema.wire.kernels import KernelView
from aot.schema.wire.workers import Scope
from tests.builders import (
    a_file,
    a_manifest,
    a_profile,
    a_qualification,
    a_source,
    a_spec,
    an_agreement,
    an_artifact,
)
from tests.commands import a_shell
from tests.kernels import GOLDEN
from tests.service import Service, a_service

HOST = Capability("cpu:x86-64-v3")
CODE_OBJECTS = ("add-sm_80.cubin", "dot-sm_90.cubin", "spill-sm_80.cubin", "add-gfx942.hsaco")


def an_artifact_with_kernels(*names: str, **deviations) -> Artifact:
    """An artifact that holds real code objects, with the facts that their bytes say."""
    files = tuple(a_file(f"cubin/{name}", (GOLDEN / name).read_bytes()) for name in names)
    binaries = read_kernels([(f"cubin/{name}", GOLDEN / name) for name in names], HOST)
    fields = {"files": (a_file(), *files), "binaries": binaries}
    return an_artifact(**(fields | deviations))


@pytest.fixture
def service(tmp_path):
    with a_service(tmp_path) as service:
        service.register(a_profile())
        yield service


def publish(service: Service, *artifacts: Artifact, **fields) -> Digest:
    spec = a_spec(**fields)
    build = service.submit(spec).build
    points = ({"batch": 1}, {"batch": 32})
    agreements = [
        an_agreement(artifact=index, point=point, variant=variant)
        for index in range(len(artifacts))
        for point in points
        for variant in ("", "second call")
    ]
    manifest = a_manifest(spec, artifacts=artifacts, qualification=a_qualification(agreements=tuple(agreements)))
    return service.publish(service.claim(spec.profile, build=build.id), manifest).bundle


def names(service: Service, token: str | None = None, **query) -> list[str]:
    return [kernel.path for kernel in service.call("list_kernels", query=query, token=token).kernels]


def test_a_kernel_is_listed_with_its_numbers_and_its_bundle(service: Service) -> None:
    bundle = publish(service, an_artifact_with_kernels("spill-sm_80.cubin"))
    listing = service.call("list_kernels")
    assert listing.next is None
    assert listing.kernels == (
        KernelView(
            name="dot_kernel",
            capability="cuda:sm_80",
            bundle=bundle,
            namespace="default",
            model="mini",
            profile="cpu-v3",
            state=BundleState.LIVE,
            artifact=0,
            path="cubin/spill-sm_80.cubin",
            blob=Digest.of((GOLDEN / "spill-sm_80.cubin").read_bytes()),
            size_bytes=14848,
            registers=32,
            shared_bytes=0,
            spill_bytes=712,
        ),
    )


def test_kernels_are_narrowed_by_name_capability_bundle_and_blob(service: Service) -> None:
    first = publish(service, an_artifact_with_kernels(*CODE_OBJECTS))
    second = publish(service, an_artifact_with_kernels("add-sm_80.cubin"), source=a_source(b"another"), name="other")
    blob = Digest.of((GOLDEN / "add-sm_80.cubin").read_bytes())
    assert names(service, bundle=second) == ["cubin/add-sm_80.cubin"]
    assert names(service, text="dot_") == ["cubin/dot-sm_90.cubin", "cubin/spill-sm_80.cubin"]
    assert names(service, text="DOT%") == []
    assert names(service, capability="rocm:gfx942") == ["cubin/add-gfx942.hsaco"]
    assert names(service, capability="cuda:sm_80", text="dot") == ["cubin/spill-sm_80.cubin"]
    assert {kernel.bundle for kernel in service.call("list_kernels", query={"blob": blob}).kernels} == {first, second}
    assert names(service, model="other") == ["cubin/add-sm_80.cubin"]
    assert names(service, namespace="elsewhere") == []


def test_kernels_come_in_pages_the_newest_bundle_first(service: Service) -> None:
    publish(service, an_artifact_with_kernels(*CODE_OBJECTS))
    service.clock.advance(1)
    newest = publish(
        service,
        an_artifact_with_kernels("add-sm_80.cubin"),
        an_artifact_with_kernels("dot-sm_90.cubin", region="block"),
        source=a_source(b"newer"),
    )
    whole = service.call("list_kernels").kernels
    assert [kernel.artifact for kernel in whole if kernel.bundle == newest] == [0, 1]
    assert whole[0].bundle == newest
    paged, after = [], None
    while True:
        query = {"limit": 2} | ({"after": after} if after else {})
        listing = service.call("list_kernels", query=query)
        paged += listing.kernels
        after = listing.next
        if after is None:
            break
    assert (tuple(paged), len(paged)) == (whole, 6)


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 501},
        {"after": "yesterday"},
        {"after": f"2026-01-01T00:00:00+00:00~{Digest.of(b'')}"},
        {"after": f"2026-01-01T00:00:00+00:00~{Digest.of(b'')}~-1"},
        {"after": f"2026-01-01T00:00:00+00:00~{Digest.of(b'')}~{1 << 70}"},
        {"capability": "fast"},
        {"bundle": "sha256:1"},
        {"state": "sleeping"},
    ],
)
def test_questions_that_mean_nothing_are_refused(service: Service, query) -> None:
    with pytest.raises(InvalidInput):
        service.call("list_kernels", query=query)


def test_kernels_are_seen_by_readers_of_their_namespace(service: Service) -> None:
    publish(service, an_artifact_with_kernels("add-sm_80.cubin"))
    assert names(service, service.token(Scope.READ)) == ["cubin/add-sm_80.cubin"]
    assert names(service, service.token(Scope.READ, namespaces=("other",))) == []


def test_the_state_of_a_kernel_is_that_of_its_bundle(service: Service) -> None:
    bundle = publish(service, an_artifact_with_kernels("add-sm_80.cubin"))
    service.call("withdraw", WithdrawRequest(reason="wrong"), digest=bundle)
    assert [kernel.state for kernel in service.call("list_kernels").kernels] == [BundleState.WITHDRAWN]
    assert names(service, state="live") == []
    assert names(service, state="withdrawn") == ["cubin/add-sm_80.cubin"]


def test_kernels_of_a_pushed_bundle_are_pending(service: Service) -> None:
    service.push(a_manifest(artifacts=(an_artifact_with_kernels("add-sm_80.cubin"),)))
    assert [kernel.state for kernel in service.call("list_kernels").kernels] == [BundleState.PENDING]


@pytest.mark.parametrize(
    ("deviation", "words"),
    [
        ({"path": "cubin/missing.cubin"}, "has no such file"),
        ({"registers": -1}, "a number that no kernel has"),
        ({"size_bytes": 1 << 63}, "a number that no kernel has"),
    ],
)
def test_kernels_that_cannot_be_are_refused(service: Service, deviation, words) -> None:
    fields = {"name": "k", "path": a_file().path, "capability": HOST, "size_bytes": 1} | deviation
    with pytest.raises(InvalidInput, match=words):
        publish(service, an_artifact(binaries=(KernelFacts(**fields),)))


def test_the_command_lists_kernels(tmp_path: Path) -> None:
    with a_shell(tmp_path) as shell:
        shell.service.register(a_profile())
        bundle = publish(shell.service, an_artifact_with_kernels("add-sm_80.cubin", "spill-sm_80.cubin"))
        ran = shell.aot("kernels", "--name", "dot")
        assert ran.code == 0, ran.err
        heading, row = ran.out.splitlines()
        assert " ".join(heading.split()) == "kernel for registers shared spills bytes model bundle state"
        assert row.split()[:7] == ["dot_kernel", "cuda:sm_80", "32", "0", "712", "14848", "default/mini"]
        ran = shell.aot("kernels", "--capability", "cuda:sm_80", "--bundle", bundle, "--limit", "1", "--json")
        assert [kernel["name"] for kernel in ran.json["kernels"]] == ["add_kernel"]
        rest = shell.aot("kernels", "--capability", "cuda:sm_80", "--after", ran.json["next"], "--json")
        assert [kernel["name"] for kernel in rest.json["kernels"]] == ["dot_kernel"]
        assert "there is more: --after" in shell.aot("kernels", "--limit", "1").err
        assert shell.aot("kernels", "--capability", "fast").code == 2
        shown = shell.aot("show", bundle)
        assert "  holds 2 kernel(s), 15.5 kB of instructions, 1 with local memory" in shown.out.splitlines()
