"""The parent's side of a compile: what each end of a child means, and what it believes of what a child left."""

import os
from pathlib import Path
from typing import Any

import pytest

from aot.compile.job import ARTIFACTS_DIRECTORY, OUTCOME_FILE, CompileOutcome
from aot.compile.run import check_files, explain_exit, read_outcome
from aot.errors import (
    BackendFailed,
    CompileFailed,
    CompileOutOfMemory,
    CompileStopped,
    CompileTimedOut,
    SourceNotLoadable,
)
from aot.sandbox import ChildExit, ExitKind, SandboxKind
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.report import CompileReport, Phase
from aot.schema.spec import File, Limits
from aot.schema.wire.errors import ErrorBody
from tests.builders import an_artifact

LIMITS = Limits(wall_seconds=60, memory_bytes=1 << 30)


def an_exit(kind: ExitKind = ExitKind.EXITED, **deviations: Any) -> ChildExit:
    fields: dict[str, Any] = {
        "code": 0 if kind is ExitKind.EXITED else None,
        "signal": None,
        "stop_reason": None,
        "wall_seconds": 1.0,
        "cpu_seconds": 1.0,
        "max_rss_bytes": 1,
        "stdout_tail": "",
        "stderr_tail": "the end of stderr",
        "processes": None,
        "sandbox": SandboxKind.PROCESS,
        "memory_limit_bytes": LIMITS.memory_bytes,
    }
    return ChildExit(kind=kind, **(fields | deviations))


@pytest.mark.parametrize(
    ("ended", "phase", "error", "message"),
    [
        (an_exit(ExitKind.TIMED_OUT), Phase.COMPILING, CompileTimedOut, "longer than 60 s, while compiling"),
        (an_exit(ExitKind.OUT_OF_MEMORY), Phase.LOADING, CompileOutOfMemory, "more than 1073741824 bytes"),
        (an_exit(ExitKind.LOST), Phase.LOADING, CompileOutOfMemory, "killed from outside"),
        (an_exit(ExitKind.STOPPED, stop_reason="lease lost"), Phase.EXPORTING, CompileStopped, "lease lost"),
        (an_exit(ExitKind.SIGNALED, signal="SIGSEGV"), Phase.COMPILING, BackendFailed, "SIGSEGV while compiling"),
        (an_exit(ExitKind.SIGNALED, signal="SIGSEGV"), Phase.LOADING, SourceNotLoadable, "died of SIGSEGV"),
        (an_exit(ExitKind.TOO_MUCH_OUTPUT), Phase.LOADING, SourceNotLoadable, "too much output"),
        (an_exit(ExitKind.TOO_MUCH_DISK), Phase.COMPILING, BackendFailed, "bytes to disk while compiling"),
        (an_exit(ExitKind.TOO_MANY_PROCESSES), Phase.LOADING, SourceNotLoadable, "more than 256 processes"),
        (an_exit(code=3), Phase.LOADING, SourceNotLoadable, "exited with code 3"),
    ],
)
def test_each_end_of_a_child_is_one_error(
    ended: ChildExit, phase: Phase, error: type[CompileFailed], message: str
) -> None:
    failure = explain_exit(ended, phase=phase, limits=LIMITS)
    assert type(failure) is error
    assert message in failure.message
    assert failure.details["log"] == "the end of stderr"
    assert failure.details["signal"] == ended.signal


def test_a_child_that_ended_well_is_no_error() -> None:
    assert explain_exit(an_exit(), phase=Phase.COMPILING, limits=LIMITS) is None


def outcome_in(tmp_path: Path, outcome: CompileOutcome | bytes, phase: Phase = Phase.COMPILING) -> CompileOutcome:
    content = outcome if isinstance(outcome, bytes) else encode(outcome)
    (tmp_path / OUTCOME_FILE).write_bytes(content)
    return read_outcome(tmp_path, an_exit(), phase=phase, limits=LIMITS)


@pytest.mark.parametrize(("phase", "error"), [(Phase.LOADING, SourceNotLoadable), (Phase.COMPILING, BackendFailed)])
def test_a_child_that_left_no_outcome_ended_itself(tmp_path: Path, phase: Phase, error: type[CompileFailed]) -> None:
    with pytest.raises(error, match="ended without an outcome"):
        read_outcome(tmp_path, an_exit(), phase=phase, limits=LIMITS)


def test_an_outcome_that_does_not_decode_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(BackendFailed, match="without an outcome"):
        outcome_in(tmp_path, b'{"artifacts": 3}')


def test_an_outcome_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(encode(CompileOutcome()))
    (tmp_path / OUTCOME_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackendFailed, match="without an outcome"):
        read_outcome(tmp_path, an_exit(), phase=Phase.COMPILING, limits=LIMITS)


def test_an_outcome_that_is_a_pipe_does_not_hold_the_parent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / OUTCOME_FILE)
    with pytest.raises(BackendFailed, match="without an outcome"):
        read_outcome(tmp_path, an_exit(), phase=Phase.COMPILING, limits=LIMITS)


def test_the_childs_error_is_raised_as_the_same_class(tmp_path: Path) -> None:
    error = ErrorBody(code="source-not-loadable", message="no", hint="do", details={"frame": {"line": 3}})
    report = CompileReport(phases={"loading": 1.5})
    with pytest.raises(SourceNotLoadable, match="no") as caught:
        outcome_in(tmp_path, CompileOutcome(error=error, report=report))
    assert caught.value.hint == "do"
    assert caught.value.details == {"frame": {"line": 3}, "log": "the end of stderr", "phases": {"loading": 1.5}}


@pytest.mark.parametrize("code", ["registry-unreachable", "unauthenticated", "lease-lost", "made-up"])
def test_a_child_cannot_speak_for_the_registry(tmp_path: Path, code: str) -> None:
    with pytest.raises(BackendFailed, match="retry me"):
        outcome_in(tmp_path, CompileOutcome(error=ErrorBody(code=code, message="retry me")))


def test_details_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    error = ErrorBody(code="backend-failed", message="no", details={"log": "x" * 200_000})
    with pytest.raises(BackendFailed) as caught:
        outcome_in(tmp_path, CompileOutcome(error=error))
    assert "left_out" in caught.value.details


CONTENT = b"\x7fELF library"


def artifact_with(path: str) -> CompileOutcome:
    file = File(path=path, digest=Digest.of(CONTENT), size_bytes=len(CONTENT))
    return CompileOutcome(artifacts=(an_artifact(files=(file,)),))


def place(tmp_path: Path, path: str = "lib/model.so") -> Path:
    found = tmp_path / ARTIFACTS_DIRECTORY / "0" / path
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def test_files_are_hashed_again_and_found_by_digest(tmp_path: Path) -> None:
    place(tmp_path).write_bytes(CONTENT)
    assert dict(check_files(tmp_path, artifact_with("lib/model.so"))) == {Digest.of(CONTENT): place(tmp_path)}


def test_a_file_with_other_bytes_than_recorded_is_refused(tmp_path: Path) -> None:
    place(tmp_path).write_bytes(CONTENT + b"!")
    with pytest.raises(BackendFailed, match="not what it recorded"):
        dict(check_files(tmp_path, artifact_with("lib/model.so")))


@pytest.mark.parametrize("path", ["../../secret", "/etc/passwd", "lib/../../0/lib/model.so", "lib\0", "", ".", "lib/."])
def test_a_path_out_of_the_artifact_is_refused(tmp_path: Path, path: str) -> None:
    place(tmp_path).write_bytes(CONTENT)
    (tmp_path / "secret").write_bytes(CONTENT)
    with pytest.raises(BackendFailed, match="not what it recorded"):
        dict(check_files(tmp_path, artifact_with(path)))


def test_a_link_to_a_file_of_the_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(CONTENT)
    place(tmp_path).symlink_to(tmp_path / "secret")
    with pytest.raises(BackendFailed, match="not what it recorded"):
        dict(check_files(tmp_path, artifact_with("lib/model.so")))


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.so").write_bytes(CONTENT)
    place(tmp_path).parent.rmdir()
    place_of_lib = tmp_path / ARTIFACTS_DIRECTORY / "0" / "lib"
    place_of_lib.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackendFailed, match="not what it recorded"):
        dict(check_files(tmp_path, artifact_with("lib/model.so")))
