"""A CompiledModel over the life of its module: weights, modes, hooks and layers change, threads call, processes fork.

On a hand-written object, `f(x) = x * scale + calls` after `calls += 1`, so that eager and compiled differ where a test
needs it. What a real build adds, calling conventions and every kind of constant, is in `test_compiled_build.py`.
"""

import copy
import gc
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from aot.bundle import StoredBundle, write_bundle
from aot.errors import BindingFailed, GuardFailed, InvalidInput, RunFailed
from aot.runtime.compiled import MOST_WARNINGS, CompiledModel
from aot.runtime.fingerprint import fingerprint
from aot.runtime.load import load_bundle
from aot.runtime.synthetic import synthetic_tensor
from aot.runtime.weights import WEIGHTS_FACT, digest_weights
from aot.schema.artifact import ConstantKind, ConstantMeta, Winner
from aot.schema.digest import Digest
from aot.schema.manifest import Canary
from aot.schema.spec import File
from aot.schema.wire.workers import Outcome
from tests.builders import a_speed, altered
from tests.integration.handmade import write_handmade, write_two

NOT_WRITTEN = tuple(
    ConstantMeta(name=name, kind=kind, dtype="float32", shape=(size,), stride=(1,))
    for name, kind, size in (("scale", ConstantKind.PARAMETER, 4), ("calls", ConstantKind.BUFFER, 1))
)
MODE = "the training mode was changed after loading"


class Scaled(nn.Module):
    def __init__(self, scale: float = 1.5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), scale), requires_grad=False)
        self.register_buffer("calls", torch.zeros(1))
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * self.scale + self.calls


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Scaled(2.0), Scaled(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))


def scaled(scale: float = 1.5) -> Scaled:
    return Scaled(scale).eval()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> StoredBundle:
    return write_handmade(tmp_path_factory.mktemp("whole"), fingerprint=fingerprint(scaled()))


@pytest.fixture(scope="module")
def pair_bundle(tmp_path_factory: pytest.TempPathFactory) -> StoredBundle:
    place = tmp_path_factory.mktemp("pair")
    print_of = fingerprint(Pair().eval())
    return write_handmade(place, fingerprint=print_of, region="scaled", instances=("one", "two"))


def load(bundle: StoredBundle, module: nn.Module, **options: Any) -> CompiledModel:
    return load_bundle(bundle.directory, module, **options)


def x(rows: int = 3) -> torch.Tensor:
    return torch.arange(rows * 4, dtype=torch.float32).reshape(rows, 4)


def was_compiled(model: CompiledModel, *, rows: int = 3) -> bool:
    """Call it, insist on the right result, and say how it came about."""
    before, calls = model.counters["compiled"], model.module.calls.clone()
    found = model(x(rows).to(model.module.scale.dtype))
    assert torch.equal(found, x(rows).to(found.dtype) * model.module.scale + calls + 1)
    assert torch.equal(model.module.calls, calls + 1), "the buffer was written once"
    return model.counters["compiled"] == before + 1


# weights


def test_one_bundle_serves_two_checkpoints_at_once(bundle: StoredBundle) -> None:
    first, second = load(bundle, scaled(2.0)), load(bundle, scaled(-1.0))
    assert [was_compiled(model) for model in (first, second, first)] == [True] * 3
    assert first.reasons == () and first.outcome is Outcome.COMPILED


def replace_parameter(module: Scaled) -> None:
    module.scale = nn.Parameter(torch.full((4,), 7.0), requires_grad=False)


def assign(module: Scaled) -> None:
    module.load_state_dict(scaled(5.0).state_dict(), assign=True)
    module.requires_grad_(False)


def replace_by_an_equal_one_and_write_into_it(module: Scaled) -> None:
    module.calls = module.calls.clone()  # one element, equal in value
    module.calls.fill_(41.0)


@pytest.mark.parametrize(
    ("change", "rebinds"),
    [
        (lambda module: module.scale.fill_(9.0), 0),
        (lambda module: module.load_state_dict(scaled(4.0).state_dict()), 0),
        (assign, 1),
        (replace_parameter, 1),
        (replace_by_an_equal_one_and_write_into_it, 1),
        (lambda module: setattr(module.scale, "data", torch.full((4,), 8.0)), 1),
        (lambda module: module.double().float(), 1),
        (lambda module: setattr(module, "inner", nn.Identity().eval()), 1),
    ],
)
def test_changed_weights_are_used_at_the_next_call(
    bundle: StoredBundle, change: Callable[[Scaled], None], rebinds: int
) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    with torch.no_grad():
        change(model.module)
    assert was_compiled(model) and model.counters["rebinds"] == rebinds


@pytest.mark.parametrize(
    ("break_it", "repair", "reason"),
    [
        (nn.Module.double, nn.Module.float, "scale: wanted dtype float32, found float64"),
        (nn.Module.train, nn.Module.eval, MODE),
        (
            lambda module: module.inner.train(),
            lambda module: module.inner.eval(),
            MODE,
        ),
        (
            lambda module: setattr(module, "inner", nn.ReLU().eval()),
            lambda module: setattr(module, "inner", nn.Identity().eval()),
            "module inner",
        ),
        (
            lambda module: setattr(module, "inner", nn.Identity()),  # in training mode
            lambda module: module.inner.eval(),
            "training mode was eval, is train",
        ),
        (
            lambda module: setattr(module, "scale", nn.Parameter(torch.ones(1), requires_grad=False)),
            lambda module: setattr(module, "scale", nn.Parameter(torch.ones(4), requires_grad=False)),
            "scale: wanted shape (4,), found (1,)",
        ),
        (
            lambda module: setattr(module, "calls", nn.Buffer(torch.zeros(1, dtype=torch.float64))),
            lambda module: setattr(module.calls, "data", torch.zeros(1)),
            "calls: wanted dtype float32, found float64",
        ),
    ],
)
def test_what_no_longer_fits_runs_eagerly_with_the_reason_until_it_is_repaired(
    bundle: StoredBundle, break_it: Callable[[Scaled], None], repair: Callable[[Scaled], None], reason: str
) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    break_it(model.module)
    assert not was_compiled(model) and reason in model.last_miss
    assert not was_compiled(model)
    repair(model.module)
    assert was_compiled(model), model.last_miss
    assert model.counters["guard_misses"] == model.counters["eager"] == 2


def test_looking_at_a_module_that_does_not_fit_binds_nothing_again(bundle: StoredBundle) -> None:
    model = load(bundle, scaled().double())
    for _ in range(5):
        assert not was_compiled(model)
    assert model.counters["rebinds"] == 0
    assert (model.outcome, len(model.reasons) > 0) == (Outcome.EAGER, True)
    model.module.float()
    assert was_compiled(model) and model.reasons == ()


def test_a_module_loaded_in_training_mode_is_compiled_once_it_is_not(bundle: StoredBundle) -> None:
    model = load(bundle, scaled().train())
    assert not was_compiled(model) and "training mode was eval, is train" in model.last_miss
    model.module.eval()
    assert was_compiled(model)


def test_weights_that_were_replaced_are_not_kept(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    storage = model.module.scale.untyped_storage()
    address = storage.data_ptr()
    del storage
    model.module.double()
    assert not was_compiled(model)
    gc.collect()
    held = [
        one
        for one in gc.get_objects()
        # By type: an export in this process leaves fake tensors, which have no address.
        if type(one) in (torch.Tensor, nn.Parameter)
        and one.layout is torch.strided
        and one.data_ptr() == address
        and one.numel()
    ]
    assert held == []


def test_rebind_by_hand_sees_what_kept_object_and_address(bundle: StoredBundle) -> None:
    import aot

    model = load(bundle, scaled())
    model.module.scale.data = torch.full((8,), 3.0)[:4]
    assert was_compiled(model)
    model.module.scale.data = model.module.scale.data.as_strided((4,), (2,))  # same address
    aot.rebind(model)
    assert "scale: wanted strides (1,), found (2,)" in model.reasons
    assert not was_compiled(model)


# what it does: hooks, gradients


def test_a_hook_added_later_is_obeyed(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    handle = model.module.inner.register_forward_hook(lambda module, args, output: output + 100)
    assert torch.equal(model(x()), (x() + 100) * 1.5 + 2)
    assert "a forward hook was added to inner" in model.last_miss
    handle.remove()
    assert was_compiled(model)


def test_gradients_that_are_recorded_are_eagers(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    model.module.requires_grad_(True)
    result = model(x())
    result.sum().backward()
    assert torch.equal(model.module.scale.grad, x().sum(0))
    assert model.last_miss == "gradients are being recorded and the weights require them"
    with torch.no_grad():
        assert was_compiled(model)
    model.module.requires_grad_(False)
    assert was_compiled(model), "grad mode alone is no reason"
    wanted = x().requires_grad_(True)
    assert model(wanted).requires_grad and "gradients" in model.last_miss


# exported programs: of which nothing but the graph is known


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> StoredBundle:
    return write_handmade(tmp_path_factory.mktemp("exported"))


def parametrize_inner(module: Scaled) -> None:
    module.inner = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).eval()


@pytest.mark.parametrize(
    ("change", "repair", "reason"),
    [
        (nn.Module.train, nn.Module.eval, "is in training mode"),
        (
            lambda module: module.inner.register_forward_hook(lambda part, args, output: output + 100),
            lambda module: module.inner._forward_hooks.clear(),
            "has forward hooks",
        ),
        (parametrize_inner, lambda module: setattr(module, "inner", nn.Identity().eval()), "has parametrizations"),
    ],
)
def test_an_exported_program_is_not_taken_for_a_module_that_does_more(
    exported: StoredBundle, change: Callable[[Scaled], Any], repair: Callable[[Scaled], Any], reason: str
) -> None:
    module, eager = scaled(), scaled()
    torch.manual_seed(0)
    change(module)
    torch.manual_seed(0)
    change(eager)
    model = load(exported, module)
    assert torch.equal(model(x()), eager(x()))
    assert reason in model.last_miss and any(reason in one for one in model.reasons)
    with pytest.raises(BindingFailed, match=reason):
        load(exported, module, fallback="raise")
    repair(module)
    assert was_compiled(model), model.last_miss


def test_an_exported_program_fits_the_graph_that_was_exported(exported: StoredBundle) -> None:
    graph = torch.export.export(scaled(), (x(),)).module()
    assert was_compiled(load(exported, graph))


# coverage


def test_a_call_outside_the_coverage_names_input_and_condition(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert not was_compiled(model, rows=33)
    assert "args[0]" in model.last_miss and "33" in model.last_miss and "32" in model.last_miss
    assert model.counters == {
        "calls": 1,
        "compiled": 0,
        "eager": 1,
        "guard_misses": 1,
        "eager_won": 0,
        "failed": 0,
        "rebinds": 0,
    }
    assert was_compiled(model, rows=32)


def test_with_raise_a_miss_raises_and_a_hit_does_not(bundle: StoredBundle) -> None:
    model = load(bundle, scaled(), fallback="raise")
    assert was_compiled(model)
    with pytest.raises(GuardFailed, match=r"args\[0\]") as caught:
        model(x(40))
    assert caught.value.details["reason"] == model.last_miss
    assert (model.counters["calls"], model.counters["guard_misses"], float(model.module.calls)) == (1, 1, 1.0)


def test_misses_of_every_size_do_not_fill_the_log(bundle: StoredBundle, caplog: pytest.LogCaptureFixture) -> None:
    model = load(bundle, scaled())
    with caplog.at_level(logging.WARNING, logger="aot"):
        for rows in range(33, 133):
            model(x(rows))
            model(x(rows))
    assert len(caplog.records) == MOST_WARNINGS + 1
    assert "says no more" in caplog.records[-1].getMessage()
    assert model.counters["guard_misses"] == 200 and len(model._seen) == MOST_WARNINGS


def test_the_exact_coverage_is_tried_before_the_range(tmp_path: Path) -> None:
    # The object for batch 4 alone is wrong, so that its results tell who answered.
    model = load(write_two(tmp_path, right=(), wrong=("WRONG",)), scaled())
    results = [model(x(rows))[0, 0].item() - float(model.module.calls) for rows in (3, 4, 5)]
    assert results == [0.0, 0.5, 0.0]
    assert model.counters["compiled"] == 3


def test_where_eager_was_faster_eager_runs_and_nothing_is_wrong(tmp_path: Path) -> None:
    model = load(write_handmade(tmp_path, winner=Winner.EAGER), scaled(), fallback="raise")
    assert not was_compiled(model)
    assert (model.counters["eager_won"], model.counters["guard_misses"]) == (1, 0)


def test_a_call_runs_what_was_faster_at_sizes_like_its_own(tmp_path: Path) -> None:
    speeds = (a_speed(point={"batch": 1}), a_speed(compiled_us=300.0, point={"batch": 32}))
    model = load(write_handmade(tmp_path, speeds=speeds), scaled(), fallback="raise")
    for rows in (1, 2, 16, 32):
        model(x(rows))
    assert (model.counters["compiled"], model.counters["eager_won"]) == (2, 2)
    assert model.last_miss == "[batch 1..32] eager was faster in the proof at sizes like these"


# failures


def test_a_run_that_fails_is_repeated_eagerly_and_counted(tmp_path: Path) -> None:
    bundle = write_handmade(tmp_path, "FAILS", constants=NOT_WRITTEN)
    model = load(bundle, scaled())
    assert not was_compiled(model)
    assert (model.counters["failed"], model.counters["guard_misses"]) == (1, 0)
    strict = load(bundle, scaled(), fallback="raise")
    with pytest.raises(RunFailed, match="failed: ") as caught:
        strict(x())
    assert "coverage" not in caught.value.message


def test_a_run_that_may_have_written_half_is_not_repeated(tmp_path: Path) -> None:
    model = load(write_handmade(tmp_path, "FAILS"), scaled())
    with pytest.raises(RunFailed):
        model(x())


def test_an_artifact_that_cannot_be_opened_is_a_reason(tmp_path: Path) -> None:
    bundle = write_handmade(tmp_path)
    library = bundle.blob_path(bundle.manifest.artifacts[0].files[0].digest)
    os.chmod(library, 0o644)
    library.write_bytes(b"not an ELF file")
    model = load(bundle, scaled(), verify=False)
    assert not was_compiled(model)
    assert model.outcome is Outcome.EAGER and len(model.reasons) == 1
    with pytest.raises(BindingFailed):
        load(bundle, scaled(), verify=False, fallback="raise")


def test_another_architecture_is_named(bundle: StoredBundle) -> None:
    other = nn.Sequential(nn.Linear(4, 4)).eval()
    model = load(bundle, other)
    assert torch.equal(model(x()), other(x()))
    assert any("module" in reason for reason in model.reasons), model.reasons
    with pytest.raises(BindingFailed) as caught:
        load(bundle, other, fallback="raise")
    assert caught.value.details["reasons"] == list(model.reasons)


# frozen


@pytest.fixture
def frozen(tmp_path: Path) -> StoredBundle:
    facts = {"frozen": "true", WEIGHTS_FACT: str(digest_weights(Frozen()))}
    return write_handmade(tmp_path, "FROZEN", "FORGETFUL", constants=(), facts=facts)


class Frozen(nn.Module):
    def __init__(self, scale: float = 1.5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), scale), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + 1


def test_a_frozen_bundle_serves_its_own_checkpoint_and_no_other(frozen: StoredBundle) -> None:
    model, other = load(frozen, Frozen().eval()), load(frozen, Frozen(2.0).eval())
    assert torch.equal(model(x()), x() * 1.5 + 1) and model.counters["compiled"] == 1
    assert torch.equal(other(x()), x() * 2.0 + 1) and other.counters["eager"] == 1
    assert "frozen with other weights" in other.last_miss


@pytest.mark.parametrize("start", [1.5, 2.0])
def test_a_write_into_weights_is_noticed_by_a_frozen_bundle(frozen: StoredBundle, start: float) -> None:
    model = load(frozen, Frozen(start).eval())
    for scale in (start, 2.0, 1.5, 2.5, 1.5):
        model.module.scale.fill_(scale)
        before = model.counters["compiled"]
        assert torch.equal(model(x()), x() * scale + 1)
        assert model.counters["compiled"] == before + (scale == 1.5)


# regions


def test_each_instance_runs_on_its_own_weights_until_unload(pair_bundle: StoredBundle) -> None:
    module, eager = Pair().eval(), Pair().eval()
    model = load(pair_bundle, module)
    assert torch.equal(model(x()), eager(x())) and torch.equal(module(x()), eager(x()))
    assert model.counters["compiled"] == model.counters["calls"] == 4
    module.two.scale = nn.Parameter(torch.full((4,), 5.0), requires_grad=False)
    eager.two.scale.fill_(5.0)
    assert torch.equal(model(x()), eager(x())) and model.counters["rebinds"] == 1
    model.unload()
    assert "forward" not in module.one.__dict__ and "forward" not in module.two.__dict__
    assert torch.equal(model(x()), eager(x())) and model.counters["compiled"] == 6


def test_a_layer_that_was_exchanged_inside_a_region_is_compared_again(pair_bundle: StoredBundle) -> None:
    model = load(pair_bundle, Pair().eval())
    model.module.one.inner = nn.Identity().eval()  # the same program still, though `forward` is ours by now
    model(x())
    assert model.counters["compiled"] == 2, model.last_miss
    model.module.one.inner = nn.ReLU().eval()
    model(x())
    assert model.counters["compiled"] == 3 and model.last_miss.startswith("one: module")
    assert model.outcome is Outcome.PARTLY


def test_only_the_misfitting_instance_runs_eagerly(pair_bundle: StoredBundle) -> None:
    model = load(pair_bundle, Pair().eval())
    model.module.two.scale = nn.Parameter(torch.ones(1), requires_grad=False)
    assert torch.equal(model(x()), (x() * 2 + 1) + 1)
    assert model.counters["compiled"] == model.counters["eager"] == 1
    assert model.reasons == ("two: scale: wanted shape (4,), found (1,)",)


def test_a_reason_that_all_instances_share_is_told_once(pair_bundle: StoredBundle) -> None:
    model = load(pair_bundle, Pair().train())
    assert model.reasons == ("training mode was eval, is train",)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_of_a_module_with_regions_is_on_its_own(
    pair_bundle: StoredBundle, copied: Callable[[nn.Module], Pair]
) -> None:
    model = load(pair_bundle, Pair().eval())
    twin = copied(model.module)
    twin.one.scale.fill_(10.0)
    assert torch.equal(twin(x()), (x() * 10 + 1) * 3 + 1)
    assert model.counters["calls"] == 0


def test_two_bundles_on_one_module_are_unloaded_in_any_order(pair_bundle: StoredBundle) -> None:
    module = Pair().eval()
    first, second = load(pair_bundle, module), load(pair_bundle, module)
    assert second.reasons == ()
    first.unload()
    assert torch.equal(module(x()), Pair().eval()(x()))
    assert (first.counters["calls"], second.counters["compiled"]) == (0, 2)
    second.unload()
    assert torch.equal(module(x()), (x() * 2 + 2) * 3 + 2)


# threads, processes, copies


def test_calls_from_four_threads_are_right_while_a_fifth_exchanges_the_weights(tmp_path: Path) -> None:
    module = scaled()
    model = load(write_handmade(tmp_path, "FORGETFUL", constants=NOT_WRITTEN), module)
    scales = [1.0, 2.0, 4.0, 8.0]
    wrong: list[torch.Tensor] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            result = model(x()) - 1
            if not any(torch.equal(result, x() * scale) for scale in scales):
                wrong.append(result)

    def exchange() -> None:
        for turn in range(200):
            if turn % 3:
                module.scale = nn.Parameter(torch.full((4,), scales[turn % 4]), requires_grad=False)
            else:
                model.rebind()
        stop.set()

    module.scale.fill_(1.0)
    threads = [threading.Thread(target=one) for one in (call, call, call, call, exchange)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    counters = model.counters
    assert counters["eager"] == 0 and counters["compiled"] == counters["calls"] > 0 and counters["rebinds"] > 60


def in_child(work: Callable[[], bool]) -> bool:
    """Run `work` in a fork and return whether it was true there."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_child_loads_for_itself_and_what_was_loaded_before_the_fork_runs_eagerly_there(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)

    def child() -> bool:
        own = load(bundle, scaled(3.0))
        return was_compiled(own) and not was_compiled(model) and "before a fork" in model.last_miss

    assert in_child(child)
    assert was_compiled(model), "the parent's is as it was"


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loaded_model_is_not_copied_but_says_what_to_do(bundle: StoredBundle, take: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInput, match="cannot be copied or pickled") as caught:
        take(load(bundle, scaled()))
    assert caught.value.hint and "load the bundle for the copy" in caught.value.hint


def test_after_unload_every_call_is_eager_and_counted(bundle: StoredBundle) -> None:
    model = load(bundle, scaled())
    assert was_compiled(model)
    model.unload()
    assert not was_compiled(model)
    assert (model.outcome, model.counters["eager"]) == (Outcome.EAGER, 1)


# canaries


def with_canary(place: Path, *faults: str, outputs: torch.Tensor | None = None) -> StoredBundle:
    """A bundle with the canary that its proof would have made: f(x) with the synthetic weights of seed 1."""
    scale, calls = (synthetic_tensor(name, (size,), "float32", seed=1) for name, size in (("scale", 4), ("calls", 1)))
    given = x(2) if outputs is None else outputs
    save_file({"input.0": x(2)}, str(place / "inputs.safetensors"))
    save_file({"output.0": given * scale + calls + 1}, str(place / "outputs.safetensors"))
    paths = [place / "inputs.safetensors", place / "outputs.safetensors"]
    stored = write_handmade(place, *faults)
    files = {Digest.of(path.read_bytes()): path for path in paths}
    expected = tuple(
        File(path=f"canary/0/{path.name}", digest=digest, size_bytes=path.stat().st_size)
        for digest, path in files.items()
    )
    library = stored.manifest.artifacts[0].files[0].digest
    manifest = altered(
        stored.manifest, canaries=(Canary(artifact=0, seed=1, point={}, weights_seed=1, expected=expected),)
    )
    return write_bundle(place / "with", manifest=manifest, files={**files, library: stored.blob_path(library)})


def test_a_canary_that_agrees_changes_nothing(tmp_path: Path) -> None:
    model = load(with_canary(tmp_path), scaled(), canary=True)
    assert was_compiled(model) and model.reasons == ()


def test_an_artifact_that_computes_something_else_here_is_left_out(tmp_path: Path) -> None:
    bundle = with_canary(tmp_path, "WRONG")
    model = load(bundle, scaled(), canary=True)
    assert not was_compiled(model)
    assert model.reasons[0].startswith("canary: output 0 is not what it was at the proof: largest error 0.5")
    assert load(bundle, scaled()).outcome is Outcome.COMPILED, "off by default"


def test_outputs_that_are_not_the_programs_or_no_numbers_are_found(tmp_path: Path) -> None:
    for index, outputs in enumerate((x(2) * 1.01, x(2) * float("nan"), x(3))):
        place = tmp_path / str(index)
        place.mkdir()
        model = load(with_canary(place, outputs=outputs), scaled(), canary=True)
        assert not was_compiled(model) and model.last_miss.startswith("canary: output 0")


def test_a_canary_that_fails_to_run_is_a_reason(tmp_path: Path) -> None:
    model = load(with_canary(tmp_path, "FAILS"), scaled(), canary=True)
    assert not was_compiled(model) and model.last_miss.startswith("canary: the compiled program failed")
