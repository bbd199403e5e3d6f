"""One compiled program, opened in place from its shared object and run through the object's own C interface.

The lowest step of the pod's `load`: below guards, calling convention and binding, above the machine code. Torch's
own runners hold the GIL for the whole call; a call through ctypes releases it, so threads run at once. The interface
is torch/csrc/inductor/aoti_runtime/interface.h; the symbols live in the shared object itself, so what it offers
depends on the torch that built it, and whatever is not in every supported release is looked up, not assumed.

Native code runs from `Container.open` on: bytes must be verified before they come here.
"""

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import sched_getaffinity
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

from aot.errors import BindingFailed, RunFailed
from aot.runtime.interface import Interface, capsule_address, capsule_maker, open_interface, run_arguments
from aot.runtime.process import without_modes
from aot.runtime.slots import misfits, read_slots

if TYPE_CHECKING:
    from torch import Tensor

# A model is about 10 kB on CPU. On a GPU each loads the kernels again, and two are enough to queue one call
# while the one before still runs: with one, every call waits for the device.
MOST_MODELS = {"cpu": 32, "cuda": 2}
_NO_STREAM: Any = object()  # equal to none


class _Slot:
    """Arrays for the handles of one call, and all that it gives to C; used by one thread at a time."""

    __slots__ = ("_array", "_handle", "arguments", "inputs", "outputs", "stream")

    def __init__(self, handle: int, num_inputs: int, num_outputs: int) -> None:
        self._handle = handle
        self.inputs = (ctypes.c_void_p * num_inputs)()
        self._array = (ctypes.c_void_p * num_outputs)()
        # The places of the array, each as an argument for C: what lies there needs no way through a Python integer.
        size = ctypes.sizeof(ctypes.c_void_p)
        self.outputs = [ctypes.c_void_p.from_buffer(self._array, size * index) for index in range(num_outputs)]
        self.use_stream(None)

    def use_stream(self, stream: int | None) -> None:
        self.stream = _NO_STREAM  # an interrupt may come between: the arguments then count for no stream
        self.arguments = run_arguments(self._handle, self.inputs, self._array, stream)
        self.stream = stream


class Container:
    """A shared object with its models, and the tensors bound to it.

    Several containers of one shared object are independent. All methods may be called from any thread; `run` lets
    as many calls in at once as there are models, the others wait with the GIL released. Open it after a fork: the
    OpenMP and CUDA states of a parent do not survive one.
    """

    def __init__(self, interface: Interface, handle: int, *, device: str, num_models: int) -> None:
        self.device = device
        self.num_models = num_models
        self.num_inputs = interface.count("Inputs", handle)
        self.num_outputs = interface.count("Outputs", handle)
        self.constants = read_slots(interface, handle)
        self._interface = interface
        self._handle: int | None = handle
        self._lock = Lock()
        self._bound: _Bound | None = None
        self._shared_runs = False
        # Holds the slots of idle models while bound, and one None otherwise: an unbound run would crash the
        # process, and this way the check costs nothing.
        self._idle: SimpleQueue[_Slot | None] = SimpleQueue()
        self._idle.put(None)
        self._stream_of = _stream_reader(device)
        self._prepare_calls()

    @classmethod
    def open(cls, path: Path, *, device: str, cubins: Path | None = None, num_models: int | None = None) -> Self:
        """Map the shared object at `path` and create its models for `device` ("cpu", "cuda:0").

        `cubins` is the directory of the kernels; the shared object's own when left out. `num_models` is how many
        calls may run at once; the cores that this process may use when left out, within MOST_MODELS. The object
        is never unmapped, and a path that was mapped before gives the bytes of that time.
        Raises LoadFailed.
        """
        interface = open_interface(path)
        device = _with_index(device)
        most = MOST_MODELS.get(device.partition(":")[0], 1)
        count = num_models or min(len(sched_getaffinity(0)), most)
        handle = interface.create(device, cubins or path.parent, count)
        return cls(interface, handle, device=device, num_models=count)

    def bind(self, tensors: Mapping[str, "Tensor"]) -> None:
        """Let the program use `tensors` (by the constants' `fqn`) in place: no copy, later writes are seen.

        Waits for calls in flight and holds later ones back. Binding again drops the earlier tensors; on a GPU, kernels
        of other streams may still be reading them, as when a module's weights are replaced. Only names and dtypes are
        checked here; shapes, strides and devices are `aot.runtime.binding`'s to check before.
        Raises BindingFailed; the earlier binding, if any, then stays.
        """
        wanted = [slot for slot in self.constants if not slot.folded]
        if reasons := misfits(wanted, tensors):
            raise BindingFailed(
                f"{len(reasons)} tensor(s) do not fit the artifact: {reasons[0]}",
                hint="load the artifact for the module that it was built from",
                details={"reasons": reasons},
            )
        with self._lock:
            handle = self._open_handle()
            fresh = _Bound([tensors[slot.fqn] for slot in wanted])
            slots = self._take_slots()
            try:
                self._interface.bind(handle, [slot.name for slot in wanted], fresh.handles)
            except BaseException:
                self._return_slots(slots if self._bound else ())
                fresh.release()
                raise
            earlier, self._bound = self._bound, fresh
            self._return_slots(slots)
        if earlier is not None:
            earlier.release()

    def keep_own(self) -> None:
        """Let the program run on the tensors that a frozen build put inside the object.

        Only for an artifact that is known to be frozen: another one has none inside, and running it would crash.
        Raises BindingFailed when something is bound already, or the container is closed.
        """
        with self._lock:
            self._open_handle()
            if self._bound is not None:
                raise BindingFailed("tensors are bound already", hint="open a container of its own")
            slots = self._take_slots()
            self._bound = _Bound([])
            self._return_slots(slots)

    @property
    def is_bound(self) -> bool:
        return self._bound is not None

    def run(self, tensors: Sequence["Tensor"]) -> tuple["Tensor | None", ...]:
        """Run on the flat inputs and return the flat outputs, on the caller's current stream when on a GPU.

        Dtypes, sizes and strides are not checked: wrong ones give garbage or read out of bounds. Gradients are
        never recorded.
        Raises RunFailed.
        """
        slot = self._idle.get()
        if slot is None:
            self._refuse()
        self._shared_runs = True
        try:
            return self._call(self._run, slot, tensors)
        finally:
            self._idle.put(slot)

    def run_single_threaded(self, tensors: Sequence["Tensor"]) -> tuple["Tensor | None", ...]:
        """As `run`, one call at a time and without events, as capture into a CUDA graph needs.

        A container is run in one way or the other, never both: the object takes this model from the list that
        `run` empties.
        Raises RunFailed.
        """
        slot = self._idle.get()
        if slot is None:
            self._refuse()
        try:
            if self._shared_runs or self.num_models != 1:
                raise RunFailed(
                    "a single-threaded run needs a container of one model that `run` was never called on",
                    hint="open a container of its own with num_models=1",
                )
            return self._call(self._run_single_threaded, slot, tensors)
        finally:
            self._idle.put(slot)

    def close(self) -> None:
        """Wait for calls in flight, delete the models and let go of the bound tensors; twice is harmless."""
        with self._lock:
            if self._handle is None:
                return
            self._take_slots()  # first: a call in flight still uses the handle
            handle, self._handle = self._handle, None
            bound, self._bound = self._bound, None
            self._interface.delete(handle)
            self._return_slots(())
        if bound is not None:
            bound.release()

    def __del__(self) -> None:
        # At interpreter exit torch's libraries may be half gone; the process's end frees everything anyway.
        if not sys.is_finalizing() and getattr(self, "_handle", None) is not None:
            self.close()

    def _prepare_calls(self) -> None:
        # Looked up once: attribute chains would cost as much as the call they lead to.
        from torch._C import _aoti

        self._run = self._interface.run
        self._run_single_threaded = self._interface.run_single_threaded
        self._to_capsules = _aoti.unsafe_alloc_void_ptrs_from_tensors
        self._from_capsules = _aoti.alloc_tensors_by_stealing_from_void_ptrs
        self._address_of = capsule_address()
        self._capsule_of = capsule_maker()

    def _call(self, function: Any, slot: _Slot, tensors: Sequence["Tensor"]) -> tuple["Tensor | None", ...]:
        if len(tensors) != self.num_inputs:
            raise RunFailed(f"wanted {self.num_inputs} input tensor(s), found {len(tensors)}")
        try:
            capsules = self._to_capsules(tensors)
        except TypeError:
            found = ", ".join(type(tensor).__name__ for tensor in tensors)
            # Not chained: pybind's message prints the tensors' values.
            raise RunFailed(f"wanted tensors as flat inputs, found {found}") from None
        # From here on the handles are the object's: it frees them, also when it fails.
        inputs, address_of = slot.inputs, self._address_of
        for index, capsule in enumerate(capsules):
            inputs[index] = address_of(capsule, None)
        if self._stream_of is not None and (stream := self._stream_of()) != slot.stream:
            slot.use_stream(stream)
        if function(*slot.arguments):
            raise RunFailed(f"the compiled program failed: {self._interface.last_error()}")
        # An output that is None is never written: its place stays empty. One handle may stand at several places, so
        # all of them are taken over in one go, which knows.
        capsule_of = self._capsule_of
        return tuple(self._from_capsules([capsule_of(place, None, None) if place else None for place in slot.outputs]))

    def _take_slots(self) -> list[_Slot]:
        """Wait until no call is in flight and hold later ones back; `_return_slots` lets them in again."""
        slot = self._idle.get()
        if slot is None:
            handle = self._open_handle()
            return [_Slot(handle, self.num_inputs, self.num_outputs) for _ in range(self.num_models)]
        return [slot, *(cast(_Slot, self._idle.get()) for _ in range(self.num_models - 1))]

    def _return_slots(self, slots: Sequence[_Slot]) -> None:
        for slot in slots or (None,):
            self._idle.put(slot)

    def _refuse(self) -> NoReturn:
        self._idle.put(None)
        if self._handle is None:
            raise RunFailed("the container is closed")
        raise RunFailed("no tensors are bound to the artifact", hint="call bind first")

    def _open_handle(self) -> int:
        if self._handle is None:
            raise BindingFailed("the container is closed")
        return self._handle


class _Bound:
    """Tensors lent to a shared object, and the handles that say so."""

    def __init__(self, tensors: Sequence["Tensor"]) -> None:
        from torch._C import _aoti

        # The object makes handles of its own from ours and never frees them (MaybeOwningAtenTensorHandle in
        # aoti_runtime/utils.h): bound directly, a model's weights would stay in memory for ever. So it gets
        # aliases, which are emptied when they are no longer needed; only about 200 bytes a tensor stay behind.
        with without_modes():  # fake tensors have no memory, and compiled code would read at address 0
            self._aliases = [tensor.data for tensor in tensors]
            self._capsules = _aoti.unsafe_alloc_void_ptrs_from_tensors(self._aliases)
        address_of = capsule_address()
        self.handles = [address_of(capsule, None) for capsule in self._capsules]

    def release(self) -> None:
        """Give the memory back; nothing may run on these tensors any more."""
        import torch

        torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(self._capsules)
        with without_modes(), torch.no_grad():
            for alias in self._aliases:
                alias.set_()
        self._aliases, self._capsules, self.handles = [], [], []


def _with_index(device: str) -> str:
    """Return `device` with the number of the caller's current GPU where it says only "cuda"."""
    import torch

    return f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device


def _stream_reader(device: str) -> Callable[[], int] | None:
    """Return what reads the caller's current stream on `device`; None where there are no streams."""
    import torch

    parsed = torch.device(device)
    if parsed.type != "cuda":
        return None
    return partial(torch._C._cuda_getCurrentRawStream, parsed.index)
