"""Kernels of bundles are searched by name, capability, bundle and blob; page by page; by those who may read them."""

from pathlib import Path

import pytest
from sqlalchemy import event

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
from tests.statements import plan_of

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
    assert sorted(names(service, text="dot_")) == ["cubin/dot-sm_90.cubin", "cubin/spill-sm_80.cubin"]
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


def named(*names: str) -> Artifact:
    """An artifact with a kernel of each name."""
    return an_artifact(
        binaries=tuple(
            KernelFacts(name=name, path=a_file().path, capability=Capability("cuda:sm_80"), size_bytes=1)
            for name in names
        )
    )


LONG = "cutlass_" * 40
NAMES = ("add", "add_kernel", "Add", "a_d", "addé", "add_\U0010ffff", f"{LONG}1", f"{LONG}2", "b", "ad%")


def found_names(service: Service, text: str) -> list[str]:
    """Page by page, two a page."""
    found, after = [], None
    while True:
        place = {"after": after} if after else {}
        listing = service.call("list_kernels", query={"text": text, "limit": 2, **place})
        found += [kernel.name for kernel in listing.kernels]
        after = listing.next
        if after is None:
            return found


def test_a_name_is_found_by_how_it_begins_letter_by_letter_and_in_order(service: Service) -> None:
    publish(service, named(*NAMES))
    publish(service, named("add"), source=a_source(b"another"))
    assert found_names(service, "add") == ["add", "add", "add_kernel", "add_\U0010ffff", "addé"]
    assert found_names(service, "add_") == ["add_kernel", "add_\U0010ffff"]
    assert found_names(service, "a_") == ["a_d"]
    assert found_names(service, "ad%") == ["ad%"]
    assert found_names(service, "Add") == ["Add"]
    assert found_names(service, "kernel") == []
    assert found_names(service, "add_\U0010ffff") == ["add_\U0010ffff"]
    assert len(found_names(service, "")) == len(NAMES) + 1, "what is empty asks for nothing"


def test_names_that_no_index_takes_whole_are_found_by_all_of_what_is_asked(service: Service) -> None:
    publish(service, named(*NAMES, "x" * 8000))
    assert found_names(service, LONG) == [f"{LONG}1", f"{LONG}2"]
    assert found_names(service, f"{LONG}2") == [f"{LONG}2"]
    assert found_names(service, "x" * 3000) == ["x" * 8000]


def test_a_page_of_another_question_is_refused(service: Service) -> None:
    publish(service, named(*NAMES))
    newest = service.call("list_kernels", query={"limit": 1}).next
    by_name = service.call("list_kernels", query={"limit": 1, "text": "add"}).next
    for query in ({"text": "add", "after": newest}, {"text": "b", "after": by_name}, {"after": by_name}):
        with pytest.raises(InvalidInput, match="`next` of a listing"):
            service.call("list_kernels", query=query)


def test_a_target_finds_what_it_runs_and_says_what_that_is(service: Service) -> None:
    def compiled_for(*capabilities: str) -> Artifact:
        facts = [
            KernelFacts(name=one, path=a_file().path, capability=Capability(one), size_bytes=1) for one in capabilities
        ]
        return an_artifact(binaries=tuple(facts))

    held = ("cuda:sm_80", "cuda:sm_86", "cuda:sm_90", "cuda:sm_90a", "cuda:compute_80", "cuda:sm_100a", "rocm:gfx942")
    publish(service, compiled_for(*held, "cuda:sm_999"))

    def found(capability: str) -> tuple[set[str], tuple[str, ...]]:
        listing = service.call("list_kernels", query={"capability": capability})
        return {kernel.capability for kernel in listing.kernels}, listing.capabilities

    runs = {"cuda:compute_80", "cuda:sm_90", "cuda:sm_90a"}
    assert found("cuda:sm_90") == (runs, tuple(sorted(runs))) == found("cuda:sm_90a")
    assert found("cuda:sm_89")[0] == {"cuda:sm_80", "cuda:sm_86", "cuda:compute_80"}
    assert found("cuda:sm_80")[0] == {"cuda:sm_80", "cuda:compute_80"}
    assert found("rocm:gfx942:xnack-")[0] == {"rocm:gfx942"}
    assert found("cuda:sm_999")[0] == {"cuda:sm_999"}, "of what is not known, only itself"
    assert found("rocm:gfx1100") == (set(), ())
    assert service.call("list_kernels").capabilities is None


@pytest.mark.parametrize(
    "query", [{}, {"text": "add"}, {"text": "add", "capability": "cuda:sm_80"}, {"capability": "cuda:sm_80"}]
)
def test_no_listing_sorts_all_that_matches_or_reads_a_manifest(service: Service, query: dict[str, str]) -> None:
    publish(service, named(*NAMES))
    engine, seen = service.deps.sessions.engine, []

    def look(_connection, _cursor, statement, parameters, *_) -> None:
        seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", look)
    assert service.call("list_kernels", query=query).kernels
    service.call("search")
    event.remove(engine, "before_cursor_execute", look)
    assert [statement for statement, _ in seen if "bundles.manifest" in statement] == []
    [(statement, parameters)] = [one for one in seen if "kernels.spill_bytes" in one[0]]
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            steps = "\n".join(plan_of(statement, parameters, connection))
        assert ("ix_kernels_head" if "text" in query else "ix_bundles_created") in steps.splitlines()[0]
        assert "B-TREE FOR ORDER BY" not in steps


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
        assert "cuda:sm_86 runs code for: cuda:sm_80" in shell.aot("kernels", "--capability", "cuda:sm_86").err
        nothing = shell.aot("kernels", "--capability", "cuda:sm_120")
        assert "no kernel here is compiled for anything that cuda:sm_120 runs" in nothing.err
        shown = shell.aot("show", bundle)
        assert "  holds 2 kernel(s), 15.5 kB of instructions, 1 with local memory" in shown.out.splitlines()
