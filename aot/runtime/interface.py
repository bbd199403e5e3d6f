"""The C interface that every AOTInductor shared object carries, as Python calls; the only ctypes of the runtime.

Prototypes: torch/csrc/inductor/aoti_runtime/interface.h. The symbols come from the shared object and thus from the
torch that built it, so those that not every supported release has are looked up and may be missing.
"""

import ctypes
import re
from collections.abc import Callable, Sequence
from ctypes import byref, c_bool, c_char_p, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from aot.errors import BindingFailed, LoadFailed

_REQUIRED: dict[str, tuple[Any, ...]] = {
    "AOTInductorModelContainerCreateWithDevice": (c_void_p, c_size_t, c_char_p, c_char_p),
    "AOTInductorModelContainerDelete": (c_void_p,),
    "AOTInductorModelContainerGetNumInputs": (c_void_p, c_void_p),
    "AOTInductorModelContainerGetNumOutputs": (c_void_p, c_void_p),
    "AOTInductorModelContainerGetNumConstants": (c_void_p, c_void_p),
    "AOTInductorModelContainerGetConstantName": (c_void_p, c_size_t, c_void_p),
    "AOTInductorModelContainerGetConstantOriginalFQN": (c_void_p, c_size_t, c_void_p),
    "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs": (c_void_p, c_void_p, c_size_t, c_bool, c_bool),
}
# Of these the callers prepare the arguments (`run_arguments`): to convert seven at each call takes as long as the rest.
_RUNS = ("AOTInductorModelContainerRun", "AOTInductorModelContainerRunSingleThreaded")
_OPTIONAL: dict[str, tuple[Any, ...]] = {
    "AOTInductorModelContainerGetConstantType": (c_void_p, c_size_t, c_void_p),
    "AOTInductorModelContainerGetConstantDtype": (c_void_p, c_size_t, c_void_p),
    "AOTInductorModelContainerGetConstantDataSize": (c_void_p, c_size_t, c_void_p),
    "AOTInductorModelContainerGetConstantFromFolded": (c_void_p, c_size_t, c_void_p),
    "AOTInductorGetLastError": (c_void_p,),
    # Of libtorch, which is found through the object (torch/csrc/stable/c/shim.h).
    "torch_exception_get_what_without_backtrace": (),
}
# The place in the generated source, which names the builder's directories.
_PLACE = re.compile(r" at (/\S*/)?\S+, line \d+")


class _Pair(ctypes.Structure):
    """AOTInductorConstantMapEntry."""

    _fields_ = (("name", c_char_p), ("handle", c_void_p))


class Interface:
    """The calls of one mapped shared object. A container's handle is a plain integer here."""

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        self.path = path
        self._calls: dict[str, Any] = {}
        for name, arguments in (_REQUIRED | dict.fromkeys(_RUNS) | _OPTIONAL).items():
            try:
                call = library[name]  # an object of our own: attributes of a library are shared
            except AttributeError:
                if name in _OPTIONAL:
                    continue
                raise LoadFailed(
                    f"{path.name} has no {name}", hint="it is no AOTInductor object, or of a torch older than 2.11"
                ) from None
            call.argtypes = arguments
            call.restype = c_char_p if name.startswith("torch_exception") else c_int32
            self._calls[name] = call
        self.run, self.run_single_threaded = (self._calls[name] for name in _RUNS)

    def create(self, device: str, cubins: Path, num_models: int) -> int:
        """Return the handle of a new container. Raises LoadFailed."""
        handle = c_void_p()
        create = self._calls["AOTInductorModelContainerCreateWithDevice"]
        if create(byref(handle), num_models, device.encode(), str(cubins).encode()) or not handle.value:
            raise LoadFailed(f"{self.path.name} could not be set up for {device}: {self.last_error()}")
        return handle.value

    def delete(self, handle: int) -> None:
        self._calls["AOTInductorModelContainerDelete"](handle)

    def bind(self, handle: int, names: Sequence[str], tensors: Sequence[int]) -> None:
        """Let the container use the tensors behind these handles, which stay the caller's. Raises BindingFailed."""
        pairs = (_Pair * max(1, len(names)))(
            *(_Pair(name.encode(), tensor) for name, tensor in zip(names, tensors, strict=True))
        )
        update = self._calls["AOTInductorModelContainerUpdateUserManagedConstantBufferPairs"]
        if update(handle, pairs, len(names), False, True):
            raise BindingFailed(f"{self.path.name} refused its tensors: {self.last_error()}")

    def count(self, of: str, handle: int) -> int:
        """Return what `GetNum<of>` says: "Inputs", "Outputs" or "Constants"."""
        value = c_size_t()
        self._ask(f"AOTInductorModelContainerGetNum{of}", value, handle)
        return value.value

    def constant_text(self, of: str, handle: int, index: int) -> str:
        """Return "Name" or "OriginalFQN" of one constant."""
        value = c_char_p()
        self._ask(f"AOTInductorModelContainerGetConstant{of}", value, handle, index)
        return (value.value or b"").decode()

    def constant_number(self, of: str, handle: int, index: int) -> int | None:
        """Return "Type", "Dtype", "DataSize" or "FromFolded" of one constant; None where the object can't tell."""
        call = f"AOTInductorModelContainerGetConstant{of}"
        if call not in self._calls:
            return None
        value: Any = {"DataSize": c_size_t, "FromFolded": c_bool}.get(of, c_int32)()
        self._ask(call, value, handle, index)
        return int(value.value)

    def last_error(self) -> str:
        """Return why this thread's last call failed, without source places; older objects only print it."""
        ask = self._calls.get("AOTInductorGetLastError")
        text = c_char_p()
        if ask is None or ask(byref(text)) or not text.value:
            return "the reason was printed on this process's stderr"
        reason = _PLACE.sub("", text.value.decode(errors="replace"))
        call, failed, _ = reason.partition(" API call failed")
        if not failed:
            return reason
        # One of torch's functions refused; the object knows only which, torch also knows why.
        why = self._calls.get("torch_exception_get_what_without_backtrace")
        cause = (why() or b"").decode(errors="replace") if why is not None else ""
        return f"{call.partition('(')[0]}: {cause.strip()}" if cause else reason

    def _ask(self, name: str, value: Any, *arguments: int) -> None:
        if self._calls[name](*arguments, byref(value)):
            raise LoadFailed(f"{name} of {self.path.name} failed: {self.last_error()}")


def open_interface(path: Path) -> Interface:
    """Map the shared object at `path` into this process, for good. Raises LoadFailed."""
    # The object needs libtorch without saying where it is; importing torch is what makes it known.
    import torch  # noqa: F401

    try:
        library = ctypes.CDLL(str(path.absolute()))  # RTLD_NOW, and RTLD_LOCAL: many objects have the same symbols
    except OSError as error:
        raise _unmapped(path, error) from error
    return Interface(library, path)


def _unmapped(path: Path, error: OSError) -> LoadFailed:
    from aot.cache.faults import NOEXEC_HINT, is_noexec

    if is_noexec(path):  # the system says only that a segment could not be mapped
        return LoadFailed(
            f"{path.name} cannot be mapped: {path.parent} is on a file system mounted noexec ({error})",
            hint=NOEXEC_HINT,
        )
    return LoadFailed(f"{path.name} cannot be mapped: {error}", hint="`aot explain` compares its needs with this host")


def run_arguments(handle: int, inputs: Any, outputs: Any, stream: int | None) -> tuple[Any, ...]:
    """Return the arguments of `Interface.run`, ready for any number of calls; `inputs` and `outputs` are arrays.

    Each is what ctypes hands to C as it is. The arrays are referred to, and kept.
    """
    return (
        c_void_p.from_param(handle),
        byref(inputs),
        c_size_t.from_param(len(inputs)),
        byref(outputs),
        c_size_t.from_param(len(outputs)),
        c_void_p.from_param(stream),
        None,
    )


def capsule_address() -> Callable[[object, None], int]:
    """Return PyCapsule_GetPointer, a prototype of our own, since other libraries set theirs on `ctypes.pythonapi`."""
    prototype = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_void_p)
    return prototype(("PyCapsule_GetPointer", ctypes.pythonapi))


def capsule_maker() -> Callable[[c_void_p, None, None], object]:
    """Return PyCapsule_New; capsules made with it own nothing. The address is a `c_void_p`: an integer would be cut."""
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object)
    return prototype(("PyCapsule_New", ctypes.pythonapi))
