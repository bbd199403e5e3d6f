"""What a shared object asks of torch's C interface, and of the C++ library's string ABI, by its symbols.

Sources: torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h of torch 2.13, where the blocks
`#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_x_0` say which release brought a function. Functions outside such a block
are older than the dating, or promised to no release: those have no floor, and a host's torch has them or not. GCC
manual, "Dual ABI" (names of the new one hold `__cxx11`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from aot.facts.elf import SHN_UNDEF, SHT_DYNSYM, Elf
from aot.facts.versions import highest

_SINCE = {
    "2.10": """torch_call_dispatcher torch_library_impl torch_new_list_reserve_size torch_list_size torch_list_get_item
        torch_list_set_item torch_list_push_back torch_delete_list torch_parse_device_string torch_parallel_for
        torch_get_thread_idx torch_get_num_threads torch_get_mutable_data_ptr torch_get_const_data_ptr
        torch_new_string_handle torch_delete_string torch_string_length torch_string_c_str
        torch_get_current_cuda_blas_handle torch_set_current_cuda_stream torch_get_cuda_stream_from_pool
        torch_cuda_stream_synchronize torch_c10_cuda_check_msg torch_c10_cuda_free_error_msg torch_set_requires_grad""",
    "2.11": "torch_dtype_float8_e8m0fnu torch_dtype_float4_e2m1fn_x2 torch_from_blob",
    "2.12": """aoti_torch_dtype_float8_e8m0fnu aoti_torch_dtype_float4_e2m1fn_x2 torch_tag_core
        torch_tag_cudagraph_unsafe torch_tag_data_dependent_output torch_tag_dynamic_output_shape
        torch_tag_flexible_layout torch_tag_generated torch_tag_inplace_view torch_tag_maybe_aliasing_or_mutating
        torch_tag_needs_contiguous_strides torch_tag_needs_exact_strides torch_tag_needs_fixed_stride_order
        torch_tag_nondeterministic_bitwise torch_tag_nondeterministic_seeded torch_tag_out_variant torch_tag_pointwise
        torch_tag_pt2_compliant_tag torch_tag_reduction torch_tag_view_copy torch_library_def_with_tags""",
    "2.13": """torch_library_set_python_module torch_exception_get_what torch_exception_get_what_without_backtrace
        torch_new_stable_ivalue torch_delete_stable_ivalue torch_stream_native_handle torch_new_generator_handle
        torch_delete_generator torch_generator_get_device""",
}
RELEASES = {name: release for release, names in _SINCE.items() for name in names.split()}
_PREFIXES = ("aoti_torch_", "torch_")
# A name with a string or list of the C++ library inside: the old ABI spells it without the inline namespace.
_NEW_STRING, _OLD_STRING = "__cxx11", "Ss"


@dataclass(frozen=True)
class Asked:
    """`torch_symbols` are undefined and sorted. `cxx11_abi` None: no name holds a string of the C++ library."""

    torch_symbols: tuple[str, ...]
    floor: str | None
    cxx11_abi: bool | None


def asked_of_torch(elf: Elf) -> Asked:
    """Return what the dynamic symbols of `elf` ask for. Raises MalformedDocument."""
    undefined: set[str] = set()
    names_seen: set[str] = set()
    found = elf.table_of(SHT_DYNSYM)
    if found is not None:
        table, names = found
        end = names.offset + names.size_bytes
        for symbol in elf.symbols(table, names=names):
            name = elf.image.text_at(symbol.name_offset, end=end)
            names_seen.add(name)
            if symbol.section == SHN_UNDEF and name.startswith(_PREFIXES):
                undefined.add(name)
    dated = (RELEASES[name] for name in undefined if name in RELEASES)
    return Asked(tuple(sorted(undefined)), highest(dated), _string_abi(names_seen))


def _string_abi(names: Iterable[str]) -> bool | None:
    mangled = [name for name in names if name.startswith("_Z")]
    if any(_NEW_STRING in name for name in mangled):
        return True
    # "Ss" is std::string of the old ABI wherever a type may stand: after a name, before other types.
    return False if any(name.endswith(_OLD_STRING) or "RKSs" in name for name in mangled) else None
