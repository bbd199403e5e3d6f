"""Which hosts captured entries are for: the level that a command asks of torch, the pins, and what differs."""

from pathlib import Path

import msgspec
import pytest

from aot.capture.collect import collect
from aot.capture.entries import Entry, Kind, entry_of
from aot.capture.pins import TAG, effective_environment, key_tag, pins
from aot.capture.record import artifact_of, command_source, differences, require_level, saved_seconds, with_new
from aot.errors import InvalidProfile
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.select import select
from tests.builders import a_gpu, a_manifest, a_profile, altered
from tests.caches import GRAPH, host, write


def test_the_key_tag_has_the_instruction_sets_and_python() -> None:
    assert (
        key_tag(host("x86-64-v4", "avx512_vnni", "fma", "amx_tile")) == "aot-x86-64-v4+amx_tile+avx512_vnni-python3.11"
    )
    assert key_tag(host("x86-64-v3")) == "aot-x86-64-v3-python3.11"


@pytest.mark.parametrize(
    ("wanted", "level"),
    [("avx2", "x86-64-v3"), ("default", "x86-64"), ("avx512", "x86-64-v4"), ("", "x86-64-v4"), ("AVX2", "x86-64-v3")],
)
def test_a_lower_capability_asked_of_torch_is_the_level_that_counts(wanted: str, level: str) -> None:
    found = effective_environment(host("x86-64-v4", "avx512_vnni"), {"ATEN_CPU_CAPABILITY": wanted})
    assert found.node.cpu == f"cpu:{level}"
    assert ("avx512_vnni" in key_tag(found)) == (level == "x86-64-v4")


def test_a_capability_that_nobody_knows_is_no_level() -> None:
    assert effective_environment(host(), {"ATEN_CPU_CAPABILITY": "avx9"}).node.cpu is None


def test_pins_keep_the_callers_tag_and_are_the_same_for_a_child_of_ours(tmp_path: Path) -> None:
    once = pins(host("x86-64-v3"), tmp_path, {TAG: "mine-"})
    assert once[TAG] == "mine-aot-x86-64-v3-python3.11"
    assert once["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] == "0" and once["TORCHINDUCTOR_CPP_MARCH"] == "x86-64-v3"
    assert pins(host("x86-64-v3"), tmp_path, once) == once
    assert once["TORCHINDUCTOR_CACHE_DIR"] == f"{tmp_path}/inductor"


def test_all_processes_of_a_command_on_a_card_take_the_assembler_that_torch_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers that compile take it by themselves: a process that takes Triton's finds nothing of theirs."""
    monkeypatch.setattr("aot.capture.pins.find_assembler", lambda: tmp_path / "ptxas")
    seen = host()
    carded = msgspec.structs.replace(seen, node=msgspec.structs.replace(seen.node, gpus=(a_gpu(),)))
    assert pins(carded, tmp_path, {})["TRITON_PTXAS_PATH"] == str(tmp_path / "ptxas")
    assert "TRITON_PTXAS_PATH" not in pins(carded, tmp_path, {"TRITON_PTXAS_PATH": "/opt/ptxas"})
    assert "TRITON_PTXAS_PATH" not in pins(seen, tmp_path, {})


def test_kernels_of_a_card_are_captured_without_the_lines_of_their_sources(tmp_path: Path) -> None:
    carded = msgspec.structs.replace(host(), node=msgspec.structs.replace(host().node, gpus=(a_gpu(),)))
    assert pins(carded, tmp_path, {})["TRITON_DISABLE_LINE_INFO"] == "1"
    assert pins(carded, tmp_path, {"TRITON_DISABLE_LINE_INFO": "0"})["TRITON_DISABLE_LINE_INFO"] == "0"
    assert "TRITON_DISABLE_LINE_INFO" not in pins(host(), tmp_path, {})


def captured(tmp_path: Path, environment: object, **environ: str) -> object:
    found = collect(write(tmp_path / "caches", **{GRAPH: b"graph"}), scratch=tmp_path / "scratch")
    profile = a_profile(capability="cpu:x86-64-v4")
    return artifact_of(found, profile, environment, environ=environ, seconds=(90.0, 3.0))


def test_entries_of_another_vector_width_are_refused_with_the_reason(tmp_path: Path) -> None:
    """The same host, asked for the narrower width by the environment: torch itself would take these entries."""
    artifact = captured(tmp_path, host("x86-64-v4"))
    bundle = (Digest.of(b"bundle"), altered(a_manifest(), artifacts=(artifact,)))
    assert select([bundle], host("x86-64-v4")).bundle == bundle[0]
    refused = select([bundle], effective_environment(host("x86-64-v4"), {"ATEN_CPU_CAPABILITY": "avx2"}))
    assert refused.bundle is None
    assert any("made for x86-64-v4, this host is x86-64-v3" in reason for reason in refused.reasons)


def test_a_level_below_is_refused_both_ways(tmp_path: Path) -> None:
    artifact = captured(tmp_path, host("x86-64-v3"))
    artifact = altered(artifact, capability=Capability("cpu:x86-64-v3"))
    bundle = (Digest.of(b"bundle"), altered(a_manifest(), artifacts=(artifact,)))
    assert select([bundle], host("x86-64-v4")).bundle is None


def test_a_profile_of_another_level_is_no_profile_of_the_entries() -> None:
    with pytest.raises(InvalidProfile, match="x86-64-v3"):
        require_level(a_profile(capability="cpu:x86-64-v3"), host("x86-64-v4"))
    require_level(a_profile(capability="cpu:x86-64-v4"), host("x86-64-v4"))


def test_what_differs_from_the_capture_is_named(tmp_path: Path) -> None:
    artifact = captured(tmp_path, host(), OMP_NUM_THREADS="2", TORCHINDUCTOR_CACHE_DIR="/somewhere")
    assert saved_seconds(artifact) == 87.0
    assert differences(artifact, host(), {"OMP_NUM_THREADS": "2"}) == ()
    assert differences(artifact, host(), {"OMP_NUM_THREADS": "1", "CXX": "/usr/bin/g++"}) == (
        "CXX was not set, is /usr/bin/g++",
        "OMP_NUM_THREADS was 2, is 1",
    )


def test_a_union_is_never_smaller_and_keeps_what_was_there(tmp_path: Path) -> None:
    artifact = captured(tmp_path, host())
    later = write(tmp_path / "later", **{GRAPH: b"other", "inductor/fxgraph/cd/new/one": b"new"})
    union = with_new(artifact, collect(later, scratch=tmp_path / "more"))
    assert set(artifact.files) < set(union.files)
    assert [file.path for file in union.files] == [GRAPH, "inductor/fxgraph/cd/new/one"]
    assert union.facts["graphs"] == "2"


def test_the_source_of_a_capture_differs_by_its_entries() -> None:
    one, other = (Entry(Kind.FXGRAPH, GRAPH, Digest.of(text), 1) for text in (b"a", b"b"))
    assert command_source(("python", "x.py"), [one]) != command_source(("python", "x.py"), [other])
    assert entry_of(one.as_file()) == one
