"""A program with a kernel that the CUDA driver compiles: PTX, loaded by the driver's own API, launched and checked.

`python3 -S driven.py LIBRARY WORD...`: the driver's library by name or path, then a compiled graph a word, as
`graph_writer.py` has them, for a capture is one of graphs. It needs no torch.

Sources: CUDA driver API, modules and execution control; PTX ISA 7.0.
"""

import ctypes
import runpy
import sys
from pathlib import Path

STEPS, THREADS, WORD_MASK = 512, 64, 2**32 - 1
# PTX of an old release for an old card is compiled by every newer driver.
HEAD = """.version 7.0
.target sm_75
.address_size 64
.visible .entry mix(.param .u64 results)
{
    .reg .u32 %r<1>;
    .reg .u64 %d<4>;
    ld.param.u64 %d0, [results];
    cvta.to.global.u64 %d1, %d0;
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d2, %r0, 4;
    add.s64 %d3, %d1, %d2;
"""
STEP = "    mul.lo.u32 %r0, %r0, {};\n    xor.b32 %r0, %r0, {};\n"
TAIL = "    st.global.u32 [%d3], %r0;\n    ret;\n}\n"


def steps() -> list[tuple[int, int]]:
    """What each thread does to its number, one after the other: a factor, and what is then exclusive-ored."""
    found, state = [], 1
    for _ in range(STEPS):
        state = (state * 1664525 + 1013904223) & WORD_MASK
        found.append((state | 1, state >> 7))
    return found


def results() -> list[int]:
    """What the kernel writes, by thread."""
    found = list(range(THREADS))
    for factor, mask in steps():
        found = [(one * factor & WORD_MASK) ^ mask for one in found]
    return found


def compute(library: str) -> list[int]:
    """Let the driver compile the kernel, or find what it has compiled, and run it."""
    driver = ctypes.CDLL(library)

    def call(name: str, *arguments: object) -> None:
        code = getattr(driver, name)(*arguments)
        if code:
            raise SystemExit(f"{name} ended with {code}")

    device, memory, size = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t(4 * THREADS)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    text = HEAD + "".join(STEP.format(*one) for one in steps()) + TAIL
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), text.encode())
    call("cuModuleGetFunction", ctypes.byref(function), module, b"mix")
    call("cuMemAlloc_v2", ctypes.byref(memory), size)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    call("cuLaunchKernel", function, 1, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
    found = (ctypes.c_uint32 * THREADS)()
    call("cuMemcpyDtoH_v2", found, memory, size)
    return list(found)


if __name__ == "__main__":
    if compute(sys.argv[1]) != results():
        raise SystemExit("the kernel has computed something else")
    sys.argv[1:] = sys.argv[2:]
    runpy.run_path(str(Path(__file__).with_name("graph_writer.py")))
