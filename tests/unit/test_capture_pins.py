"""What kernels are compiled with is recorded with a capture, and a start on it has the same: else it finds none."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aot.capture import prepare as preparing
from aot.capture.again import recapture
from aot.capture.capture import capture
from aot.capture.collect import Collected
from aot.capture.command import Ended
from aot.capture.interchange import import_saved
from aot.capture.megacache import entry_at, join
from aot.capture.pins import kernels_with, pins
from aot.capture.prepare import prepare
from aot.capture.record import artifact_of, differences
from aot.capture.union import Base, with_bases
from aot.config import Config
from aot.environment import observe_environment
from aot.errors import QualificationFailed
from aot.schema.artifact import Artifact
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from tests.builders import a_gpu, a_gpu_profile, altered, an_environment
from tests.route_builders import a_capture_artifact
from tests.unit.test_capture_proof import a_capture, a_tree

LINES, ASSEMBLER = "TRITON_DISABLE_LINE_INFO", "TRITON_PTXAS_PATH"
RECORDED = {"factor:TRITON_DISABLE_LINE_INFO": "1", "factor:assembler": "torch's"}


@pytest.fixture(autouse=True)
def torchs(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where torch's own assembler lies: a wheel for CPUs has none."""
    monkeypatch.setattr("aot.capture.pins.find_assembler", lambda: Path("/torch/bin/ptxas"))
    return "/torch/bin/ptxas"


def carded(seen: Environment) -> Environment:
    return msgspec.structs.replace(seen, node=msgspec.structs.replace(seen.node, gpus=(a_gpu(),)))


HOST = carded(an_environment())


def captured(environ: dict[str, str], *, host: Environment = HOST, **options: Any) -> Artifact:
    return artifact_of(Collected((), {}), a_gpu_profile(), host, environ=environ, seconds=(1.0, None), **options)


def of_kernels(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name in (LINES, ASSEMBLER)}


def recorded_in(artifact: Artifact) -> dict[str, str]:
    return {name: value for name, value in artifact.facts.items() if name in RECORDED}


def test_a_start_has_what_its_bundle_records_and_nothing_else(tmp_path: Path, torchs: str) -> None:
    def started(recorded: dict[str, str] | None, **environ: str) -> dict[str, str]:
        return of_kernels(pins(HOST, tmp_path, environ, recorded=recorded))

    assert started(None) == started(RECORDED) == {LINES: "1", ASSEMBLER: torchs}
    assert started({}) == {} and started({**RECORDED, "factor:assembler": "the command's own"}) == {LINES: "1"}
    assert started({**RECORDED, f"factor:{LINES}": "0"}) == {LINES: "0", ASSEMBLER: torchs}
    own = {LINES: "0", ASSEMBLER: "/opt/ptxas"}
    assert started(RECORDED, **own) == started({}, **own) == {LINES: "0"}
    assert of_kernels(pins(an_environment(), tmp_path, {}, recorded=RECORDED)) == {}


def test_a_capture_records_what_its_kernels_were_compiled_with_and_no_path(tmp_path: Path) -> None:
    assert recorded_in(captured({})) == RECORDED
    own = captured({LINES: "0", ASSEMBLER: "/opt/ptxas"})
    assert recorded_in(own) == {f"factor:{LINES}": "0", "factor:assembler": "the command's own"}
    assert not any("/opt" in value for value in own.facts.values())
    assert recorded_in(captured({}, host=an_environment())) == {} == recorded_in(captured({}, recorded={}))
    once = pins(HOST, tmp_path, {})
    assert recorded_in(captured(once)) == RECORDED and pins(HOST, tmp_path, once).items() <= once.items()


def test_entries_that_another_process_has_saved_were_pinned_by_nobody(tmp_path: Path) -> None:
    entry = entry_at("fxgraph/ke/fkey/one", b"graph")
    assert entry is not None
    about: dict[str, Any] = {"namespace": "default", "name": "toy", "profile": a_gpu_profile(), "effective": HOST}
    more: dict[str, Any] = {"command": ("true",), "tree": None, "builder": "me"}
    for name, environ in (("none", {}), ("own", {LINES: "1"})):
        staged = import_saved(join([entry]), environ=environ, scratch=tmp_path / name, **about, **more)
        wanted = {f"factor:{variable}": value for variable, value in environ.items()}
        assert recorded_in(staged.manifest.artifacts[0]) == wanted


def test_a_torch_without_an_assembler_records_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torchs = captured({})
    monkeypatch.setattr("aot.capture.pins.find_assembler", lambda: None)
    assert kernels_with(HOST, {}) == {LINES: "1"}
    assert differences(with_torchs, HOST, {}) == ("assembler was torch's, is not set",)


def test_what_kernels_were_compiled_with_is_told_where_it_differs() -> None:
    now, before = captured({}), captured({}, recorded={})
    assert differences(now, HOST, {}) == differences(before, HOST, {}) == ()
    own = {LINES: "0", ASSEMBLER: "/opt/ptxas"}
    assert differences(now, HOST, own) == (
        f"{LINES} was 1, is 0",
        "assembler was torch's, is the command's own",
    )
    assert differences(before, HOST, own) == (
        f"{LINES} was not set, is 0",
        "assembler was not set, is the command's own",
    )


@pytest.mark.parametrize("recorded", [{}, RECORDED], ids=["earlier client", "now"])
def test_a_command_is_prepared_with_the_pins_of_its_bundle(
    recorded: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchs: str
) -> None:
    artifact = a_capture_artifact(facts=recorded)
    found = SimpleNamespace(digest=Digest.of(b"bundle"), manifest=SimpleNamespace(artifacts=(artifact,)))
    found.digests = lambda _: ()
    resolved = SimpleNamespace(candidate=lambda _: found, stale=False)
    selected = SimpleNamespace(bundle=found.digest, artifacts=(0,), reasons=())
    monkeypatch.setattr(preparing, "observe_environment", lambda: HOST)
    monkeypatch.setattr(preparing, "LocalCache", lambda *_, **__: SimpleNamespace(hold=lambda _: nullcontext()))
    for name, answer in {
        "resolve": resolved,
        "remember": None,
        "_of_caches": ([found], ()),
        "select": selected,
        "ensure_verified": {},
        "restore": 0,
    }.items():
        monkeypatch.setattr(preparing, name, lambda *_, answer=answer, **__: answer)
    config = Config(cache_dir=tmp_path, data_dir=tmp_path, offline=True)
    prepared = prepare(Reference.parse("default/toy:v1"), config=config, environ={})
    assert of_kernels(prepared.changes) == ({LINES: "1", ASSEMBLER: torchs} if recorded else {})


def test_both_runs_of_a_capture_have_the_pins_of_what_it_runs_on(tmp_path: Path, torchs: str) -> None:
    seen: list[dict[str, str]] = []

    def run(command: object, environ: Any) -> Ended:
        seen.append(of_kernels(environ))
        place = Path(environ["TORCHINDUCTOR_CACHE_DIR"], f"fxgraph/ab/{environ['NAME']}/one")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("graph")
        return Ended(0, 1.0)

    options: dict[str, Any] = {"effective": HOST, "run": run}
    first = capture(["train"], environ={"NAME": "one"}, scratch=tmp_path / "empty", **options)
    again = {"base": first.collected, "recorded": {}, "environ": {"NAME": "two"}}
    capture(["train"], scratch=tmp_path / "union", **again, **options)
    assert seen == [{LINES: "1", ASSEMBLER: torchs}] * 2 + [{}] * 2


@pytest.mark.parametrize("recorded", [{}, RECORDED], ids=["earlier client", "now"])
def test_a_union_has_the_pins_of_its_base(
    recorded: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker runs the command as the base's was: its entries are found, and it finds its own beside them."""
    # Triton sets it in processes that import it, this one perhaps: a command's own value would win.
    monkeypatch.delenv(LINES, raising=False)
    seen = carded(observe_environment())
    tree = a_tree(tmp_path / "tree", names="('old',)")
    live = a_capture(tmp_path, tree, source=tree)
    (artifact,) = live.manifest.artifacts
    base = Base(live.digest, altered(artifact, facts={**artifact.facts, **recorded}), live.paths)
    made = f"os.environ.get({LINES!r}, 'unset')"
    program = a_tree(tmp_path / "more", names="('old', 'new')", text=made) / "program.py"
    (tree / "program.py").write_text(program.read_text())
    monkeypatch.setattr("aot.capture.again.observe_environment", lambda: seen)
    union = proven(live.manifest, tree, tmp_path / "worker", bases=(base,))
    texts = {file.path.split("/")[-2]: file.digest for file in union.files}
    assert texts["new"] == Digest.of(b"1" if recorded else b"unset")
    assert recorded_in(union.artifacts[0]) == recorded
    alone = proven(live.manifest, tree, tmp_path / "alone", bases=())
    assert recorded_in(alone.artifacts[0]) == RECORDED


def proven(pushed: Manifest, tree: Path, scratch: Path, *, bases: tuple[Base, ...]) -> Manifest:
    around: dict[str, Any] = {"on_event": lambda event: None, "should_stop": lambda: None}
    return recapture(
        pushed, tree, scratch=scratch, sandbox=None, devices=(), builder="worker-1", bases=bases, **around
    ).manifest


def test_kernels_that_were_compiled_otherwise_are_no_union() -> None:
    card = {"capability": Capability("cuda:sm_90")}
    before, now = (
        a_capture_artifact(**card),
        a_capture_artifact(**card, facts={**a_capture_artifact().facts, **RECORDED}),
    )
    told = f"nothing that was recorded, those of this worker with {LINES}=1, assembler=torch's: no union"
    with pytest.raises(QualificationFailed, match=told):
        with_bases(now, (Base(Digest.of(b"1"), before, {}),))
    assert with_bases(now, (Base(Digest.of(b"1"), now, {}),)).facts == now.facts
    assert with_bases(a_capture_artifact(), (Base(Digest.of(b"1"), a_capture_artifact(facts=now.facts), {}),))
