"""A package's kernels for a card that is not here: out of a proven bundle, pending, and live by a worker alone."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aot.bundle import read_bundle
from aot.bundle.hashing import blob_of
from aot.cache import LocalCache
from aot.cli.bundles import manifest_lines
from aot.compile.kernels.again import compile_kept, lower_kept
from aot.compile.kernels.kept import KEPT_FILE, KeptKernels, KernelOptions, pack_kept
from aot.compile.kernels.run import compile_kept_kernels
from aot.compile.kernels.targets import target_for
from aot.errors import BackendFailed, InvalidProfile, QualificationFailed
from aot.facts import read_cubin
from aot.hosts import parse_host
from aot.keys import factors_of, key_of
from aot.pipeline.recheck import refuse_false_facts
from aot.proof import faults_of
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.decision import Level
from aot.schema.environment import Environment
from aot.schema.manifest import Manifest, decode_manifest
from aot.schema.spec import File, Limits
from aot.schema.state import BundleState
from aot.schema.wire.blobs import DownloadLinksRequest
from aot.select import Policy, verdict_on
from tests.builders import a_manifest, a_qualification, a_spec, altered, manifest_text
from tests.card_builders import Package, a_card, a_package, kept_of, without_kept
from tests.commands import Shell, a_shell
from tests.integration import cross_builds as cross

triton = pytest.importorskip("triton", reason="kernels are compiled by Triton")
pytestmark = pytest.mark.torch

A100 = "a100-sxm4-80gb"
HOST = "driver=580.65.06,torch=2.13.0+cu130,python=3.11.7,libc=2.36,machine=x86_64,x86-64-v3"
SETTINGS = "deterministic=false,default_dtype=float32,matmul_precision=highest,conv_precision=tf32"
BUILD = ("build", "mini:v1", "--here", "--from", "mini:v1", "--profile")


OF_FLOAT8 = """
module {
  tt.func public @product(%a: !tt.ptr<f8E4M3FN>, %b: !tt.ptr<f32>) attributes {noinline = false} {
    %0 = tt.load %a : !tt.ptr<f8E4M3FN>
    %1 = tt.fp_to_fp %0 : f8E4M3FN -> f32
    tt.store %b, %1 : !tt.ptr<f32>
    tt.return
  }
}
"""


class Made(NamedTuple):
    """A package from an H100 that Triton's compiles of this machine stand in for, and what it keeps."""

    package: Package
    kept: KeptKernels


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("package")
    signatures = (cross.a_product(), cross.a_product("wide", size=32, num_warps=2))
    built = cross.build(place, "cuda:sm_90", entry="kernels:product", signatures=signatures)
    kept = kept_of(built, place / "scratch")
    # The wrapper of the second asks for more than it needs, and than small cards have.
    kept = altered(kept, kernels=(kept.kernels[0], altered(kept.kernels[1], shared_bytes=128 << 10)))
    return Made(a_package(built, kept, place / "files", profile=a_card(triton.__version__)), kept)


@pytest.fixture(scope="module")
def shell(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """default/mini:v1 for the H100, and default/bare:v1, which is the same with nothing kept."""
    with a_shell(tmp_path_factory.mktemp("shell")) as shell:
        profile = made.package.manifest.profile
        shell.service.register(profile)
        bare = a_spec("bare", profile=profile.name)
        artifacts = without_kept(made.package).artifacts
        for manifest in (made.package.manifest, a_manifest(bare, profile=profile, artifacts=artifacts)):
            build = shell.service.submit(manifest.spec, tags=("v1",)).build
            shell.service.publish(shell.service.claim(profile.name, build=build.id), manifest)
        yield shell


@pytest.fixture(scope="module")
def written(shell: Shell) -> Path:
    ran = shell.aot(*BUILD, A100, "--as-bundle", str(shell.home / "a100"), "--json")
    assert ran.code == 0, ran.err
    assert "mini for a100-sxm4-80gb: compiling 2 of 2: product for cuda:sm_80" in ran.err
    return Path(ran.json["directory"])


def a_host(card: str) -> Environment:
    return parse_host(f"{card},{HOST},{SETTINGS}")


# What comes out


def test_the_bundle_is_the_same_program_with_another_cards_code(made: Made, written: Path) -> None:
    stored, origin = read_bundle(written), made.package.artifact
    manifest = stored.manifest
    [artifact] = manifest.artifacts
    assert (manifest.profile.name, manifest.profile.capability) == (A100, "cuda:sm_80")
    assert manifest.spec == altered(made.package.manifest.spec, profile=manifest.profile.name)
    assert manifest.build_key == key_of(factors_of(manifest.spec, manifest.profile))
    assert [file.path for file in artifact.files] == [file.path for file in origin.files]
    same = {file.path for file in artifact.files} & {one.path for one in origin.files if one in artifact.files}
    assert same == {"lib/model.so"}
    assert artifact.kept == origin.kept and artifact.constants == origin.constants
    for file in artifact.files:
        if file.path.endswith(".cubin"):
            found = read_cubin(stored.blob_path(file.digest))
            assert (found.capability, found.kernels) == ("cuda:sm_80", ("product",))
    numbers = {kernel.path: (kernel.capability, kernel.registers) for kernel in artifact.binaries}
    assert {capability for capability, _ in numbers.values()} == {"cuda:sm_80"}
    assert numbers != {kernel.path: ("cuda:sm_80", kernel.registers) for kernel in origin.binaries}


def test_nothing_of_it_counts_as_tuned_or_proven(written: Path) -> None:
    stored = read_bundle(written)
    manifest = stored.manifest
    [artifact] = manifest.artifacts
    assert (artifact.tuned, artifact.speeds, manifest.canaries) == (False, (), ())
    assert [(kernel.choice, kernel.candidates, kernel.best_us) for kernel in artifact.kernels] == [
        ("BLOCK_M=64", 0, None)
    ]
    assert manifest.qualification.not_run == "compiled without the card; no cuda:sm_80 device has run it"
    assert "no fresh process has loaded it" in faults_of(manifest)
    guards = {guard.kind: guard.value for guard in artifact.host_guards}
    assert (guards["capability"], guards["torch"], guards["cuda"]) == ("cuda:sm_80", "2.13.0+cu130", "13.0")
    assert not {"sku", "sm_count", "mig"} & guards.keys(), "it was tuned on no card"
    assert guards["matmul_precision"] == "highest"
    refuse_false_facts(manifest, {blob.digest: stored.blob_path(blob.digest) for blob in manifest.blobs})


def test_a_host_with_the_card_may_have_it_untuned_and_one_that_wants_tuned_code_may_not(written: Path) -> None:
    [artifact] = read_bundle(written).manifest.artifacts
    verdict = verdict_on(artifact, a_host("a100-sxm4-80gb"))
    assert (verdict.level, [note.kind for note in verdict.notes]) == (Level.TUNED_ELSEWHERE, ["tuned"])
    assert verdict_on(artifact, a_host("a100-sxm4-80gb"), policy=Policy(tuned_elsewhere=False)).level is Level.REJECTED
    assert verdict_on(artifact, a_host("h200")).level is Level.REJECTED


# In the registry


def test_pushed_it_waits_for_the_card_and_only_its_proof_makes_it_live(shell: Shell, made: Made, written: Path) -> None:
    service, manifest = shell.service, read_bundle(written).manifest
    ran = shell.aot(*BUILD, A100)
    assert ran.code == 5 and "not run: needs a cuda:sm_80 device" in ran.err, ran.err
    [pending] = service.call("search", query={"state": "pending"}).bundles
    # The same code at another time is the same bundle.
    assert shell.aot("push", str(written)).out.startswith(f"{pending.digest} pending")
    assert "state      pending: not run: needs a cuda:sm_80 device" in shell.aot("show", pending.digest).lines
    told = shell.aot("explain", "mini:v1", "--host", f"a100-sxm4-80gb,{HOST}")
    assert "for a100-sxm4-80gb: not run: needs a cuda:sm_80 device" in told.out + told.err
    lines = manifest_lines(manifest, pending.digest)
    assert "  untuned: built without the card, no configuration was measured" in lines
    assert any(line.startswith("  keeps its kernels for other cards: ") for line in lines)
    # A worker with that card.
    service.register(manifest.profile, worker="worker-2")
    claim = service.claim(A100, worker="worker-2")
    assert claim.requalify == pending.digest
    with pytest.raises(QualificationFailed, match="not proven"):
        service.publish(claim, manifest)
    live = service.publish(claim, proven(manifest))
    assert live.state is BundleState.LIVE
    [signed] = service.call("resolve", namespace="default", name="mini", target=live.bundle).bundles
    assert [artifact.tuned for artifact in decode_manifest(signed.manifest.encode()).artifacts] == [False]
    # Who asks for tuning is answered by a build on the card, whatever pods take meanwhile.
    assert service.submit(manifest.spec).created


def proven(manifest: Manifest) -> Manifest:
    speeds = a_manifest().artifacts[0].speeds
    return altered(
        manifest,
        artifacts=tuple(altered(artifact, speeds=speeds) for artifact in manifest.artifacts),
        qualification=a_qualification(profile=manifest.profile.name, torch=manifest.profile.toolchain.torch),
    )


def test_what_is_kept_is_the_bundles_and_no_pod_fetches_it(shell: Shell, made: Made) -> None:
    manifest = made.package.manifest
    kept = made.package.artifact.kept
    assert kept is not None and kept.digest in {blob.digest for blob in manifest.blobs}
    assert kept.size_bytes < manifest.size_bytes // 10
    links = shell.service.call("get_download_links", DownloadLinksRequest(), digest=manifest_text(manifest)[1]).links
    assert kept.digest in {link.digest for link in links}
    cache = shell.home / "pod"
    ran = shell.aot("pull", "mini:v1", "--into", str(cache), "--host", f"h100-sxm,{HOST}")
    assert ran.code == 0, ran.err
    pod = LocalCache(cache, limit_bytes=1 << 30)
    fetched = {file.path for file in made.package.artifact.all_files if pod.path_of(file.digest)}
    assert fetched == {"lib/model.so", "cubin/gemm.cubin", "cubin/wide.cubin"}


# What is refused, and by which words


@pytest.mark.parametrize(
    ("name", "card", "words"),
    [
        ("mini:v1", "mi300x", "mi300x is no profile that the registry lists ("),
        ("bare:v1", A100, "it keeps nothing of its kernels"),
        ("mini:v1", "l4", "product: its package asks for 131072 bytes of shared memory a block; cuda:sm_89 has 101376"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(shell: Shell, name: str, card: str, words: str) -> None:
    arguments = ("build", name, "--here", "--from", name, "--profile", card)
    ran = shell.aot(*arguments, "--as-bundle", str(shell.home / "refused"))
    assert ran.code != 0 and words in ran.err, ran.err
    assert not (shell.home / "refused").exists()


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))
    monkeypatch.setattr(triton.knobs.compilation, "disable_line_info", True)
    return tmp_path


def test_a_kernel_that_needs_more_than_its_launch_asks_for_reserves_it_itself(made: Made, build: Path) -> None:
    kernel, target = made.kept.kernels[0], target_for("cuda:sm_80")
    usages = []
    for number, one in enumerate((kernel, altered(kernel, shared_bytes=2048))):
        place = build / f"{number}.cubin"
        place.write_bytes(compile_kept(one, target, build=build))
        usages += read_cubin(place).usages
    assert [usage.shared_bytes for usage in usages] == [0, 16384]
    assert usages[0].registers == usages[1].registers


def test_where_that_is_too_much_fewer_loads_are_under_way(made: Made, build: Path) -> None:
    kernel = altered(made.kept.kernels[0], shared_bytes=10240)
    card = dataclasses.replace(target_for("cuda:sm_80"), shared_bytes=20000)
    lowered = lower_kept(kernel, card, build=build)
    assert lowered.shared_bytes == 8192 < lower_kept(kernel, target_for("cuda:sm_80"), build=build).shared_bytes
    with pytest.raises(BackendFailed, match="asks for 64 bytes of shared memory a block and it needs 8192"):
        lower_kept(altered(kernel, shared_bytes=64), dataclasses.replace(card, shared_bytes=8192), build=build)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ttir": "module {"}, "product does not compile for cuda:sm_80"),
        ({"ttir": OF_FLOAT8}, "product does not compile for cuda:sm_80"),
        ({"descriptors": 1}, "its wrapper makes tensor descriptors for the card it was built on"),
        (
            {"options": KernelOptions(num_warps=4, launch_cooperative_grid=True)},
            "all blocks of its grid wait for each other",
        ),
        ({"options": KernelOptions(num_warps=4, launch_pdl=True)}, "which cards have from sm_90 on"),
        ({"name": "other"}, "its wrapper does not launch it so: product"),
    ],
)
def test_a_kernel_that_cannot_be_had_there_is_named(
    made: Made, build: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(BackendFailed, match=words) as caught:
        compile_kept(altered(made.kept.kernels[0], **changes), target_for("cuda:sm_80"), build=build)
    assert caught.value.hint and caught.value.details["kernel"]


def in_a_child(made: Made, place: Path, *, release: str = triton.__version__, **changes: object) -> None:
    """Compile the first kept kernel, with `changes`, for sm_75 where other people's text is read."""
    kernel = altered(made.kept.kernels[0], **changes)
    (place / "kept").write_bytes(pack_kept(KeptKernels(triton=release, kernels=(kernel,))))
    found = find_sandbox()
    compile_kept_kernels(
        [place / "kept"],
        a_card(release, capability="cuda:sm_75"),
        scratch=place / "scratch",
        limits=Limits(wall_seconds=120, memory_bytes=4 << 30),
        sandbox=found if isinstance(found, Bubblewrap) else None,
    )


def test_text_that_kills_triton_is_the_childs_failure(made: Made, tmp_path: Path) -> None:
    depth = 500_000  # of brackets, which a parser takes by calling itself
    with pytest.raises(BackendFailed, match="the child died of SIGSEGV while compiling") as caught:
        in_a_child(made, tmp_path, ttir=f"module attributes {{a = {'[' * depth}{']' * depth}}} {{}}")
    assert caught.value.details["kernel"] == "1 of 1: product for cuda:sm_75"


def test_another_release_of_triton_is_refused_with_the_one_that_is_wanted(made: Made, tmp_path: Path) -> None:
    with pytest.raises(InvalidProfile, match=r"triton 3\.6\.0 is wanted, this is") as caught:
        in_a_child(made, tmp_path, release="3.6.0")
    assert "install triton==3.6.0" in caught.value.hint


def test_a_bundle_that_keeps_other_kernels_than_it_has_is_not_believed(made: Made, tmp_path: Path) -> None:
    manifest = made.package.manifest
    refuse_false_facts(manifest, made.package.paths)
    renamed = tuple(altered(kernel, name="other") for kernel in made.kept.kernels)
    for kernels, words in (
        (made.kept.kernels[:1], "are not those that the artifact has"),
        (renamed, "of other kernels"),
    ):
        file = tmp_path / "kept"
        file.write_bytes(pack_kept(KeptKernels(triton="3.9.0", kernels=kernels)))
        blob = blob_of(file)
        kept = File(path=KEPT_FILE, digest=blob.digest, size_bytes=blob.size_bytes)
        lying = altered(manifest, artifacts=(altered(made.package.artifact, kept=kept),))
        with pytest.raises(QualificationFailed, match=words):
            refuse_false_facts(lying, {**made.package.paths, blob.digest: file})
