"""What a run has compiled on its way back: at the first idle moment, after exit, and where the registry is down."""

import errno
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aot.capture.account import account
from aot.capture.collect import MARK, Collected, collect, list_paths, repeats
from aot.capture.deaf import start_deaf
from aot.capture.idle import IdleWatch
from aot.capture.pickled import name_of
from aot.capture.prepare import Prepared
from aot.capture.run import run_on
from aot.capture.union import Base, entries_of, with_bases
from aot.capture.unwritten import Unwritten, each_kept, keep
from aot.cli.write_back import WriteBack
from aot.errors import QualificationFailed, RegistryUnreachable
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.guard import HostGuard
from aot.schema.names import Name, Reference
from aot.schema.state import BundleState
from aot.schema.wire.bundles import PublishReply
from tests.builders import BYTES, a_blob, altered, an_environment
from tests.route_builders import a_capture_artifact, a_capture_manifest, a_capture_source

OLD, NEW, LATER = (f"inductor/fxgraph/ab/{word}/entry" for word in ("old", "new", "later"))
GRAPH = "inductor/fxgraph/ab/key/one"  # of `a_capture_artifact`
SECONDS = 20.0


def write(directory: Path, *paths: str) -> Path:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(path)
    return directory


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def prepared_on(directory: Path) -> Prepared:
    manifest = a_capture_manifest()
    [artifact] = manifest.artifacts
    for file in artifact.files:
        write(directory, file.path)
        (directory / file.path).write_bytes(BYTES[file.digest].replace(MARK, str(directory).encode()))
    return Prepared(
        Reference.parse("default/trainer:v1"),
        an_environment(),
        directory,
        {},
        Digest.of(b"restored"),
        manifest,
        artifact,
    )


class Registry:
    """Where unions are pushed; away as long as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = False
        self.pushed: list[tuple[tuple[str, ...], set[str]]] = []
        monkeypatch.setattr("aot.cli.write_back.connected", lambda: None)
        monkeypatch.setattr("aot.cli.write_back.push_bundle", self.push)

    def push(self, client: object, staged: object, *, tags: object) -> PublishReply:
        if self.away:
            raise RegistryUnreachable("nobody answers")
        manifest = staged.manifest
        assert manifest.spec.source.union_of == Digest.of(b"restored") and tags == ("v1",)
        self.pushed.append((manifest.spec.source.command, {file.path for file in manifest.files}))
        return PublishReply(bundle=staged.digest, state=BundleState.PENDING, build="b-1")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    return Registry(monkeypatch)


def test_a_command_that_goes_on_is_written_back_at_its_first_idle_moment(tmp_path: Path, registry: Registry) -> None:
    prepared = prepared_on(tmp_path / "caches")
    compiles = (
        f"import pathlib; p = pathlib.Path({str(tmp_path / 'caches' / NEW)!r}); p.parent.mkdir(); p.write_text('x')"
    )
    waits = f"import time, pathlib\nwhile not pathlib.Path({str(tmp_path / 'seen')!r}).exists(): time.sleep(0.02)"
    command = (sys.executable, "-S", "-c", f"{compiles}\n{waits}\nraise SystemExit(7)")
    back = WriteBack(prepared, command, {})

    def at_idle(new: frozenset[str]) -> None:
        back.at_idle(new)
        (tmp_path / "seen").touch()  # the command runs on only when it was written back beside it

    ran = run_on(prepared, command, environ={}, idle_seconds=0.2, on_idle=at_idle)
    assert ran.code == 7 and ran.new == {NEW}
    back.at_exit(ran.new)
    before = {file.path for file in prepared.artifact.files}
    assert registry.pushed == [(command, {*before, NEW})]


def test_what_is_compiled_after_the_idle_moment_is_written_back_at_the_end(tmp_path: Path, registry: Registry) -> None:
    prepared = prepared_on(tmp_path / "caches")
    back = WriteBack(prepared, ("serve",), {})
    write(tmp_path / "caches", NEW, LATER)
    back.at_idle(frozenset({NEW}))
    back.at_exit(frozenset({NEW, LATER}))
    (_, first), (_, second) = registry.pushed
    assert second - first == {LATER} and first < second


def test_nothing_is_lost_where_the_registry_is_down(
    tmp_path: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = prepared_on(tmp_path / "caches")
    write(tmp_path / "caches", NEW)
    registry.away = True
    back = WriteBack(prepared, ("serve", "--long"), {"OMP_NUM_THREADS": "2", "HOME": "/root"})
    back.at_idle(frozenset({NEW}))
    back.at_exit(frozenset({NEW}))
    said = capsys.readouterr().err
    assert said.count("not written back: nobody answers") == 2 and "the next run with --write-back pushes it" in said
    # A later run of another command finds the registry, and pushes what the first had: with the first one's command.
    registry.away = False
    WriteBack(prepared, ("other",), {}).at_exit(frozenset())
    [(command, paths)] = registry.pushed
    assert command == ("serve", "--long") and NEW in paths
    WriteBack(prepared, ("other",), {}).at_exit(frozenset())
    assert len(registry.pushed) == 1


class Killed(BaseException):
    """SIGKILL, as far as it goes: nothing behind it runs."""


def test_what_is_pushed_is_kept_until_the_registry_has_it(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_on(tmp_path / "caches")
    write(tmp_path / "caches", NEW, LATER)
    registry.away = True
    for command, path in (("one", NEW), ("two", LATER)):
        WriteBack(prepared, (command,), {}).at_exit(frozenset({path}))

    def killed(*_: object, **__: object) -> None:
        raise Killed

    write(tmp_path / "caches", OLD)
    with monkeypatch.context() as dying:
        dying.setattr("aot.cli.write_back.push_bundle", killed)
        with pytest.raises(Killed):  # beside the command
            WriteBack(prepared, ("three",), {}).at_idle(frozenset({OLD}))
        with pytest.raises(Killed):  # after its exit
            WriteBack(prepared, ("four",), {}).at_exit(frozenset({OLD}))
    registry.away = False
    WriteBack(prepared, ("last",), {}).at_exit(frozenset())
    assert sorted(command for command, _ in registry.pushed) == [("four",), ("one",), ("three",), ("two",)]
    assert not list(tmp_path.glob("*/.aot-*"))


def test_what_a_run_has_kept_at_idle_is_part_of_what_it_pushes_at_the_end(tmp_path: Path, registry: Registry) -> None:
    back = WriteBack(prepared_on(tmp_path / "caches"), ("serve",), {})
    write(tmp_path / "caches", NEW, LATER)
    registry.away = True
    back.at_idle(frozenset({NEW}))
    registry.away = False
    back.at_exit(frozenset({NEW, LATER}))
    [(_, paths)] = registry.pushed
    assert {NEW, LATER} < paths and not list(tmp_path.glob("*/.aot-*"))


def test_what_was_kept_is_pushed_on_the_bundle_that_the_tag_has_moved_to(tmp_path: Path, registry: Registry) -> None:
    before, after = prepared_on(tmp_path / "caches"), prepared_on(tmp_path / "grown")
    write(tmp_path / "caches", NEW)
    registry.away = True
    WriteBack(before, ("serve",), {}).at_exit(frozenset({NEW}))
    registry.away = False
    # Not on another reference, another program or another profile: its own runs push it.
    assert after.manifest is not None
    other_program = a_capture_manifest(a_capture_source(tree=a_blob(b"another tree")))
    other_profile = altered(after.manifest, profile=altered(after.manifest.profile, name=Name("another")))
    for changes in (
        {"reference": Reference.parse("default/trainer:v2")},
        {"manifest": other_program},
        {"manifest": other_profile},
    ):
        WriteBack(replace(after, **changes), ("other",), {}).at_exit(frozenset())
    assert registry.pushed == []
    WriteBack(after, ("other",), {}).at_exit(frozenset())
    assert registry.pushed == [(("serve",), {*(file.path for file in after.manifest.files), NEW})]
    assert not list(tmp_path.glob("*/.aot-*"))


def test_what_was_kept_stays_until_it_is_pushed_and_is_dropped_where_it_is_damaged_or_gone(tmp_path: Path) -> None:
    bundle = write(tmp_path / "bundle", NEW)
    unwritten = Unwritten(command=("serve",), environment={"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}, paths=(NEW,))
    kept = keep(bundle, unwritten)
    keep(bundle, Unwritten(command=("serve",), paths=("inductor/fxgraph/ab/gone/entry",)))
    (bundle / ".aot-unwritten-damaged").write_text("{")
    write(tmp_path / ".gone-bundle", NEW)
    keep(tmp_path / ".gone-bundle", unwritten)
    (tmp_path / "bundle.lock").touch()
    assert list_paths(bundle) == {NEW}
    assert list(each_kept(tmp_path)) == [kept]
    assert list(each_kept(tmp_path / "nowhere")) == []
    [found] = each_kept(tmp_path)
    assert [place.name for place in bundle.glob(".aot-*")] == [kept.place.name if kept.place else None]
    found.discard()
    found.discard()
    assert list(each_kept(tmp_path)) == []


def test_of_two_processes_one_has_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write(tmp_path / "bundle", NEW)
    keep(bundle, Unwritten(command=("serve",), paths=(NEW,)))
    first = each_kept(tmp_path)
    held = next(first)
    assert list(each_kept(tmp_path)) == []
    first.close()
    assert list(each_kept(tmp_path)) == [held]

    def no_locks(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("aot.capture.unwritten.try_lock", no_locks)  # then two may, which is once
    assert list(each_kept(tmp_path)) == [held]


def test_idle_is_a_graph_and_then_silence(tmp_path: Path) -> None:
    told: list[frozenset[str]] = []
    before = list_paths(write(tmp_path, OLD))
    watch = IdleWatch(tmp_path, before=before, seconds=0.3, on_idle=told.append)
    write(tmp_path, "inductor/ab/code.cpp")  # no graph yet, however silent it is
    time.sleep(0.6)
    assert told == []
    write(tmp_path, NEW)
    for size in range(8):  # one that is still being written
        (tmp_path / NEW).write_text("x" * size)
        time.sleep(0.1)
        assert told == []
    until(lambda: told)
    write(tmp_path, LATER)
    time.sleep(0.5)
    watch.finish()
    assert told == [{NEW, "inductor/ab/code.cpp"}]


def test_threads_beside_a_command_take_no_signal() -> None:
    seen: list[set[signal.Signals]] = []
    mine = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    thread = threading.Thread(target=lambda: seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    start_deaf(thread)
    thread.join()
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} <= seen[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mine


def a_base(tmp_path: Path, name: str, **files: bytes) -> Base:
    for path, content in files.items():
        place = tmp_path / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    found: Collected = collect(tmp_path / name, scratch=tmp_path / f"{name}-scratch")
    artifact = a_capture_artifact(files=tuple(entry.as_file() for entry in found.entries))
    return Base(Digest.of(name.encode()), artifact, found.paths)


def test_a_union_holds_all_of_its_bases_and_of_two_under_one_path_the_first(tmp_path: Path) -> None:
    one = a_base(tmp_path, "one", **{OLD: b"old", NEW: b"first"})
    two = a_base(tmp_path, "two", **{NEW: b"second", LATER: b"later"})
    held = entries_of((one, two), scratch=tmp_path / "tables")
    content = {entry.path: held.paths[entry.digest].read_bytes() for entry in held.entries}
    assert content == {OLD: b"old", NEW: b"first", LATER: b"later"}
    union = with_bases(two.artifact, (one,))
    assert {file.path for file in union.files} == {OLD, NEW, LATER} and union.facts["graphs"] == "3"
    assert set(one.artifact.files) < set(union.files)
    assert union.facts["first_seconds"] == one.artifact.facts["first_seconds"]


def with_guard(artifact: Artifact, kind: str, value: str) -> Artifact:
    kept = tuple(guard for guard in artifact.host_guards if guard.kind != kind)
    return altered(artifact, host_guards=(*kept, HostGuard(kind=kind, value=value)))


def test_a_union_asks_of_a_host_what_any_of_its_parts_asks() -> None:
    mine, base = a_capture_artifact(), a_capture_artifact()
    union = with_bases(with_guard(mine, "libc", "2.17"), (Base(Digest.of(b"1"), with_guard(base, "libc", "2.34"), {}),))
    assert [guard.value for guard in union.host_guards if guard.kind == "libc"] == ["2.34"]
    assert len({guard.kind for guard in union.host_guards}) == len(union.host_guards)


def test_entries_under_other_conditions_are_no_union() -> None:
    base = Base(Digest.of(b"1"), with_guard(a_capture_artifact(), "cuda", "13.0"), {})
    with pytest.raises(QualificationFailed, match=r"is for cuda 13\.0, what this worker has made is for any"):
        with_bases(a_capture_artifact(), (base,))


def test_entries_of_two_cpus_are_no_union(tmp_path: Path) -> None:
    other = a_capture_artifact(facts={**a_capture_artifact().facts, "key_tag": "aot-x86-64-v4-python3.11"})
    with pytest.raises(QualificationFailed, match="key tag aot-x86-64-v4"):
        with_bases(a_capture_artifact(), (Base(Digest.of(b"1"), other, {}),))


def test_an_entry_that_a_program_writes_once_more_was_not_compiled(tmp_path: Path, registry: Registry) -> None:
    """What loads saved artifacts writes them beside what was restored, under the names that they had when saved."""
    known = f"inductor/fxgraph/ab/old/{name_of(b'graph')}"
    write(tmp_path, known, f"{OLD}-as-saved", NEW)
    (tmp_path / f"{OLD}-as-saved").write_bytes(b"graph")
    new = frozenset({f"{OLD}-as-saved", NEW})
    assert repeats(tmp_path, new, frozenset({known})) == {f"{OLD}-as-saved"}
    counted = account(
        tmp_path,
        bundle=frozenset({known}),
        before=frozenset({known}),
        after=new | {known},
        opened=frozenset({known}),
        seconds=1.0,
    )
    assert (counted.found, counted.compiled) == (1, 1)
    # And a run that did nothing else has nothing to write back.
    prepared = prepared_on(tmp_path / "caches")
    again = f"{GRAPH.rpartition('/')[0]}/as-saved"
    write(tmp_path / "caches", again)
    WriteBack(prepared, ("serve",), {}).at_exit(frozenset({again}))
    assert registry.pushed == []
