"""Rules about what is installed: torch and its runtimes in the container, driver and kernel on the node."""

from msgspec.structs import replace

from aot.errors import InvalidCapability
from aot.rules.rule import against, floor, missing, one_of, same, spell, unknown, version
from aot.schema.capability import Capability
from aot.schema.decision import Reason
from aot.schema.environment import Environment

# The oldest Linux driver of each major release of CUDA, which runs what every minor one of it compiled. Sources: CUDA
# compatibility guide, minor version compatibility, table 1; CUDA toolkit release notes, table of minimum drivers.
OLDEST_DRIVERS = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}

AMX_KERNEL = "5.16"  # source: Linux documentation, arch/x86/xstate (ARCH_REQ_XCOMP_PERM), merged for 5.16

# The first driver branch that reads each version of PTX. Source: PTX ISA, release notes, PTX release history (also in
# libcu++, cuda/std/__cccl/ptx_isa.h). 8.6 came between two branches of the table: the later one is taken.
_PTX_DRIVERS = {
    "7.0": "445",
    "7.1": "455",
    "7.2": "460",
    "7.3": "465",
    "7.4": "470",
    "7.5": "495",
    "7.6": "510",
    "7.7": "515",
    "7.8": "520",
    "8.0": "525",
    "8.1": "530",
    "8.2": "535",
    "8.3": "545",
    "8.4": "550",
    "8.5": "555",
    "8.6": "570",
    "8.7": "570",
    "8.8": "575",
    "9.0": "580",
}


def check_torch(value: str, environment: Environment) -> Reason | None:
    """Exact, local part included: the shim that a package calls is stable in name only, and `+cpu`, `+cu130` and a
    local build are different libraries. A guard lists every release that the artifact was qualified under.
    (pytorch#123745: an unresolved symbol one release later.)

    Source: torch/csrc/inductor/aoti_torch/c/shim.h promises no compatibility between releases.
    """
    text = "the artifact is proven with torch {wanted}, not {found}"
    return one_of("torch", value, environment.container.torch, text)


def check_python(value: str, environment: Environment) -> Reason | None:
    """Exact on major.minor: asked by routes that store bytecode or pickles, and by artifacts of a module's source,
    since the fingerprint that a live module is compared with is made of its classes' bytecode.

    Source: Python's documentation of `dis`: bytecode may change between releases.
    """
    found = environment.container.python
    short = None if found is None else ".".join(found.split(".")[:2])
    return same("python", value, short, "the artifact is tied to Python {wanted} bytecode, this is Python {found}")


def check_interpreter(value: str, environment: Environment) -> Reason | None:
    """Exact, patch release included: a function that Dynamo compiled ahead of time refuses every other one.

    Source: torch/_dynamo/package.py, SystemInfo.check_compatibility.
    """
    text = "compiled under Python {wanted}, this is Python {found}"
    return same("interpreter", value, environment.container.python, text)


def check_triton(value: str, environment: Environment) -> Reason | None:
    """Exact: Triton's own cache key contains its version. Asked only where Triton is used at load.

    Source: triton/runtime/cache.py, triton_key.
    """
    return same("triton", value, environment.container.triton, "the artifact needs triton {wanted}, not {found}")


def check_bytecode(value: str, environment: Environment) -> Reason | None:
    """Exact: an interpreter reads bytecode of its own magic number, under a file name with its own tag and level of
    optimization; all else it passes over.

    Sources: importlib.util.MAGIC_NUMBER and cache_from_source; PEP 3147, PEP 488.
    """
    text = "compiled for the interpreter {wanted}, this is {found}"
    return same("bytecode", value, environment.container.bytecode, text)


def check_distribution(value: str, environment: Environment) -> Reason | None:
    """Exact, over the hashes of all modules: bytecode of another version is compared with its source at import, found
    to be of another, and was fetched for nothing.

    Sources: PyPA, recording installed projects; PEP 552, checked hash-based pycs.
    """
    installed = environment.container.distributions
    if installed is None:
        return missing("distribution", value)
    if value in installed:
        return None
    name = value.partition("==")[0]
    found = next((one for one in installed if one.partition("==")[0] == name), f"no {name} with a RECORD")
    return against("distribution", value, found, "compiled from {wanted}, this container has {found}")


def check_libc(value: str, environment: Environment) -> Reason | None:
    """Monotone: glibc keeps every symbol version that it ever had, so a newer one serves older programs. Another C
    library has none of them.

    Sources: glibc manual, symbol versioning; PEP 600 (manylinux is glibc); musl wiki, differences from glibc.
    """
    found = environment.container.libc
    if found is not None and found.startswith("musl"):
        return against("libc", value, found, "needs glibc {wanted} or newer, this container has {found}")
    return floor("libc", value, found, "needs glibc {wanted} or newer, this container has {found}")


def check_libstdcxx(value: str, environment: Environment) -> Reason | None:
    """Monotone, as for glibc: libstdc++.so.6 only adds GLIBCXX_ versions.

    Source: libstdc++ manual, ABI policy and guidelines.
    """
    found = environment.container.libstdcxx
    return floor("libstdcxx", value, found, "needs GLIBCXX_{wanted} or newer, this container defines up to {found}")


def check_cxx11_abi(value: str, environment: Environment) -> Reason | None:
    """Exact: std::string has two layouts with other symbol names, and torch is built with one of them.

    Source: libstdc++ manual, dual ABI; torch.compiled_with_cxx11_abi.
    """
    text = "the artifact's C++ strings are of the new ABI: {wanted}; this torch's: {found}"
    return same("cxx11_abi", value, spell(environment.container.cxx11_abi), text)


def check_cuda(value: str, environment: Environment) -> Reason | None:
    """Monotone within one major release: minor-version compatibility; the next major one is another library.

    Source: CUDA compatibility guide, minor version compatibility.
    """
    found = environment.container.cuda
    if found is not None and found.split(".")[0] != value.split(".")[0]:
        return against("cuda", value, found, "built for CUDA {wanted}, this is CUDA {found}")
    return floor("cuda", value, found, "needs CUDA {wanted} or newer, this is {found}")


def check_hip(value: str, environment: Environment) -> Reason | None:
    """Exact on major.minor: the HIP runtime promises compatibility within a major release for its own interface, but
    no document found says so of the code objects and libraries that a build of torch brings.

    Source: HIP documentation, versioning (major.minor.patch).
    """
    found = environment.container.hip
    wanted = ".".join(value.split(".")[:2])
    short = None if found is None else ".".join(found.split(".")[:2])
    return same("hip", wanted, short, "built for ROCm's HIP {wanted}, this is {found}")


def check_driver(value: str, environment: Environment) -> Reason | None:
    """Monotone: a newer NVIDIA driver runs what an older one did; an older one than a CUDA release's first does not
    know its kernels' image. (triton#3001: "device kernel image is invalid" on 470.)

    Source: CUDA compatibility guide, backward compatibility and minor version compatibility.
    """
    return floor("driver", value, environment.node.driver, "needs NVIDIA driver {wanted} or newer, this is {found}")


def check_ptx(value: str, environment: Environment) -> Reason | None:
    """Monotone: PTX is compiled by the driver, which must be of the branch that brought this version of PTX or newer;
    minor-version compatibility does not hold for it.

    Sources: PTX ISA, release notes; CUDA compatibility guide, limitations of minor version compatibility.
    """
    least = _PTX_DRIVERS.get(value)
    if least is None:
        return unknown("ptx", value)
    found = environment.node.driver
    if found is None:
        return missing("ptx", value)
    text = f"PTX {value} needs NVIDIA driver {least} or newer, this is {{found}}"
    return floor("ptx", least, found, text)


def check_fallback(value: str, environment: Environment) -> Reason | None:
    """Monotone: where a card runs the machine code of a fat binary itself, its PTX is not read; everywhere else the
    driver must read this version of it. `value`: what the machine code is for, and the version: "cuda:sm_86 8.5".

    Sources: as of `ptx`; CUDA programming guide, "Just-in-Time Compilation".
    """
    text, _, ptx = value.partition(" ")
    try:
        code = Capability.parse(text)
    except InvalidCapability:
        return unknown("fallback", value)
    gpus = environment.node.gpus
    if gpus is None:
        return missing("fallback", value)
    if gpus and gpus[0].capability.runs(code):
        return None
    reason = check_ptx(ptx, environment)
    return reason and replace(reason, kind="fallback")


def check_kernel(value: str, environment: Environment) -> Reason | None:
    """Monotone: Linux keeps what it once offered to user space. An older one does not let a process use AMX tiles,
    whatever the CPU has.

    Source: Linux documentation, arch/x86/xstate, and admin-guide, "we do not break user space".
    """
    found = environment.node.kernel
    text = "needs Linux {wanted} or newer, this is {found}"
    return floor("kernel", value, None if found is None else _release(found), text)


def _release(kernel: str) -> str:
    """Return the numbers at the start of "6.1.0-18-amd64"; a text without any as it is."""
    head = kernel.partition("-")[0].partition("+")[0]
    numbers = [part for part in head.split(".") if version(part)]
    return ".".join(numbers) or kernel
