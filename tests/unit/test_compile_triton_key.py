"""What Inductor waits for in the midst of a first compile is computed beside what comes before it."""

import threading

import pytest

pytestmark = pytest.mark.torch


def test_tritons_key_is_known_before_a_compile_asks_for_it() -> None:
    from aot.compile.torch_inductor import load_compiler

    load_compiler()
    for thread in threading.enumerate():
        if thread.name == "hash-triton":
            thread.join()
    from triton.runtime.cache import triton_key

    assert triton_key.cache_info().currsize == 1


def test_a_key_that_cannot_be_had_keeps_no_compiler_from_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import codecache

    from aot.compile.torch_inductor import load_compiler

    asked = threading.Event()

    def fail() -> str:
        asked.set()
        raise OSError("no such file")

    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(codecache, "triton_key", fail)
    load_compiler()
    for thread in threading.enumerate():
        if thread.name == "hash-triton":
            thread.join()
    assert asked.is_set() and not failed
