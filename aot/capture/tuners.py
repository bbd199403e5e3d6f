"""What a compiled graph keeps of its tuned kernels, as symbols: which candidates there are, and which one tuning chose.

Torch keeps a tuner with all its candidates as they were before the first call, and on loading looks for the file with
the choice below the directory that it was compiled in (torch/_inductor/runtime/triton_heuristics.py, CachingAutotuner,
recheck_autotune_cache). Elsewhere that is nowhere, and each start would tune again: the choice is put into the tuner.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from aot.bundle.paths import PATH_BYTES
from aot.capture.kernels import KEY_CHARACTERS, keys_of
from aot.capture.symbols import (
    Allowance,
    Global,
    Made,
    Node,
    Value,
    fields_of,
    is_instance,
    items_of,
    named,
    pairs_of,
    set_fields,
    set_items,
    set_named,
)

_AUTOTUNER = Global("torch._inductor.triton_bundler", "StaticallyLaunchedAutotuner")
_DESCENT, _SCALING = "coordinate_descent_tuning", "dynamic_scale_rblock"
_SPENT_ON_EACH = 16  # of attributes
_BESIDE = ("num_warps", "num_stages")
_TIMES = ("precompile_time_taken_ns", "autotune_time_taken_ns")
Chosen = Callable[[str], Mapping[str, object] | None]  # of a path below Inductor's cache: what tuning wrote there


@dataclass(frozen=True)
class Candidate:
    """One configuration of a kernel, compiled. `keys` are names of Triton's directory of it; `is_whole`: it has the
    machine code itself."""

    symbol: Value
    config: Value
    keys: frozenset[str]
    is_whole: bool


@dataclass(frozen=True)
class Tuner:
    """`kernel` is torch's object with `results`, the list of its candidates, and `meta`, how it was told to tune."""

    kernel: Value
    meta: Node
    results: Node
    candidates: tuple[Candidate, ...]

    @property
    def descends(self) -> bool:
        """Whether it searches on from the best of its candidates when it is called first."""
        return bool(named(self.meta).get(_DESCENT))


def tuner_of(value: Value, allowance: Allowance) -> Tuner | None:
    """Return what can be read of a statically launched autotuner; None where torch wrote another form.

    Raises ValueError where the allowance is spent.
    """
    kernel = (fields_of(value) or {}).get("kernel") if is_instance(value, _AUTOTUNER) else None
    fields = fields_of(kernel) or {}
    results, meta = fields.get("compile_results"), fields.get("inductor_meta")
    listed = items_of(results) or ()
    allowance.spend(_SPENT_ON_EACH * (1 + len(listed)))
    found = [_candidate_of(result) for result in listed]
    candidates = tuple(candidate for candidate in found if candidate is not None)
    if not isinstance(results, Node) or not isinstance(meta, Node) or pairs_of(meta) is None:
        return None
    return Tuner(kernel, meta, results, candidates) if found and len(candidates) == len(found) else None


def settled(tuner: Tuner, chosen: Chosen) -> Tuner | None:
    """Return the tuner with the candidate that tuning chose alone; as it is where that is not known.

    None where it has searched on and found a better one than its candidates: torch makes the kernel of that by itself,
    with the file of the choice.
    """
    hook = _hook_of(fields_of(tuner.kernel) or {})
    best = chosen(hook[0]) if hook is not None else None
    if best is None and len(tuner.candidates) == 1:
        return with_one(tuner, tuner.candidates[0])
    if hook is None or best is None or best.get("configs_hash") != hook[1] or best.get("extra_options"):
        return tuner
    if tuner.descends and best.get("found_by_coordesc") is not True:
        return tuner
    fitting = [candidate for candidate in tuner.candidates if _is_chosen(candidate.config, best)]
    if len(fitting) != 1:
        return tuner if fitting or not tuner.descends else None
    # Both searches have ended. A configuration that is stored has no mark of that, and they would begin again.
    set_named(tuner.meta, {_DESCENT: False, _SCALING: False} if tuner.descends else {_SCALING: False})
    return with_one(tuner, fitting[0])


def with_one(tuner: Tuner, candidate: Candidate) -> Tuner:
    """Return the tuner with that candidate alone: then there is nothing to choose, and nothing to write down.

    Nor does it matter in which directory it was compiled, or how long that took.
    """
    set_items(tuner.results, [candidate.symbol])
    fields = fields_of(tuner.kernel) or {}
    times: dict[str, Value] = {name: 0 for name in _TIMES if isinstance(fields.get(name), int)}
    set_fields(tuner.kernel, {"save_cache_hook": None, **times})
    place = fields.get("filename")
    if isinstance(place, str) and (name := _end_of(place)) is not None:
        set_fields(tuner.kernel, {"filename": name})
        function = fields.get("fn")  # Triton's, of the file that it was read from
        same = {each: name for each, value in (fields_of(function) or {}).items() if value == place}
        if same:
            set_fields(function, same)
    return replace(tuner, candidates=(candidate,))


def _candidate_of(value: Value) -> Candidate | None:
    fields = fields_of(value) or {}
    kernel = fields_of(fields.get("kernel")) or {}
    digest = kernel.get("hash")
    if not isinstance(digest, str) or not 0 < len(digest) <= KEY_CHARACTERS:
        return None
    return Candidate(value, fields.get("config"), keys_of(digest), isinstance(kernel.get("cubin_raw"), bytes))


def _hook_of(fields: Mapping[str, Value]) -> tuple[str, str] | None:
    """Return the path below Inductor's cache where the tuner writes what it chose, and the hash of its candidates."""
    hook = fields.get("save_cache_hook")
    if not isinstance(hook, Node) or hook.made is not Made.CALLED:
        return None
    function, arguments = hook.parts
    if not isinstance(function, Global) or function.name != "getattr" or not isinstance(arguments, Node):
        return None
    cache = fields_of(arguments.parts[0]) if arguments.made is Made.TUPLE and arguments.parts else None
    local, digest = (cache or {}).get("local_cache"), (cache or {}).get("configs_hash")
    if not isinstance(local, Node) or local.made is not Made.TUPLE or not local.parts or not isinstance(digest, str):
        return None
    place = local.parts[-1]
    path = _end_of(place) if isinstance(place, str) else None
    return (path, digest) if path is not None else None


def _end_of(place: str) -> str | None:
    """Return the last two names of a path; None for one that is longer than any file's."""
    return "/".join(place.split("/")[-2:]) if len(place) <= PATH_BYTES else None


def _is_chosen(config: Value, best: Mapping[str, object]) -> bool:
    """As torch compares them (torch/_inductor/runtime/autotune_cache.py, _load_cached_autotuning)."""
    fields = fields_of(config) or {}
    kwargs = fields.get("kwargs")
    pairs = pairs_of(kwargs)
    if pairs is None or not all(isinstance(name, str) for name, _ in pairs):
        return False
    wanted = {**named(kwargs), **{name: fields.get(name) for name in _BESIDE}}
    return all(best.get(name) == value for name, value in wanted.items())
