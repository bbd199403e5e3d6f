"""The route `function` on a real build: proven, loaded fresh without a compiler, guarded by guards of Dynamo."""

import os
import pickle
import pickletools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from aot.bundle import StoredBundle
from aot.compile.program import Program, open_factory
from aot.config import Config
from aot.errors import AotError, IntegrityFailed, LoadFailed, QualificationFailed
from aot.pipeline.recheck import refuse_false_facts
from aot.proof import faults_of
from aot.runtime import pod
from aot.runtime.compiled import CompiledModel, Fallback
from aot.runtime.load import load_bundle
from aot.schema.guard import HostGuard, ProgramGuard
from aot.schema.recipe import Route
from aot.trust import SigningKey
from tests.builders import a_file, a_manifest, altered, an_artifact
from tests.integration import function_builds as functions
from tests.simulator import RegistrySimulator

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]


@pytest.fixture
def bundle() -> StoredBundle:
    """Without the proof's word on who is faster: a model this small may well be so eagerly."""
    return functions.stored()


@pytest.fixture
def program() -> Program:
    _, source = functions.head()
    assert source.tree is not None
    sys.modules.pop("model", None)  # of another source, which another file may have opened in this process
    try:
        return open_factory(source.tree, source.entry)
    finally:
        sys.path.remove(str(source.tree))


def load(bundle: StoredBundle, module: torch.nn.Module) -> CompiledModel:
    model = load_bundle(bundle.directory, module, fallback=Fallback.EAGER)
    assert model.reasons == ()
    return model


def test_guards_are_metadata_that_people_read() -> None:
    compiled, _ = functions.head()
    plain, masked = compiled.artifacts
    assert [artifact.route for artifact in compiled.artifacts] == [Route.FUNCTION, Route.FUNCTION]
    found = set(plain.program_guards)
    assert ProgramGuard(kind="CONSTANT_MATCH", source="L['self'].scale", condition="L['self'].scale == 2.0") in found
    assert ProgramGuard(kind="CONSTANT_MATCH", source="L['mask']", condition="L['mask'] is None") in found
    [shape] = [one.condition for one in plain.program_guards if one.kind == "SHAPE_ENV"]
    assert shape == "2 <= L['x'].size()[0] and L['x'].size()[0] <= 8"
    kinds = {one.condition.partition("type=")[2] for one in plain.program_guards if one.source == "L['self']"}
    assert kinds == {"<class 'model.Head'>"}
    assert not any(re.search(r"\d{9,}", one.condition) for one in plain.program_guards), "an address of a process"
    assert len(masked.coverage.dimensions) == 1 and masked.coverage.example == 1
    assert plain.facts["guards: TENSOR_MATCH by binding"] == "7"
    values = {guard.kind: guard.value for guard in plain.host_guards}
    assert (values["interpreter"], values["torch"]) == (sys.version.split()[0], torch.__version__)


def test_nothing_of_the_builder_and_no_source_text_travels() -> None:
    compiled, source = functions.head()
    for artifact in compiled.artifacts:
        [file] = [one for one in artifact.files if one.path == "function/compiled.bin"]
        content = compiled.paths[file.digest].read_bytes()
        assert b"self.scale = 2.0" not in content
        assert str(source.tree).encode() not in content


def test_the_build_is_proven_through_the_ordinary_proof(tmp_path: Path) -> None:
    proof = functions.proven()
    start = proof.qualification.start
    assert start is not None
    assert (start.processes, start.counted_by) == ((), "ptrace")
    assert "torch._dynamo" in start.compiler_modules, "said, not hidden"
    points = {
        (one.artifact, one.point["batch"]) for one in proof.qualification.agreements if one.weights == "perturbed"
    }
    assert points >= {(0, 2), (0, 8), (1, 2), (1, 8)}
    assert all(one.agrees for one in proof.qualification.agreements)
    assert proof.qualification.recompiles == 0 and proof.canaries == ()
    assert faults_of(functions.proven_bundle(tmp_path / "bundle").manifest) == ()


FRESH = """
import json, sys, torch
sys.path.insert(0, sys.argv[2])
import model as source
from aot.runtime.load import load_bundle
torch.manual_seed(7)
module = source.Head().eval().requires_grad_(False)
loaded = load_bundle(__import__("pathlib").Path(sys.argv[1]), module, fallback="raise")
x, mask = torch.randn(3, 16), torch.rand(3, 32)
with torch.no_grad():
    errors = [
        float((loaded(*args)["logits"] - module(*args)["logits"]).abs().max()) for args in ((x,), (x, mask))
    ]
    rows = loaded(x)["rows"]
print(json.dumps({"errors": errors, "rows": rows, "counters": loaded.counters, "threads": torch.get_num_threads()}))
"""


def test_a_fresh_process_runs_it_with_other_weights_other_threads_and_no_compiler(bundle: StoredBundle) -> None:
    _, source = functions.head()
    environ = {name: value for name, value in os.environ.items() if name not in ("CXX", "CC")}
    ended = subprocess.run(
        [sys.executable, "-c", FRESH, str(bundle.directory), str(source.tree)],
        env={**environ, "PATH": "/nonexistent", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    said: Any = __import__("json").loads(ended.stdout.splitlines()[-1])
    assert max(said["errors"]) < 1e-5
    assert (said["rows"], said["threads"]) == (3, 1)
    assert (said["counters"]["compiled"], said["counters"]["eager"]) == (3, 0)


def test_a_guard_that_does_not_hold_is_named_and_eager_answers(bundle: StoredBundle, program: Program) -> None:
    model, x = load(bundle, program.module), torch.randn(4, 16)
    with torch.no_grad():
        before = model(x)["logits"]
        program.module.inner.weight.mul_(1.5)  # in place: seen by the next call
        assert torch.allclose(model(x)["logits"], program.module(x)["logits"], atol=1e-5)
        assert model.counters["compiled"] == 2 and not torch.equal(before, model(x)["logits"])
        program.module.scale = 3.0
        assert torch.equal(model(x)["logits"], program.module(x)["logits"])
        assert model.counters["guard_misses"] == 1
        assert "scale" in model.last_miss, model.last_miss


def test_dynamos_own_guard_speaks_where_nothing_else_sees_the_change(bundle: StoredBundle, program: Program) -> None:
    model, x = load(bundle, program.module), torch.randn(4, 16)
    [unit] = model._units
    [form, *_] = unit._bound.forms
    program.module.scale = 3.0
    variant = form.variants[0]
    with (
        torch.no_grad(),
        pytest.raises(AotError, match=r"a guard of the program does not hold: L\['self'\].scale == 2.0"),
    ):
        variant.container.run((x,))


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((torch.randn(9, 16),), "batch"),
        ((torch.randn(1, 16),), "batch"),
        ((torch.randn(4, 17),), "17"),
        ((torch.randn(4, 16).double(),), "float64"),
        ((torch.randn(4, 16), torch.ones(3, 32)), "dimension 0"),
    ],
)
def test_a_call_outside_the_coverage_runs_eagerly(
    bundle: StoredBundle, program: Program, args: tuple[Any, ...], reason: str
) -> None:
    model = load(bundle, program.module)
    with torch.no_grad():
        try:
            model(*args)
        except RuntimeError:
            pass  # so does the program itself
    assert model.counters["compiled"] == 0
    assert model.last_miss, reason


def test_a_call_that_records_gradients_runs_eagerly(bundle: StoredBundle, program: Program) -> None:
    model = load(bundle, program.module)
    assert model(torch.randn(4, 16))["logits"].requires_grad
    assert model.counters["compiled"] == 0 and "gradients" in model.last_miss


def test_weights_of_another_form_do_not_bind(bundle: StoredBundle, program: Program) -> None:
    program.module.inner.weight = torch.nn.Parameter(torch.randn(16, 32).t())
    model = load_bundle(bundle.directory, program.module, fallback=Fallback.EAGER)
    assert any(reason.startswith("tensors of inner: weight was") for reason in model.reasons), model.reasons


def test_other_globals_of_the_program_are_another_program(bundle: StoredBundle, program: Program) -> None:
    """Dynamo's guard on the global stays behind; the fingerprint holds its value."""
    sys.modules[type(program.module).__module__].LIMIT = 5.0
    try:
        model = load_bundle(bundle.directory, program.module, fallback=Fallback.EAGER)
        assert model.reasons and model.outcome == "eager"
    finally:
        sys.modules[type(program.module).__module__].LIMIT = 4.0


def test_damaged_bytes_are_never_unpickled(bundle: StoredBundle, program: Program, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(bundle.directory, copy)
    for artifact in bundle.manifest.artifacts:
        for file in artifact.files:
            if file.path == "function/compiled.bin":
                place = copy / "blobs" / "sha256" / file.digest.hex
                place.chmod(0o644)
                place.write_bytes(pickle.dumps(Bomb()).ljust(file.size_bytes, b"."))
    with pytest.raises(IntegrityFailed):
        load_bundle(copy, program.module, fallback=Fallback.RAISE)
    assert not (tmp_path / "exploded").exists()


def test_what_nobody_trusted_has_signed_is_never_unpickled(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    simulator = RegistrySimulator()
    artifact = an_artifact(
        route=Route.FUNCTION, files=(a_file("function/compiled.bin", pickle.dumps(Bomb())),), program_guards=()
    )
    simulator.add(a_manifest(artifacts=(artifact,)), tags=("v1",))
    monkeypatch.setattr("aot.client.connect.open_client", lambda *_, **__: simulator.client())
    config = Config(
        cache_dir=tmp_path / "cache",
        data_dir=tmp_path / "data",
        url="http://registry.test",
        token="a-token",
        trusted_keys=(str(SigningKey.generate().public),),
    )
    model = pod.load("mini:v1", program.module, config=config)
    assert model.reasons[0].startswith("signed by"), model.reasons
    with torch.no_grad():
        assert model(torch.randn(4, 16))["rows"] == 4
    assert not (tmp_path / "exploded").exists()


def test_a_function_without_one_of_its_kernels_is_refused_and_not_compiled(
    bundle: StoredBundle, program: Program
) -> None:
    from aot.runtime.function import open_function

    artifact = bundle.manifest.artifacts[0]
    [library, *_] = [file for file in artifact.files if file.path.startswith("lib/")]
    places = {file.path: bundle.blob_path(file.digest) for file in artifact.files}
    fewer = altered(artifact, files=tuple(file for file in artifact.files if file.path != library.path))
    with pytest.raises(LoadFailed, match="no shared object for a kernel"):
        open_function(fewer, program.module, device="cpu", locate=places.__getitem__)


def test_the_pickle_names_no_code_beyond_torch_and_the_program(bundle: StoredBundle) -> None:
    """What an operator who reads it would look for."""
    artifact = bundle.manifest.artifacts[0]
    [file] = [one for one in artifact.files if one.path == "function/compiled.bin"]
    roots: Counter[str] = Counter()
    strings: list[str] = []
    for opcode, argument, _ in pickletools.genops(bundle.blob_path(file.digest).read_bytes()):
        if isinstance(argument, str):
            strings.append(argument)
        if opcode.name == "STACK_GLOBAL":
            roots[strings[-2].partition(".")[0]] += 1
    assert "torch" in roots
    assert not {"os", "subprocess", "posix", "shutil"} & set(roots)


def test_what_a_pushed_function_says_of_its_files_is_read_from_them_again(bundle: StoredBundle) -> None:
    paths = {blob.digest: bundle.blob_path(blob.digest) for blob in bundle.manifest.blobs}
    refuse_false_facts(bundle.manifest, paths)
    [first, *others] = bundle.manifest.artifacts
    for kind, text in (("libc", "its guard libc is 1.0"), ("interpreter", "its guard interpreter is 1.0")):
        guards = tuple(
            HostGuard(kind=kind, value="1.0") if guard.kind == kind else guard for guard in first.host_guards
        )
        false = altered(bundle.manifest, artifacts=(altered(first, host_guards=guards), *others))
        with pytest.raises(QualificationFailed, match=text):
            refuse_false_facts(false, paths)
    more = altered(first, files=(*first.files, altered(first.files[0], path="extra/payload.bin")))
    with pytest.raises(QualificationFailed, match=r"extra/payload\.bin is no file of a function"):
        refuse_false_facts(altered(bundle.manifest, artifacts=(more, *others)), paths)


def test_a_trace_is_that_of_the_eager_module(bundle: StoredBundle, program: Program) -> None:
    model, x = load(bundle, program.module), torch.randn(4, 16)
    program.module.requires_grad_(False)  # tracing takes weights for constants here
    with torch.no_grad():
        model(x)
        assert model.counters["compiled"] == 1
        torch.jit.trace(lambda x: model(x), (x,), check_trace=False, strict=False)
    assert model.counters["compiled"] == 1 and "is tracing" in model.last_miss
