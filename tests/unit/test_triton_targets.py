"""The table of targets, the profiles and keys of kernels, and what their code objects say of themselves."""

from pathlib import Path

import pytest

from aot.compile.kernels.code_object import read_code_object
from aot.compile.kernels.targets import TARGETS, target_for
from aot.compile.kernels.triton_compile import check_shared
from aot.errors import BackendFailed, InvalidCapability, MalformedDocument
from aot.keys import changes_between, factors_of, key_of
from aot.schema.capability import Capability
from aot.schema.names import Name
from aot.schema.profile import Toolchain, kernel_profile_name
from tests.builders import a_toolchain, altered
from tests.kernel_builders import a_kernel_profile, a_kernel_source, a_kernel_spec, a_signature


def test_the_table_holds_what_the_project_names() -> None:
    sm = [f"cuda:sm_{number}" for number in (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)]
    assert list(TARGETS) == [*sm, "rocm:gfx90a", "rocm:gfx942", "rocm:gfx950", "rocm:gfx1100"]
    for text, target in TARGETS.items():
        assert Capability.parse(text) == target.capability
        assert target_for(text) is target
        assert target.suffix == ("cubin" if text.startswith("cuda") else "hsaco")


@pytest.mark.parametrize(
    "text", ["cuda:sm_70", "cuda:sm_101", "cuda:sm_90a", "rocm:gfx906", "cpu:x86-64-v3", "h100", ""]
)
def test_an_unknown_target_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(InvalidCapability) as caught:
        target_for(text)
    assert text in caught.value.message
    assert "sm_" in caught.value.hint or "gfx" in caught.value.hint


def test_a_block_may_use_all_of_the_shared_memory_and_not_a_byte_more() -> None:
    for target in TARGETS.values():
        check_shared(a_signature(), target, target.shared_bytes)
        with pytest.raises(BackendFailed) as caught:
            check_shared(a_signature(), target, target.shared_bytes + 1)
        assert f"asks for {target.shared_bytes + 1} bytes" in caught.value.message
        assert f"{target.capability} has {target.shared_bytes}" in caught.value.message


def test_the_profile_of_kernels_is_named_after_target_and_triton() -> None:
    assert kernel_profile_name(Capability("cuda:sm_90"), "3.9.0") == "cuda-sm_90-triton-3.9.0"
    assert kernel_profile_name(Capability("rocm:gfx942"), "3.6.0+git1") == "rocm-gfx942-triton-3.6.0-git1"


def keyed(toolchain: Toolchain | None = None, **deviations: object) -> str:
    profile = a_kernel_profile(toolchain=toolchain or a_toolchain(triton="3.9.0"))
    return key_of(factors_of(a_kernel_spec(profile, source=a_kernel_source(**deviations)), profile))


def test_only_what_decides_a_kernels_code_is_in_its_key() -> None:
    base = keyed()
    elsewhere = a_toolchain(
        triton="3.9.0", torch="2.11.0+cu130", python="3.12.1", compiler="g++ 14.1.0", libc="glibc 2.39"
    )
    assert keyed(elsewhere) == base
    assert keyed(signatures=(a_signature("f16"), a_signature())) == keyed(
        signatures=(a_signature(), a_signature("f16"))
    )
    others = {
        keyed(a_toolchain(triton="3.8.0")),
        keyed(entry="kernels:mul"),
        keyed(signatures=(a_signature(num_warps=8),)),
        keyed(signatures=(a_signature(divisible=()),)),
        keyed(signatures=(a_signature(constants={"BLOCK": 512}),)),
        keyed(requirements=("numpy==2.0.0",)),
    }
    assert len(others | {base}) == 7


def test_a_key_of_another_target_names_that_factor() -> None:
    here, there = a_kernel_profile(), a_kernel_profile("cuda:sm_80")
    changes = changes_between(factors_of(a_kernel_spec(), here), factors_of(a_kernel_spec(), there))
    assert [change.name for change in changes] == ["capability"]


def test_a_spec_of_kernels_names_its_tree_as_what_a_worker_needs() -> None:
    spec = altered(a_kernel_spec(), name=Name("other"))
    assert spec.blobs == (a_kernel_source().tree,)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no code object at all" * 20])
def test_what_is_no_code_object_is_malformed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.cubin"
    path.write_bytes(content)
    with pytest.raises(MalformedDocument):
        read_code_object(path)
