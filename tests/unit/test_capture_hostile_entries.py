"""Hostile entries of compiled graphs: what torch would not write costs no more than its length, and stays as it was."""

import time
import tracemalloc

import pytest

from aot.bundle.paths import PATH_BYTES
from aot.capture.bundled import refilled, slimmed
from aot.capture.collect import MARK
from aot.capture.kernels import kernels_of
from aot.capture.symbolic import write
from aot.capture.symbols import Global, Made, Node, Value, fields_of, instance, set_fields, set_items, set_named

MODULE = "torch._inductor.triton_bundler"
FKEY = "inductor/fxgraph/ke/fkey/x"


def _none(_: str) -> None:
    return None


def a_list(*items: Value) -> Node:
    made = Node(Made.LIST)
    set_items(made, items)
    return made


def a_bundle(*, kernels: tuple[Value, ...] = (), tuners: tuple[Value, ...] = ()) -> bytes:
    lists = {"kernel_artifacts": a_list(*kernels), "static_autotuners": a_list(*tuners)}
    return write(instance(Global(MODULE, "TritonBundle"), lists), 4)


def a_kernel(key: str, device: Value) -> Node:
    fields = {"kernel_hash": key, "device": device, "artifacts": a_list()}
    return instance(Global(MODULE, "TritonKernelArtifacts"), fields)


def nested_lists(depth: int, *, times: int) -> Node:
    """A list in lists, `times` in each: of a few bytes, and printed without end."""
    node = a_list("a")
    for _ in range(depth):
        node = a_list(*[node] * times)
    return node


@pytest.mark.parametrize("shared", ["artifacts", "compile_results", "inductor_meta", "device"])
def test_hostile_entries_cost_no_more_than_their_length(shared: str) -> None:
    """One long list, in many places: each of a few bytes would ask for all of it."""
    many = {"artifacts": 30_000, "compile_results": 30_000, "inductor_meta": 250, "device": 14}[shared]
    file = instance(Global(MODULE, "TritonKernelArtifact"), {"filename": "x", "payload": b""})
    result = instance(Global("any", "Result"), {"kernel": instance(Global("any", "Kernel"), {"hash": "ab"})})
    files, results = Node(Made.LIST), Node(Made.LIST)
    set_items(files, [file] * (many if shared == "artifacts" else 1))
    set_items(results, [result] * (many if shared == "compile_results" else 1))
    meta = Node(Made.DICT)
    set_named(meta, {f"name{number}": number for number in range(many if shared == "inductor_meta" else 1)})
    kernel = instance(Global("any", "Tuner"), {"compile_results": results, "inductor_meta": meta})
    device = nested_lists(many, times=2) if shared == "device" else 0
    fields = {"kernel_hash": "AB", "device": device, "artifacts": files}
    kernels, tuners = Node(Made.LIST), Node(Made.LIST)
    set_items(kernels, [instance(Global(MODULE, "TritonKernelArtifacts"), fields)] * 30_000)
    set_items(tuners, [instance(Global(MODULE, "StaticallyLaunchedAutotuner"), {"kernel": kernel})] * 30_000)
    bundle = {"kernel_artifacts": kernels, "static_autotuners": tuners}
    content = write(instance(Global(MODULE, "TritonBundle"), bundle), 4)
    started = time.perf_counter()
    slimmed(content, FKEY, chosen=_none, kernels=kernels_of((), ()))
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize(
    "device",
    [nested_lists(16, times=2), nested_lists(3000, times=1), "0", None, True, 1.5, -1, 1 << 16, 1 << 2000],
    ids=["wide", "deep", "text", "none", "bool", "float", "negative", "many", "long"],
)
def test_a_kernel_of_no_card_is_not_understood_and_costs_nothing(device: Value) -> None:
    """Neither where a graph is slimmed nor where it is exported: the entry stays as it was."""
    content, kernels = a_bundle(kernels=(a_kernel("AB", device), a_kernel("CD", 0))), kernels_of((), ("triton/CD/x",))
    assert slimmed(content, FKEY, chosen=_none, kernels=kernels) == content
    gone = a_bundle(kernels=(a_kernel("AB", 7),))
    assert (
        slimmed(a_bundle(kernels=(a_kernel("AB", 7), a_kernel("CD", 0))), FKEY, chosen=_none, kernels=kernels) == gone
    )
    there = kernels_of(("triton/AB/x", "inductor/triton/0/AB/x"), ())
    alone = a_bundle(kernels=(a_kernel("AB", device),))
    assert refilled(alone, FKEY, kernels=there, read_file=lambda _: b"x", mark=MARK) == (alone, frozenset())


def a_hostile_tuner(*, digest: str, place: str, count: int) -> Node:
    """One of `count` references to one candidate, whose texts are as long as they are wanted."""
    cache = instance(Global("any", "Cache"), {"local_cache": Node(Made.TUPLE, (place,)), "configs_hash": "h"})
    hook = Node(Made.CALLED, (Global("builtins", "getattr"), Node(Made.TUPLE, (cache, "save"))))
    result = instance(Global("any", "Result"), {"kernel": instance(Global("any", "Kernel"), {"hash": digest})})
    meta = Node(Made.DICT)
    fields = {"compile_results": a_list(*[result] * count), "inductor_meta": meta, "filename": place}
    kernel = instance(Global("any", "Tuner"), {**fields, "save_cache_hook": hook})
    return instance(Global(MODULE, "StaticallyLaunchedAutotuner"), {"kernel": kernel})


@pytest.mark.parametrize("long", ["digest", "key"])
def test_one_long_text_in_many_places_is_not_copied_for_each(long: str) -> None:
    """As a hash, or as the name of a kernel's directory: none of torch's is as long, and none is read."""
    size, count = 1 << 18, 100
    if long == "key":
        content = a_bundle(kernels=tuple(a_kernel("K" * size, number) for number in range(count)))
    else:
        tuner = a_hostile_tuner(digest="ab" * (size // 2), place="c/ab/one.best_config", count=count)
        content = a_bundle(tuners=(tuner,))
    tracemalloc.start()
    try:
        assert slimmed(content, FKEY, chosen=_none, kernels=kernels_of((), ())) == content
        assert tracemalloc.get_traced_memory()[1] < 16 * size
    finally:
        tracemalloc.stop()


def test_a_path_that_is_too_long_stays_in_a_tuner_with_one_candidate() -> None:
    for length, is_cut in ((PATH_BYTES, True), (PATH_BYTES + 2, False)):
        place = "a/" * (length // 2)
        content = a_bundle(tuners=(a_hostile_tuner(digest="ab", place=place, count=1),))
        found = slimmed(content, FKEY, chosen=_none, kernels=None)
        assert (place.encode() not in found) == is_cut and b"save_cache_hook" in found and found != content


def test_an_entry_that_cannot_be_written_without_its_candidates_stays_as_it_was() -> None:
    """What tuning did not choose held the first place of an object that what it chose is made of."""
    held = instance(Global("any", "Held"), {"by": None})
    holder = Node(Made.CALLED, (Global("any", "Holder"), Node(Made.TUPLE, (held,))))
    set_fields(held, {"by": holder})
    results = []
    for value, extra in ((1, held), (2, holder)):
        config = instance(Global("any", "Config"), {"kwargs": Node(Made.DICT), "num_warps": value, "num_stages": 1})
        kernel = instance(Global("any", "Kernel"), {"hash": f"a{value}"})
        results.append(instance(Global("any", "Result"), {"kernel": kernel, "config": config, "extra": extra}))
    tuner = a_hostile_tuner(digest="ab", place="c/ab/one.best_config", count=1)
    set_items(fields_of(fields_of(tuner)["kernel"])["compile_results"], results)
    best = {"configs_hash": "h", "num_warps": 2, "num_stages": 1}
    content = a_bundle(tuners=(tuner,))
    assert slimmed(content, FKEY, chosen=lambda _: best, kernels=None) == content
    set_fields(held, {"by": None})
    harmless = a_bundle(tuners=(tuner,))
    assert len(slimmed(harmless, FKEY, chosen=lambda _: best, kernels=None)) < len(harmless)
