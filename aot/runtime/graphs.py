"""CUDA graphs of a compiled program: a call of known sizes replayed by one launch instead of one a kernel.

A graph reads its inputs where they lay when it was captured, so it has input buffers of its own that each call is
copied into, and its outputs are copied out before the next replay overwrites them, unless the caller wants them as they
lie. What is bound (weights, buffers) is read and written in place, as without a graph.

The first call of a size runs without a graph, which also loads the kernels; the second one is captured. Nothing is run
for the capture's sake: state is written once a call, and no program meets inputs that its user did not give it (a
matrix of zeros has no inverse). A size that cannot be captured is refused with its reason, and runs without a graph
from then on.

The graphs of one loaded model and card share one memory pool, so their intermediate results lie in the same memory:
whoever replays waits for the replay before it, by an event on the card and not on the host. After a capture that the
card could not end, later graphs share another pool.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING

from msgspec import Struct

from aot.errors import AotError, RunFailed
from aot.runtime.container import Container

if TYPE_CHECKING:
    from torch import Size, Tensor

Sizes = tuple["Size", ...]
Outputs = tuple["Tensor | None", ...]
Pool = tuple[int, int]

# Sizes that one artifact keeps graphs for. A server may be sent every length, and each graph costs memory.
MOST_GRAPHS = 16
# Sizes whose first call is remembered, to capture the second.
MOST_SEEN = 1024


class GraphOutputs(StrEnum):
    """Whose the results of a replay are."""

    COPIED = "copied"  # the caller's own
    STATIC = "static"  # the graph's: any later call of the model, of whatever size, may overwrite them


class GraphReport(Struct, frozen=True):
    """One captured size: `memory_bytes` is what the card holds for it and for no size before it.

    That is its input buffers, and what its capture added to the memory pool that it shares with the others: results,
    and intermediate results where those of earlier sizes were smaller. Where `reason` is not empty, the size was
    refused, and runs without a graph.
    """

    sizes: tuple[tuple[int, ...], ...]
    memory_bytes: int = 0
    reason: str = ""


class GraphSpace:
    """What the graphs of one model on one card share: stream, memory pool, the last replay, and the lock of replays.

    The stream costs a cuBLAS workspace, 32 MiB on Hopper, where the program multiplies matrices by cuBLAS. `outputs`
    says whose results are; static ones are for programs whose caller alone reads them.
    """

    def __init__(self, device: str, *, outputs: GraphOutputs = GraphOutputs.COPIED) -> None:
        import torch

        self.device = torch.device(device)
        self.outputs = outputs
        self.stream = torch.cuda.Stream(self.device)
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = Lock()
        self._last = torch.cuda.Event()
        self._pools = [self.pool]

    def pool_bytes(self) -> int:
        """What the card's allocator holds for captures, also of graphs that are gone, until it gives it back.

        0 where the allocator does not tell: CUDA's own (`backend:cudaMallocAsync`).
        """
        return sum(map(_bytes_of, self._pools))

    def abandon_capture(self) -> None:
        """Undo what a capture that did not end has left in torch; later ones use another pool where this one records.

        Where the card cannot end a capture, torch goes on allocating to its pool (`CUDAGraph::capture_end` raises
        before `endAllocateToPool`): it would refuse every later capture with that pool, and put off the reuse of
        memory that other streams have freed, in the whole process. And its random generator would believe for good
        that it is being captured, so that every `torch.randn` on the card fails (CUDAGeneratorState, `capturing_`):
        it goes on from where it stands with a state that nothing has captured.
        """
        import torch

        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())
        try:
            torch._C._cuda_endAllocateToPool(index, self.pool)
        except RuntimeError:
            return  # the capture did not come to use it, or came as far as to end that: it is as good as before
        torch._C._cuda_releasePool(index, self.pool)
        self.pool = torch.cuda.graph_pool_handle()
        self._pools = [*filter(_bytes_of, self._pools), self.pool]

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
    are what `single` is bound to: a graph holds their addresses alone.
    """

    def __init__(self, single: Container, plain: Container, space: GraphSpace, tensors: Mapping[str, "Tensor"]) -> None:
        self._single = single
        self._plain = plain
        self._space = space
        self._tensors = tensors
        self._seen: set[Sizes] = set()
        self._graphs: dict[Sizes, _Graph] = {}
        self._refused: dict[Sizes, str] = {}

    def run(self, tensors: Sequence["Tensor"]) -> Outputs:
        """As `Container.run`; results are the caller's own. Raises RunFailed."""
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

    @property
    def space(self) -> GraphSpace:
        return self._space

    def input_bytes(self) -> int:
        """What the input buffers of all its graphs take."""
        with self._space.lock:
            return sum(graph.input_bytes for graph in self._graphs.values())

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
            said = str(error).strip().splitlines()
            self._refused[sizes] = f"not captured: {said[0] if said else repr(error)}"
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

        from aot.runtime.collection import no_collection  # most pods have no card

        self._space = space
        before = space.pool_bytes()
        # Buffers of inference mode could be written in no other, and calls may come in either.
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = [_buffer_like(tensor) for tensor in tensors]
            self._graph = torch.cuda.CUDAGraph()
            space.stream.wait_stream(torch.cuda.current_stream(space.device))
            space.stream.wait_event(space._last)
            with torch.cuda.device(space.device), torch.cuda.stream(space.stream), no_collection:
                self._outputs = self._record(container)
        self._owners = [None if one is None else owner_of(one, self._inputs) for one in self._outputs]
        self._give = _alias if space.outputs is GraphOutputs.STATIC else _copy
        self.input_bytes = sum(buffer.untyped_storage().nbytes() for buffer in self._inputs)
        self.memory_bytes = self.input_bytes + space.pool_bytes() - before

    def replay(self, tensors: Sequence["Tensor"]) -> Outputs:
        import torch

        self._space.wait()
        if self._inputs:
            torch._foreach_copy_(self._inputs, list(tensors))
        self._graph.replay()
        outputs = tuple(
            [
                None if output is None else self._give(output) if owner is None else _same_view(output, tensors[owner])
                for output, owner in zip(self._outputs, self._owners, strict=True)
            ]
        )
        self._space.note()
        return outputs

    def _record(self, container: Container) -> Outputs:
        # Other threads may go on allocating and loading meanwhile: only what this one does is captured.
        ended = False
        try:
            self._graph.capture_begin(pool=self._space.pool, capture_error_mode="thread_local")
            try:
                outputs = container.run_single_threaded(self._inputs)
            except BaseException:
                # A capture that has failed must be ended all the same, and says so once more.
                with suppress(RuntimeError):
                    self._graph.capture_end()
                    ended = True
                raise
            self._graph.capture_end()
            ended = True
        except BaseException:
            if not ended:
                self._space.abandon_capture()
            raise
        return outputs


def _replay(graph: _Graph, tensors: Sequence["Tensor"]) -> Outputs:
    try:
        return graph.replay(tensors)
    except RuntimeError as error:  # no memory for the results, most likely
        raise RunFailed(f"the CUDA graph failed: {str(error).strip().splitlines()[0]}") from error


def _bytes_of(pool: Pool) -> int:
    import torch

    try:
        return sum(int(segment["total_size"]) for segment in torch.cuda.memory_snapshot(pool))
    except RuntimeError:
        return 0


def memory_of(graphs: Iterable[Graphed]) -> int:
    """Bytes that the card holds for `graphs`: all input buffers, and every pool that they share once."""
    found = tuple(graphs)
    spaces = {id(one.space): one.space for one in found}
    return sum(one.input_bytes() for one in found) + sum(space.pool_bytes() for space in spaces.values())


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


def _copy(output: "Tensor") -> "Tensor":
    return output.clone()


def _alias(output: "Tensor") -> "Tensor":
    return output.detach()  # a tensor of its own on the same memory: a caller may change its shape in place


def _plain_sizes(sizes: Sizes) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size) for size in sizes)


def _is_capturing() -> bool:
    import torch

    return torch.cuda.is_current_stream_capturing()
