"""What the verdict on each of the fleet's artifacts should be, from the text of a host's file: an independent account.

Written from the sources that the rules cite, axis by axis, and sharing nothing with `aot`: neither its rules nor its
tables, types or parsers. `tests/unit/test_oracle.py` compares the two.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

AMX = {"amx_bf16", "amx_int8", "amx_tile"}
# x86-64 psABI, micro-architecture levels, as the names of /proc/cpuinfo (sse3 is pni there, lzcnt is abm).
X86_LEVELS = (
    (2, {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    (3, {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    (4, {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)
ARM_ORDER = ("armv8-a", "armv8.2-a", "armv8.4-a", "armv9-a")  # each holds the one before


@dataclass(frozen=True)
class Built:
    """What was built, in plain words. `card`: compute capability, SKU, multiprocessors; `only`: of an `a` target."""

    torch: str
    x86: int = 2
    amx: bool = False
    arm: str | None = None
    card: tuple[tuple[int, int], str, int] | None = None
    only: bool = False
    cuda: tuple[int, int] | None = None
    driver: tuple[int, ...] = ()


def gpu(torch: str, card: tuple[tuple[int, int], str, int], cuda: tuple[int, int], *, only: bool = False) -> Built:
    # The first driver of a CUDA major release: CUDA compatibility guide, minor version compatibility.
    driver = {12: (525, 60, 13), 13: (580, 65, 6)}[cuda[0]]
    return Built(torch, card=card, cuda=cuda, driver=driver, only=only)


A10G = ((8, 6), "NVIDIA A10G", 80)
A100 = ((8, 0), "NVIDIA A100-SXM4-40GB", 108)
H100 = ((9, 0), "NVIDIA H100 80GB HBM3", 132)
B200 = ((10, 0), "NVIDIA B200", 148)
RTX5090 = ((12, 0), "NVIDIA GeForce RTX 5090", 170)
BUILT = {
    "cpu v2": Built("2.13.0+cpu"),
    "cpu v3": Built("2.13.0+cpu", x86=3),
    "cpu v4": Built("2.13.0+cpu", x86=4),
    "cpu amx": Built("2.13.0+cpu", x86=4, amx=True),
    "arm v8.2": Built("2.13.0+cpu", arm="armv8.2-a"),
    "a10g 2.12 cu128": gpu("2.12.0+cu128", A10G, (12, 8)),
    "a100 2.12 cu126": gpu("2.12.0+cu126", A100, (12, 6)),
    "h100 2.13 cu130": gpu("2.13.0+cu130", H100, (13, 0), only=True),
    "h100 2.13 cu128": gpu("2.13.0+cu128", H100, (12, 8), only=True),
    "h100 2.12 cu126": gpu("2.12.0+cu126", H100, (12, 6)),
    "b200 2.13 cu128": gpu("2.13.0+cu128", B200, (12, 8), only=True),
    "rtx5090 2.13 cu130": gpu("2.13.0+cu130", RTX5090, (13, 0)),
}

NO, OPEN, NOTE = "no", "open", "note"
Finding = tuple[str, str]
"""An axis, and NO, OPEN or NOTE."""


def judge(name: str, host: dict[str, Any]) -> tuple[str, set[frozenset[str]], tuple[int, ...]]:
    """Level; the kinds that stand against it, for each of the best cards; and which cards these are, of several."""
    built, cards = BUILT[name], host.get("node", {}).get("gpus")
    common = set(_of_host(built, host))
    if built.card is None or not cards:
        level, kinds = _sum(common | set(_of_card(built, None, cards)))
        return level, {kinds}, ()
    each = [_sum(common | set(_of_card(built, card, cards))) for card in cards]
    best = next(level for level in ("fits", "elsewhere", "undecided", "rejected") if level in [one for one, _ in each])
    chosen = tuple(index for index, (level, _) in enumerate(each) if level == best)
    return best, {each[index][1] for index in chosen}, chosen if len(cards) > 1 else ()


def _sum(findings: set[Finding]) -> tuple[str, frozenset[str]]:
    for finding, level in ((NO, "rejected"), (OPEN, "undecided"), (NOTE, "elsewhere")):
        if kinds := frozenset(kind for kind, found in findings if found == finding):
            return level, kinds
    return "fits", frozenset()


def _of_host(built: Built, host: dict[str, Any]) -> Iterator[Finding]:
    node, container = host.get("node", {}), host.get("container", {})
    # A process that has set nothing has torch's defaults.
    process = host.get("process") or {"deterministic": False, "default_dtype": "float32", "matmul_precision": "highest"}
    yield from _equal("machine", "aarch64" if built.arm else "x86_64", node.get("machine"))
    yield from _equal("torch", built.torch, container.get("torch"))
    yield from _floor("libstdcxx", (3, 4, 30), container.get("libstdcxx"))
    if str(container.get("libc")).startswith("musl"):
        yield "libc", NO
    else:
        yield from _floor("libc", (2, 34), container.get("libc"))
    yield from _equal("default_dtype", "float32", process.get("default_dtype"))
    if process.get("matmul_precision") is None:
        yield "matmul_precision", OPEN
    # None of them was compiled under deterministic algorithms.
    yield from _equal("deterministic", False, process.get("deterministic"))
    if built.amx:
        yield from _floor("kernel", (5, 16), node.get("kernel"))
    yield from _of_cpu("capability" if built.card is None else "cpu", built, node)
    if built.cuda is not None:
        found = container.get("cuda")
        if found is not None and int(found.split(".")[0]) != built.cuda[0]:
            yield "cuda", NO
        else:
            yield from _floor("cuda", built.cuda, found)
        yield from _floor("driver", built.driver, node.get("driver"))


def _of_cpu(kind: str, built: Built, node: dict[str, Any]) -> Iterator[Finding]:
    cpu, flags = node.get("cpu"), node.get("cpu_features")
    if cpu is None:
        yield kind, OPEN
        return
    name = cpu.removeprefix("cpu:")
    if built.arm is not None:
        if name not in ARM_ORDER or ARM_ORDER.index(name) < ARM_ORDER.index(built.arm):
            yield kind, NO
        return
    level = int(name.removeprefix("x86-64-v")) if name.startswith("x86-64-v") else 0
    if flags is not None and level:
        level = next((number - 1 for number, wanted in X86_LEVELS if not wanted <= set(flags)), 4)
    if level < built.x86:
        yield kind, NO
    elif built.amx and flags is None:
        yield kind, OPEN
    elif built.amx and not set(flags) >= AMX:
        yield kind, NO


def _of_card(built: Built, card: dict[str, Any] | None, cards: list[Any] | None) -> Iterator[Finding]:
    if built.card is None:
        return
    if card is None:
        yield from (
            [("capability", NO)] if cards == [] else [(k, OPEN) for k in ("capability", "sku", "sm_count", "mig")]
        )
        return
    (major, minor), sku, count = built.card
    target = re.fullmatch(r"cuda:sm_(\d+)(\d)", card["capability"])
    found = (int(target[1]), int(target[2])) if target else (0, 0)
    # Code runs on its major version from its minor one on; that of an `a` target on its own version alone.
    runs = found == (major, minor) if built.only else found[0] == major and found[1] >= minor
    if not runs:
        yield "capability", NO
    if card["sku"] != sku:
        yield "sku", NOTE
    if card.get("sm_count") is None:
        yield "sm_count", OPEN
    elif card["sm_count"] != count:
        yield "sm_count", NOTE
    if card.get("mig"):
        yield "mig", NOTE


def _equal(kind: str, wanted: Any, found: Any) -> Iterator[Finding]:
    if found is None:
        yield kind, OPEN
    elif found != wanted:
        yield kind, NO


def _floor(kind: str, wanted: tuple[int, ...], found: str | None) -> Iterator[Finding]:
    if found is None:
        yield kind, OPEN
        return
    numbers = re.match(r"\d+(\.\d+)*", found)
    if numbers is None or tuple(map(int, numbers[0].split("."))) < wanted:
        yield kind, NO
