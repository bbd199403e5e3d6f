"""Which bundles another card's code can be made of, which profile a card is, and what a manifest says of it."""

from typing import Any

import pytest

from aot.bundle.assemble import check_files
from aot.cli.build_commands import _read_model
from aot.cli.builds import Submission
from aot.cli.from_bundle import check_request
from aot.errors import InvalidInput, InvalidProfile, MalformedDocument
from aot.pipeline.known import Known, choose_known, find_card, why_not
from aot.pipeline.other_card import _assemble, _facts, nothing_run
from aot.proof import faults_of
from aot.runtime.fetch import Candidate, blobs_of
from aot.schema.artifact import KernelFacts
from aot.schema.devices import CARDS, card_profile, is_of_catalogue
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest, encode_manifest
from aot.schema.measured import Measured
from aot.schema.names import Name
from aot.schema.profile import Profile, device_profile_name
from aot.schema.recipe import Mode, Recipe, Route
from aot.schema.wire.bundles import SignedManifest
from aot.schema.wire.workers import ProfileView
from tests.builders import (
    a_file,
    a_gpu_profile,
    a_manifest,
    a_profile,
    a_toolchain,
    altered,
    an_artifact,
    an_elf,
    manifest_text,
)
from tests.kernel_builders import a_kernel_manifest

H100 = a_gpu_profile()
TOOLCHAIN = H100.toolchain
A100 = card_profile("a100-sxm4-80gb", TOOLCHAIN)
assert A100 is not None
KEPT = a_file("kept/kernels.json.xz", b"kept")
FILES = (a_file(), a_file("cubin/c1.cubin", b"cubin"))


def of_a_card(profile: Profile = H100, **deviations: Any) -> Manifest:
    fields = {"capability": "cuda:sm_90a", "torch": TOOLCHAIN.torch, "files": FILES, "kept": KEPT}
    return a_manifest(profile=profile, artifacts=(an_artifact(**(fields | deviations)),))


def candidate(manifest: Manifest) -> Candidate:
    text, digest = manifest_text(manifest)
    return Candidate(digest, manifest, SignedManifest(digest=digest, manifest=text, envelope=None))  # type: ignore[arg-type]


def viewed(*profiles: Profile, held: bool = True) -> list[ProfileView]:
    return [ProfileView(profile=profile, live_workers=int(held), queued=0, held=held) for profile in profiles]


# Bundles


def test_a_package_that_keeps_its_kernels_can_be_started_from() -> None:
    assert why_not(of_a_card(), A100) is None
    # One without kernels needs none, and a patch release of Python is no other one.
    assert why_not(of_a_card(files=(a_file(),), kept=None), A100) is None
    patched = altered(A100, toolchain=altered(TOOLCHAIN, python="3.11.9"))
    assert why_not(of_a_card(), patched) is None


@pytest.mark.parametrize(
    ("deviations", "words"),
    [
        ({"kept": None}, "it keeps nothing of its kernels: an older version built it"),
        ({"route": Route.FUNCTION}, "it is of the route function"),
        ({"files": (a_file(), a_file("cubin/c1.fatbin", b"fat"))}, "its kernels are fat binaries"),
        (
            {"binaries": (KernelFacts(name="k", path="lib/model.so", capability=H100.capability, size_bytes=1),)},
            r"its library holds kernels that nvcc compiled for its card \(CUTLASS\)",
        ),
        ({"files": (*FILES, a_file("lib/custom.so", b"more"))}, "kernels in libraries of their own: .*lib/custom.so"),
        ({"facts": {"cooperative_kernels": "true"}}, "cooperative kernels wait for each other"),
        ({"elf": an_elf(machine="riscv64")}, "its wrapper is for riscv64, this machine is"),
    ],
)
def test_an_artifact_that_cannot_be_moved_is_refused_by_name(deviations: dict[str, Any], words: str) -> None:
    found = why_not(of_a_card(**deviations), A100)
    assert isinstance(found, InvalidInput) and found.hint
    with pytest.raises(InvalidInput, match=words):
        raise found


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (H100, "it is for h100 already"),
        (a_gpu_profile("mi300x", capability="rocm:gfx942"), "its wrapper calls CUDA's driver, which no rocm:gfx942"),
        (a_profile(), "its wrapper calls CUDA's driver, which no cpu:x86-64-v3"),
        (
            altered(A100, toolchain=altered(TOOLCHAIN, triton="3.6.0")),
            r"with triton 3\.7\.0, .* has triton 3\.6",
        ),
        (altered(A100, toolchain=altered(TOOLCHAIN, torch="2.12.0+cu130")), r"with torch 2\.13\.0\+cu130"),
        (altered(A100, toolchain=altered(TOOLCHAIN, compiler="g++ 14.1.0")), r"with g\+\+ 12\.2\.0"),
        (altered(A100, toolchain=altered(TOOLCHAIN, python="3.12.1")), r"with Python 3\.11, .* has Python 3\.12"),
    ],
)
def test_a_profile_that_its_wrapper_does_not_serve_is_refused_by_name(profile: Profile, words: str) -> None:
    found = why_not(of_a_card(), profile)
    assert isinstance(found, InvalidProfile) and found.hint
    with pytest.raises(InvalidProfile, match=words):
        raise found


def test_only_models_of_cards_are_started_from() -> None:
    on_cpu, of_kernels = why_not(a_manifest(), A100), why_not(a_kernel_manifest(), A100)
    assert on_cpu is not None and on_cpu.message == "it is for cpu:x86-64-v3, not for a card of NVIDIA's"
    assert of_kernels is not None and of_kernels.message == "it is no compiled model"


def test_of_several_bundles_the_one_for_the_same_architecture_is_taken() -> None:
    a10 = card_profile("a10", TOOLCHAIN)
    assert a10 is not None
    ampere = altered(A100, name=Name("a100-pcie"))
    candidates = [candidate(one) for one in (a_manifest(), of_a_card(), of_a_card(ampere))]
    assert choose_known(candidates, A100) == candidates[2]
    assert choose_known(candidates, a10) == candidates[1]
    assert choose_known(candidates[:2], A100) == candidates[1]


def test_what_was_built_on_the_card_needs_no_code_made_without_it() -> None:
    tuned, made = of_a_card(A100, capability="cuda:sm_80"), of_a_card(A100, capability="cuda:sm_80", tuned=False)
    origin = candidate(of_a_card())
    with pytest.raises(InvalidProfile, match="default/mini has a bundle that was built on a100-sxm4-80gb") as caught:
        choose_known([origin, candidate(tuned)], A100)
    assert "--from default/mini@sha256:" in caught.value.hint
    assert choose_known([origin, candidate(made)], A100) == origin
    # Of another toolchain it is the answer to another question.
    older = altered(A100, toolchain=altered(TOOLCHAIN, torch="2.12.0+cu130"))
    assert choose_known([candidate(of_a_card(older, capability="cuda:sm_80")), origin], A100) == origin


def test_what_was_made_without_its_card_is_started_from_only_where_nothing_else_is_there() -> None:
    near = candidate(of_a_card(altered(A100, name=Name("a100-pcie")), capability="cuda:sm_80", tuned=False))
    origin = candidate(of_a_card())
    assert choose_known([near, origin], A100) == origin
    assert choose_known([near, candidate(of_a_card(kept=None))], A100) == near


def test_code_of_code_that_was_made_without_its_card_names_the_card_of_the_measurements() -> None:
    card = altered(A100, name=Name("a100-pcie"))
    origin = of_a_card()
    first = _assemble(Known(Digest.of(b"1"), origin, {}), card, (an_artifact(tuned=False),), None, builder="me")
    again = _assemble(Known(Digest.of(b"2"), first, {}), A100, first.artifacts, None, builder="me")
    told = "untuned: configurations chosen on NVIDIA H100 80GB HBM3, compiled for cuda:sm_80 without the card, not run"
    assert first.compile_report.warnings == again.compile_report.warnings == (told,)
    silent = altered(first, compile_report=altered(first.compile_report, warnings=()))
    [told] = _assemble(
        Known(Digest.of(b"3"), silent, {}), A100, first.artifacts, None, builder="me"
    ).compile_report.warnings
    assert told.startswith("untuned: configurations chosen on a card that its report does not name, compiled for")


def test_whether_graphs_are_captured_is_asked_of_the_recipe_again() -> None:
    said = an_artifact(facts={"mode": "default", "cuda_graphs": "capture"})
    assert _facts(said, Recipe(mode=Mode.DEFAULT), A100) == {"mode": "default"}
    assert _facts(said, Recipe(mode=Mode.MAX_AUTOTUNE), A100) == said.facts


def test_the_clocks_and_the_memory_of_the_first_card_are_nothing_of_the_others() -> None:
    said = an_artifact(facts={"mode": "default", **{name: "{}" for name in Measured}})
    assert _facts(said, Recipe(mode=Mode.DEFAULT), A100) == {"mode": "default"}


def test_where_no_bundle_will_do_every_reason_is_told() -> None:
    with pytest.raises(InvalidInput, match="it keeps nothing") as alone:
        choose_known([candidate(of_a_card(kept=None))], A100)
    with pytest.raises(InvalidInput) as both:
        choose_known([candidate(a_manifest()), candidate(of_a_card(kept=None))], A100)
    assert both.value.message.startswith("code for a100-sxm4-80gb can be made of no bundle of it: h100: it keeps")
    assert "; cpu-v3: it is for cpu:x86-64-v3" in both.value.message
    assert both.value.hint == alone.value.hint


# Profiles


def test_a_card_of_the_catalogue_is_named_as_its_worker_names_itself() -> None:
    assert A100.name == device_profile_name("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    assert card_profile("h100-sxm", TOOLCHAIN) == card_profile("h100-80gb-hbm3", TOOLCHAIN)
    assert card_profile("mi300x", TOOLCHAIN) is card_profile("unknown", TOOLCHAIN) is None
    for name, card in CARDS.items():
        found = card_profile(name, TOOLCHAIN)
        assert (found is not None and is_of_catalogue(found)) == (card.capability.family == "cuda")
    assert not is_of_catalogue(H100) and not is_of_catalogue(a_profile())
    assert not is_of_catalogue(altered(A100, packages={"numpy": "2"}))


def test_what_a_worker_says_of_its_card_goes_before_the_catalogue() -> None:
    observed = altered(A100, device=altered(A100.device, memory_bytes=84_974_239_744))
    other = a_toolchain(torch="2.12.0+cu126", cuda="12.6", triton="3.6.0")
    assert find_card("a100-sxm4-80gb", [], TOOLCHAIN) == A100
    assert find_card("a100-sxm4-80gb", viewed(observed), TOOLCHAIN) == observed
    assert find_card("a100-sxm4-80gb", viewed(observed, held=False), TOOLCHAIN) == observed
    # One that a push has made known has the toolchain of that push.
    pushed = altered(A100, toolchain=other)
    assert find_card("a100-sxm4-80gb", viewed(pushed, held=False), TOOLCHAIN) == A100
    assert find_card("a100-sxm4-80gb", viewed(pushed), TOOLCHAIN) == pushed
    named = a_gpu_profile("h100-80gb-hbm3")
    assert find_card("h100-sxm", viewed(named), TOOLCHAIN) == named
    with pytest.raises(InvalidProfile, match=r"h300 is no profile that the registry lists \(h100\)") as caught:
        find_card("h300", viewed(H100), TOOLCHAIN)
    assert "a100-sxm4-80gb" in caught.value.hint and "mi300x" not in caught.value.hint


# The manifest


def test_what_is_kept_is_a_blob_of_the_bundle_and_none_of_a_pods() -> None:
    manifest = of_a_card()
    assert KEPT.digest in {blob.digest for blob in manifest.blobs}
    assert KEPT.digest not in {blob.digest for blob in blobs_of(manifest.artifacts)}
    assert manifest.size_bytes == sum(file.size_bytes for file in (*FILES, KEPT))
    check_files(manifest)
    with pytest.raises(MalformedDocument, match="cannot be used"):
        check_files(of_a_card(kept=altered(KEPT, path="../kept")))


def test_a_bundle_that_keeps_nothing_has_the_bytes_that_it_had() -> None:
    content, _ = encode_manifest(of_a_card(kept=None))
    assert b"kept" not in content


def test_a_proof_of_nothing_passes_nowhere() -> None:
    faults = faults_of(altered(of_a_card(A100), qualification=nothing_run(A100)))
    assert "no fresh process has loaded it" in faults
    assert any("its numerics are not run" in fault for fault in faults)


# The command


def asked(name: str = "mini:v1", **options: Any) -> Submission:
    return _read_model(name, **({"profile": "a100-sxm4-80gb"} | options))


def test_a_request_names_one_card_and_nothing_of_a_build() -> None:
    plain = _read_model("mini:v1")
    check_request(asked(), plain, here=True)
    check_request(asked(tag=["v2"], limit=["wall_seconds=60"]), plain, here=True)
    with pytest.raises(InvalidInput, match="--from belongs to --here"):
        check_request(asked(), plain, here=False)
    for profile in (None, "t4,l4"):
        with pytest.raises(InvalidInput, match=f"--from wants one profile, found {profile or 'none'}"):
            check_request(asked(profile=profile), plain, here=True)
    for options in ({"mode": "default"}, {"entry": "m:f"}, {"freeze": True}, {"dim": ["batch=4"]}):
        with pytest.raises(InvalidInput, match="it goes with no source, weights or option of a build"):
            check_request(asked(**options), plain, here=True)
