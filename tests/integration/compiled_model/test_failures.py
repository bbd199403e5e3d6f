"""What cannot be opened or gives something else is a reason, and eager runs; canaries find it at load."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from aot.bundle import StoredBundle, write_bundle
from aot.errors import BindingFailed, RunFailed
from aot.runtime.synthetic import synthetic_tensor
from aot.schema.digest import Digest
from aot.schema.manifest import Canary
from aot.schema.spec import File
from aot.schema.wire.workers import Outcome
from tests.builders import altered
from tests.integration.compiled_model.scaled import NOT_WRITTEN, load, scaled, was_compiled, x
from tests.integration.handmade import write_handmade

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


@pytest.mark.parametrize(("given", "found"), [(nn.Linear, "the class Linear"), (len, "a builtin_function_or_method")])
def test_what_is_no_module_is_named(bundle: StoredBundle, given: Any, found: str) -> None:
    with pytest.raises(BindingFailed, match=rf"wanted a torch\.nn\.Module, found {found}"):
        load(bundle, given)


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


# canaries


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
