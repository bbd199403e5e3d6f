"""What packages keep of their kernels: text without locations, launches that fit, files that nobody has to believe."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from aot.compile.job import CompileJob
from aot.compile.kernels import kept as kept_kernels
from aot.compile.kernels.kept import (
    KEPT_FILE,
    KeptKernel,
    KeptKernels,
    KeptReader,
    KernelOptions,
    collect_kept,
    keep_kernels,
    pack_kept,
    unpack_kept,
)
from aot.compile.kernels.locations import strip_locations
from aot.compile.kernels.ptx import MOST_STATIC_BYTES, check_launch_bytes, own_shared_memory
from aot.compile.kernels.targets import TARGETS
from aot.errors import BackendFailed, MalformedDocument
from aot.schema.capability import Capability
from aot.schema.codec import encode
from aot.schema.digest import Digest
from tests.builders import a_gpu_profile, altered
from tests.kernels import GOLDEN

TEXT = """#loc = loc("/build/cache/kl/ckl.py":18:0)
#loc1 = loc(unknown)
#loc7 = loc("x"(#loc))
module {
  tt.func public @add(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32 loc("n"(#loc))) attributes {noinline = false} {
    %c = arith.constant dense<"0x0001"> : tensor<2xi8> loc(#loc1)
    tt.print " loc(#loc9) \\" in (text) " {hex = false} : %n : i32 loc(callsite("a(b"(#loc1) at #loc7))
    scf.if %c {
    } loc(fused[#loc1, "f.py":3:1])
    tt.return loc(#loc1)
  } loc(#loc)
} loc(#loc)
#loc9 = loc("y"(#loc7))
"""  # noqa: E501
STRIPPED = """module {
  tt.func public @add(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32) attributes {noinline = false} {
    %c = arith.constant dense<"0x0001"> : tensor<2xi8>
    tt.print " loc(#loc9) \\" in (text) " {hex = false} : %n : i32
    scf.if %c {
    }
    tt.return
  }
}
"""


FOUR_WARPS = KernelOptions(num_warps=4)


def a_kernel(path: str = "cubin/c1.cubin", **deviations: Any) -> KeptKernel:
    fields: dict[str, Any] = {"name": "add", "options": FOUR_WARPS, "shared_bytes": 0, "ttir": STRIPPED}
    return KeptKernel(path=path, **(fields | deviations))


# Locations


def test_text_loses_its_locations_and_nothing_else() -> None:
    assert strip_locations(TEXT) == STRIPPED
    assert strip_locations(STRIPPED) == STRIPPED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('module { tt.print "open', "a string without an end"),
        ("module {} loc(fused[#loc1", "a location without an end"),
        ('module {} loc("open', "a string without an end"),
        ("module { op [#loc4] }", "refers to a location in a way that is not known"),
    ],
)
def test_text_that_is_not_understood_is_not_kept(text: str, words: str) -> None:
    with pytest.raises(MalformedDocument, match=words):
        strip_locations(text)


# Shared memory


def test_what_a_launch_asks_for_must_be_there_on_the_card() -> None:
    for text in ("cuda:sm_75", "cuda:sm_80", "cuda:sm_89", "cuda:sm_90", "cuda:sm_120"):
        target = TARGETS[Capability(text)]
        check_launch_bytes("k", target, asked=target.shared_bytes)
        check_launch_bytes("k", target, asked=target.shared_bytes, needed=target.shared_bytes)
        with pytest.raises(BackendFailed, match=f"k: its package asks for {target.shared_bytes + 1} bytes") as caught:
            check_launch_bytes("k", target, asked=target.shared_bytes + 1, needed=8)
        assert f"{text} has {target.shared_bytes}" in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("text", "asked", "needed", "fits"),
    [
        ("cuda:sm_80", 2048, 4096, True),
        ("cuda:sm_80", 0, MOST_STATIC_BYTES, True),
        ("cuda:sm_80", 0, MOST_STATIC_BYTES + 1, False),  # a kernel reserves no more itself
        ("cuda:sm_89", 99 * 1024 - 4096, 4096, True),  # it asks for as much, so it reserves nothing
        ("cuda:sm_75", 40 << 10, 41 << 10, False),  # both count, and the card has 64 KiB
        ("cuda:sm_75", 20 << 10, 41 << 10, True),
    ],
)
def test_what_a_kernel_reserves_itself_counts_beside_its_launch(text: str, asked: int, needed: int, fits: bool) -> None:
    target = TARGETS[Capability(text)]
    if fits:
        check_launch_bytes("k", target, asked=asked, needed=needed)
        return
    with pytest.raises(BackendFailed, match=f"asks for {asked} bytes of shared memory a block and it needs {needed}"):
        check_launch_bytes("k", target, asked=asked, needed=needed)


def test_ptx_reserves_its_shared_memory_itself() -> None:
    ptx = ".extern .shared .align 16 .b8 global_smem[];\n.visible .entry add() { mov.b32 %r1, global_smem; }\n"
    assert own_shared_memory(ptx, needed=4096) == ptx.replace(".extern .shared", ".shared").replace("[]", "[4096]")
    for other in (ptx.replace("16", "32"), ptx + ptx, ""):
        with pytest.raises(BackendFailed, match="does not take its shared memory from the launch"):
            own_shared_memory(other, needed=4096)


# The file


def test_what_is_kept_comes_back_and_equal_kernels_are_equal_bytes(tmp_path: Path) -> None:
    kept = KeptKernels(triton="3.9.0", kernels=(a_kernel(), a_kernel("cubin/c2.cubin", ttir=STRIPPED * 100)))
    assert pack_kept(kept) == pack_kept(unpack_kept(pack_kept(kept)))
    assert len(pack_kept(kept)) < 1500
    assert unpack_kept(pack_kept(kept), most_kernels=2) == kept
    (tmp_path / "kept").write_bytes(pack_kept(kept))
    reader, digest = KeptReader({Digest.of(b"kept"): tmp_path / "kept"}), Digest.of(b"kept")
    assert reader.names(digest, ["cubin/c1.cubin", "cubin/c2.cubin"]) == {
        ("cubin/c1.cubin", "add"),
        ("cubin/c2.cubin", "add"),
    }
    with pytest.raises(MalformedDocument, match="are not those that the artifact has"):
        reader.names(digest, ["cubin/c1.cubin", "cubin/c3.cubin"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not packed",
        pack_kept(KeptKernels(triton="3.9.0", kernels=()))[:-8],
        pack_kept(KeptKernels(triton="3.9.0", kernels=())) + b"more",
        lzma.compress(b"{}"),
        lzma.compress(encode({"format": 1, "triton": "3.9.0", "kernels": [], "more": 1})),
        pack_kept(KeptKernels(triton="3.9.0", kernels=(a_kernel(), a_kernel()))),
        pack_kept(KeptKernels(triton="3.9.0", kernels=(a_kernel("cubin/../../x.cubin"),))),
        pack_kept(KeptKernels(triton="3.9.0", kernels=(a_kernel("/cubin/x.cubin"),))),
        pack_kept(KeptKernels(triton="3.9.0", kernels=(a_kernel("lib/model.so"),))),
        pack_kept(KeptKernels(triton="3.9.0", kernels=(a_kernel(name="a b"),))),
        pack_kept(KeptKernels(triton="3.9.0", kernels=(a_kernel(options={"ptx_options": "-o /x"}),))),
        pack_kept(KeptKernels(triton="3.9.0", kernels=(a_kernel(options={"num_warps": "4"}),))),
    ],
)
def test_a_file_that_nobody_wrote_so_is_refused(content: bytes) -> None:
    with pytest.raises(MalformedDocument):
        unpack_kept(content)


def test_a_file_that_unpacks_to_more_than_anybody_keeps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_kernels, "MOST_BYTES", 8 << 20)
    packed = lzma.compress(bytes(9 << 20), preset=0)
    with pytest.raises(MalformedDocument, match="more than 8388608 bytes"):
        unpack_kept(packed)


def test_the_options_of_a_kernel_are_spelled_as_they_were_before_they_had_names() -> None:
    kernel = a_kernel(options=KernelOptions(num_warps=4, debug=False, maxnreg=None))
    assert b'"options":{"debug":false,"num_warps":4}' in encode(kernel)
    assert kernel.options.recorded == {"num_warps": 4, "debug": False}


# Bounds


def many(count: int) -> KeptKernels:
    return KeptKernels(triton="3.9.0", kernels=tuple(a_kernel(f"cubin/c{index}.cubin") for index in range(count)))


def test_no_more_is_made_of_a_file_than_the_artifact_has_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_kernels, "MOST_KERNEL_BYTES", 2000)
    assert unpack_kept(pack_kept(many(2)), most_kernels=2) == many(2)
    # Its bytes are counted while it is unpacked, and its kernels before one of them is decoded.
    long = KeptKernels(triton="3.9.0", kernels=(a_kernel(ttir="x" * 2000),))
    with pytest.raises(MalformedDocument, match="have more than 2000 bytes"):
        unpack_kept(pack_kept(long), most_kernels=1)
    wrong = {"format": 1, "triton": "3.9.0", "kernels": [{}, {}]}
    with pytest.raises(MalformedDocument, match="are 2, wanted at most 1"):
        unpack_kept(lzma.compress(encode(wrong)), most_kernels=1)


def test_a_decompressor_that_would_take_memory_is_not_started() -> None:
    greedy = lzma.compress(encode(many(1)), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 64 << 20}])
    with pytest.raises(MalformedDocument, match="cannot be unpacked: Memory usage limit"):
        unpack_kept(greedy)


def test_a_blob_that_many_artifacts_name_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, once = [], kept_kernels._unpack
    monkeypatch.setattr(kept_kernels, "_unpack", lambda content, most: unpacked.append(most) or once(content, most))
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(pack_kept(many(1)))
    bad.write_bytes(b"not packed, and longer than a header")
    reader = KeptReader({Digest.of(b"good"): good, Digest.of(b"bad"): bad})
    for _ in range(3):
        assert reader.names(Digest.of(b"good"), ["cubin/c0.cubin"]) == {("cubin/c0.cubin", "add")}
        with pytest.raises(MalformedDocument, match="cannot be unpacked"):
            reader.names(Digest.of(b"bad"), ["cubin/c0.cubin"])
    with pytest.raises(MalformedDocument, match="are not those that the artifact has"):
        reader.names(Digest.of(b"good"), ["cubin/c1.cubin"])
    assert len(unpacked) == 2


def test_what_many_artifacts_keep_is_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = len(encode(many(1)))
    monkeypatch.setattr(kept_kernels, "MOST_OF_BUNDLE", 2 * plain)
    paths = {}
    for index in range(3):
        file = tmp_path / str(index)
        file.write_bytes(pack_kept(KeptKernels(triton=f"3.9.{index}", kernels=many(1).kernels)))
        paths[Digest.of(file.name.encode())] = file
    reader, (first, second, third) = KeptReader(paths), paths
    for digest in (first, second, second):
        reader.names(digest, ["cubin/c0.cubin"])
    with pytest.raises(MalformedDocument, match=f"or those of the bundle more than {2 * plain}"):
        reader.names(third, ["cubin/c0.cubin"])


# Out of Triton's cache


def recorded(**deviations: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": "add",
        "num_warps": 4,
        "num_stages": 2,
        "num_ctas": 1,
        "maxnreg": None,
        "arch": "sm90",
        "shared": 2048,
        "global_scratch_size": 0,
        "triton_version": "3.9.0",
        "tensordesc_meta": [],
    }
    return fields | deviations


def a_cache(build: Path, content: bytes = b"cubin", **deviations: Any) -> Path:
    place = build / "cache" / "triton" / f"ENTRY{len(list(build.rglob('*.json')))}"
    place.mkdir(parents=True)
    (place / "add.cubin").write_bytes(content)
    (place / "add.ttir").write_text(TEXT)
    (place / "add.json").write_text(json.dumps(recorded(**deviations)))
    return place


def packaged(build: Path, content: bytes = b"cubin") -> dict[str, Path]:
    path = build / "out" / "c1.cubin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"cubin/c1.cubin": path}


def test_a_packaged_cubin_is_found_by_its_bytes(tmp_path: Path) -> None:
    a_cache(tmp_path, b"other", name="another")
    a_cache(tmp_path)
    [kernel] = collect_kept(packaged(tmp_path), tmp_path / "cache" / "triton").kernels
    assert kernel == a_kernel(options=KernelOptions(num_warps=4, num_stages=2, num_ctas=1), shared_bytes=2048)
    assert "/build/" not in kernel.ttir


@pytest.mark.parametrize(
    ("deviations", "words"),
    [
        ({"ptx_options": "--opt-level 0"}, "would lack what made add: its ptx_options"),
        ({"shared": "many"}, "shared_bytes"),
        ({"name": None}, "name"),
    ],
)
def test_a_kernel_that_its_text_alone_does_not_make_is_not_kept(
    tmp_path: Path, deviations: dict[str, Any], words: str
) -> None:
    a_cache(tmp_path, **deviations)
    with pytest.raises(MalformedDocument, match=words):
        collect_kept(packaged(tmp_path), tmp_path / "cache" / "triton")


def test_a_build_whose_kernels_are_not_in_the_cache_goes_on_and_says_so(tmp_path: Path) -> None:
    job = CompileJob(profile=a_gpu_profile(), out=str(tmp_path), build=str(tmp_path))
    cubins = packaged(tmp_path, (GOLDEN / "add-sm_90.cubin").read_bytes())
    for others in range(2):
        kept, why = keep_kernels(cubins, tmp_path, job)
        assert kept is None
        assert why.startswith("nothing is kept for other cards: ") and "lack cubin/c1.cubin" in why
        # The same kernel with other bytes is what two processes leave that compile it from two files.
        assert f"and {others} other(s) of the kernel add_kernel" in why
        place = a_cache(tmp_path, b"other")
        (place / "add.cubin").rename(place / "add_kernel.cubin")


def test_what_is_kept_is_written_and_names_no_place_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = CompileJob(profile=a_gpu_profile(), out=str(tmp_path), build=str(tmp_path))
    assert keep_kernels({}, tmp_path, job) == (None, "")
    assert keep_kernels({"cubin/c1.fatbin": tmp_path}, tmp_path, job) == (None, "")
    place = a_cache(tmp_path)
    kept, why = keep_kernels(packaged(tmp_path), tmp_path, job)
    assert kept is not None and (kept.path, why) == (KEPT_FILE, "")
    assert kept.size_bytes == (tmp_path / KEPT_FILE).stat().st_size
    monkeypatch.setattr(kept_kernels, "MOST_KERNEL_BYTES", 100)  # nobody would read it again
    assert "have more than 100 bytes" in keep_kernels(packaged(tmp_path), tmp_path, job)[1]
    (place / "add.ttir").write_text(TEXT.replace("in (text)", str(tmp_path)))
    _, why = keep_kernels(packaged(tmp_path), tmp_path, job)
    assert "would hold a path of the build" in why
    (place / "add.ttir").unlink()
    assert "Triton recorded it otherwise" in keep_kernels(packaged(tmp_path), tmp_path, job)[1]


def test_two_releases_of_triton_in_one_package_are_not_kept(tmp_path: Path) -> None:
    a_cache(tmp_path)
    a_cache(tmp_path, b"other cubin", triton_version="3.6.0")
    other = tmp_path / "out" / "c2.cubin"
    cubins = {**packaged(tmp_path), "cubin/c2.cubin": other}
    other.write_bytes(b"other cubin")
    with pytest.raises(MalformedDocument, match="are of 2 releases of Triton"):
        collect_kept(cubins, tmp_path / "cache" / "triton")
    assert altered(a_kernel(), options=KernelOptions(num_warps=8)).warps == 8
