"""CUDA graphs of a compiled program: a call of known sizes replayed by one launch instead of one a kernel.

A graph reads its inputs where they lay when it was captured, so it has input buffers of its own that each call is
copied into, and its outputs are copied out before the next replay overwrites them. What is bound (weights, buffers) is
read and written in place, as without a graph.

The first call of a size runs without a graph, which also loads the kernels; the second one is captured. Nothing is run
for the capture's sake: state is written once a call, and no program meets inputs that its user did not give it (a
matrix of zeros has no inverse). A size that cannot be captured is refused with its reason, and runs without a graph
from then on.

All graphs of one loaded model and card share one memory pool, so their intermediate results lie in the same memory:
whoever replays waits for the replay before it, by an event on the card and not on the host.
"""

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from aot.errors import AotError, RunFailed
from aot.runtime.container import Container

if TYPE_CHECKING:
    from torch import Size, Tensor

Sizes = tuple["Size", ...]
Outputs = tuple["Tensor | None", ...]

# Sizes that one artifact keeps graphs for. A server may be sent every length, and each graph costs memory.
MOST_GRAPHS = 16
# Sizes whose first call is remembered, to capture the second.
MOST_SEEN = 1024


class GraphReport(Struct, frozen=True):
    """One captured size: `memory_bytes` is what the card's allocator took for it, buffers and results included.

    Where `reason` is not empty, the size was refused, and runs without a graph.
    """

    sizes: tuple[tuple[int, ...], ...]
    memory_bytes: int = 0
    reason: str = ""


class GraphSpace:
    """What the graphs of one model on one card share: stream, memory pool, the last replay, and the lock of replays.

    The stream costs a cuBLAS workspace, 32 MiB on Hopper, where the program multiplies matrices by cuBLAS.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.device = torch.device(device)
        self.stream = torch.cuda.Stream(self.device)
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = Lock()
        self._last = torch.cuda.Event()

    def wait(self) -> None:
        """Make the caller's stream wait for the last replay, whatever stream that was on."""
        import torch

        torch.cuda.current_stream(self.device).wait_event(self._last)

    def note(self) -> None:
        """The caller's stream has been given a replay, and what copies its results."""
        import torch

        self._last.record(torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Wait, on the host, for the last replay."""
        self._last.synchronize()


class Graphed:
    """One bound artifact with the graphs of its sizes; `run` stands for `Container.run`.

    `single` is a container of one model that nobody else runs; `plain` takes the calls that have no graph. `tensors`
    are what `single` is bound to: a graph holds their addresses alone. Where `enabled` is false, `plain` takes all.
    """

    def __init__(self, single: Container, plain: Container, space: GraphSpace, tensors: Mapping[str, "Tensor"]) -> None:
        self._single = single
        self._plain = plain
        self._space = space
        self._tensors = tensors
        self.enabled = True
        self._seen: set[Sizes] = set()
        self._graphs: dict[Sizes, _Graph] = {}
        self._refused: dict[Sizes, str] = {}

    def run(self, tensors: Sequence["Tensor"]) -> Outputs:
        """As `Container.run`; results are the caller's own. Raises RunFailed."""
        if not self.enabled:
            return self._plain.run(tensors)
        sizes = tuple([tensor.shape for tensor in tensors])
        with self._space.lock:
            if _is_capturing():
                return self._single.run_single_threaded(tensors)  # into the caller's own graph
            graph = self._graphs.get(sizes)
            if graph is not None:
                return _replay(graph, tensors)
            if self._may_capture(sizes):
                if sizes not in self._seen:
                    self._seen.add(sizes)
                    return self._single.run_single_threaded(tensors)
                graph = self._capture(sizes, tensors)
                if graph is not None:
                    return _replay(graph, tensors)
        return self._plain.run(tensors)

    def reports(self) -> tuple[GraphReport, ...]:
        """Every size that was captured or refused so far."""
        with self._space.lock:
            captured = [GraphReport(_plain_sizes(key), graph.memory_bytes) for key, graph in self._graphs.items()]
            refused = [GraphReport(_plain_sizes(key), reason=reason) for key, reason in self._refused.items()]
        return (*captured, *refused)

    def _may_capture(self, sizes: Sizes) -> bool:
        if sizes in self._refused or len(self._graphs) >= MOST_GRAPHS:
            return False
        return sizes in self._seen or len(self._seen) < MOST_SEEN

    def _capture(self, sizes: Sizes, tensors: Sequence["Tensor"]) -> "_Graph | None":
        try:
            graph = _Graph(self._single, self._space, tensors)
        except (RuntimeError, AotError) as error:
            self._refused[sizes] = f"not captured: {str(error).strip().splitlines()[0] if str(error) else error!r}"
            return None
        self._graphs[sizes] = graph
        return graph

    def __del__(self) -> None:
        # The buffers are given back below; a replay that has been launched may still be reading them.
        if not sys.is_finalizing() and getattr(self, "_graphs", None):
            self._space.synchronize()


class _Graph:
    """One size, captured. Raises RuntimeError or RunFailed where it cannot be."""

    def __init__(self, container: Container, space: GraphSpace, tensors: Sequence["Tensor"]) -> None:
        import torch

        self._space = space
        before = torch.cuda.memory_reserved(space.device)
        # Buffers of inference mode could be written in no other, and calls may come in either.
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = [_buffer_like(tensor) for tensor in tensors]
            self._graph = torch.cuda.CUDAGraph()
            space.stream.wait_stream(torch.cuda.current_stream(space.device))
            space.stream.wait_event(space._last)
            with torch.cuda.device(space.device), torch.cuda.stream(space.stream), _no_collection():
                self._outputs = self._record(container)
        self._owners = [None if one is None else owner_of(one, self._inputs) for one in self._outputs]
        self.memory_bytes = max(0, torch.cuda.memory_reserved(space.device) - before)

    def replay(self, tensors: Sequence["Tensor"]) -> Outputs:
        import torch

        self._space.wait()
        if self._inputs:
            torch._foreach_copy_(self._inputs, list(tensors))
        self._graph.replay()
        outputs = tuple(
            [
                None if output is None else output.clone() if owner is None else _same_view(output, tensors[owner])
                for output, owner in zip(self._outputs, self._owners, strict=True)
            ]
        )
        self._space.note()
        return outputs

    def _record(self, container: Container) -> Outputs:
        # Other threads may go on allocating and loading meanwhile: only what this one does is captured.
        self._graph.capture_begin(pool=self._space.pool, capture_error_mode="thread_local")
        try:
            outputs = container.run_single_threaded(self._inputs)
        except BaseException:
            # A capture that has failed must be ended all the same, and says so once more.
            try:
                self._graph.capture_end()
            except RuntimeError:
                pass
            raise
        self._graph.capture_end()
        return outputs


def _replay(graph: _Graph, tensors: Sequence["Tensor"]) -> Outputs:
    try:
        return graph.replay(tensors)
    except RuntimeError as error:  # no memory for the results, most likely
        raise RunFailed(f"the CUDA graph failed: {str(error).strip().splitlines()[0]}") from error


def owner_of(output: "Tensor", inputs: Sequence["Tensor"]) -> int | None:
    """Return which input `output` is a view of: eagerly it would be one of the caller's own.

    By the memory that they share; tensors without elements share none, and a view of another dtype is copied instead.
    """
    place = output.untyped_storage().data_ptr()
    if not place:
        return None
    return next(
        (
            index
            for index, one in enumerate(inputs)
            if one.untyped_storage().data_ptr() == place and one.dtype == output.dtype
        ),
        None,
    )


def _buffer_like(tensor: "Tensor") -> "Tensor":
    import torch

    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise RuntimeError("an input is expanded: its elements share memory and cannot be written one by one")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _same_view(view: "Tensor", tensor: "Tensor") -> "Tensor":
    """Of `tensor`, what `view` is of a buffer with its sizes and strides that begins its storage."""
    return tensor.as_strided(view.shape, view.stride(), tensor.storage_offset() + view.storage_offset())


def _plain_sizes(sizes: Sizes) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size) for size in sizes)


def _is_capturing() -> bool:
    import torch

    return torch.cuda.is_current_stream_capturing()


@contextmanager
def _no_collection() -> Iterator[Any]:
    """Freeing a tensor of another stream asks the card for an event, which a capture forbids."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
