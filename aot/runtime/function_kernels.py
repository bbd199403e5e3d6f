"""Machine code of an artifact of the route `function`: its shared objects, by what they were compiled from.

torch's serialised function holds the C++ source of its kernels, and compiles it where it is loaded. A bundle brings
the shared objects too, so that a pod needs no compiler and starts no process: while a function is loaded, Inductor's
question for a source is answered with the object that was built from exactly that source, or refused.

The only place that knows how Inductor asks (torch 2.11 to 2.13: torch/_inductor/codecache.py, CppCodeCache).
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aot.errors import LoadFailed

Answer = Callable[..., Any]  # Inductor's: what it returns is called for the loaded module

_LOCK = threading.RLock()


def digest_source(main_code: str, optimized_code: str | None) -> str:
    """Return the name of a shared object: of the source that it was compiled from, and of nothing of its place."""
    return hashlib.sha256(f"{main_code}\0{optimized_code or ''}".encode()).hexdigest()


@contextlib.contextmanager
def record_kernels() -> Iterator[dict[str, Path]]:
    """Give the shared objects that Inductor loads inside the block, by `digest_source`."""
    found: dict[str, Path] = {}

    def answer(original: Answer, cache: Any, digest: str, *args: Any, **kwargs: Any) -> Any:
        fetch = original(*args, **kwargs)

        def load() -> Any:
            library = fetch()
            found[digest] = Path(getattr(library, "__file__", None) or library._name)
            return library

        return load

    with _answered(answer):
        yield found


@contextlib.contextmanager
def serve_kernels(libraries: Mapping[str, Path]) -> Iterator[None]:
    """Let Inductor find `libraries` for its sources inside the block and, in this thread, nothing else: no compiler.

    Raises LoadFailed, out of Inductor's question, for a source that none of them was compiled from.
    """

    def answer(original: Answer, cache: Any, digest: str, *args: Any, **kwargs: Any) -> Any:
        path = libraries.get(digest)
        if path is None:
            raise LoadFailed(
                f"the artifact has no shared object for a kernel of its own ({digest[:12]})",
                hint="build it again; a pod does not compile",
            )
        return lambda: cache._load_library_inner(str(path), f"aot_{digest}")

    with _answered(answer):
        yield


@contextlib.contextmanager
def _answered(answer: Answer) -> Iterator[None]:
    from torch._inductor.codecache import CppCodeCache

    with _LOCK:
        before, thread = CppCodeCache.__dict__["load_async"], threading.get_ident()

        def load_async(cls: Any, *args: Any, **kwargs: Any) -> Any:
            original = before.__func__.__get__(cls)
            if threading.get_ident() != thread:
                return original(*args, **kwargs)  # somebody else's torch.compile
            main_code = args[0] if args else kwargs.get("main_code", kwargs.get("source_code"))
            optimized = args[4] if len(args) > 4 else kwargs.get("optimized_code")
            return answer(original, cls, digest_source(str(main_code), optimized), *args, **kwargs)

        CppCodeCache.load_async = classmethod(load_async)
        try:
            yield
        finally:
            CppCodeCache.load_async = before
