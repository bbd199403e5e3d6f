"""What people read: errors, tables, and the few places where a command's words need care."""

import errno
import io
import sys

import pytest

from aot.cli.bundles import manifest_lines, narrow, parse_tagged
from aot.cli.exits import Exit, exit_code_of, of_system
from aot.cli.output import emit, say, say_error
from aot.cli.pod import Report, environment_lines, pulled_lines, report_lines, selection_lines
from aot.errors import BuildFailed, DigestMismatch, InvalidInput, InvalidName, LocalStorageFull
from aot.runtime.pod import Pulled
from aot.schema.decision import Refusal, Selection
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.names import Reference
from aot.schema.wire.errors import ErrorBody
from aot.select import select
from tests.builders import a_gpu, a_manifest, a_node, a_qualification, an_artifact, an_environment, manifest_text


def test_an_error_says_what_was_found_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(
        DigestMismatch("wanted a, found b", hint="fetch again", details={"path": "lib", "empty": "", "none": None})
    )
    assert capsys.readouterr() == ("", "error: wanted a, found b\n  path: lib\n  try: fetch again\n")


def test_a_list_of_details_gets_a_line_each_and_a_long_one_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(DigestMismatch("many", details={"violations": [f"blob {number}" for number in range(25)]}))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == ["error: many", "  violations:", "    (5 more)", "    blob 5"]
    assert lines[-1] == "    blob 24"


def test_a_failed_build_shows_the_details_of_its_worker(capsys: pytest.CaptureFixture[str]) -> None:
    details = {"error": {"code": "backend-failed", "message": "no", "details": {"log": "one\ntwo"}}}
    say_error(BuildFailed("build 1 failed: no", hint="see the log", details=details))
    assert capsys.readouterr().err.splitlines() == [
        "error: build 1 failed: no",
        "  log:",
        "    one",
        "    two",
        "  try: see the log",
    ]


def test_words_of_others_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\x1b[2Jtwo\ttabs")
    emit({}, ["a\rb"], as_json=False)
    out, err = capsys.readouterr()
    assert (out, err) == ("a\N{REPLACEMENT CHARACTER}b\n", "one\N{REPLACEMENT CHARACTER}[2Jtwo\ttabs\n")


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"b": 1, "a": "x\ny"}, ["not this"], as_json=True)
    assert capsys.readouterr().out == '{"a":"x\\ny","b":1}\n'


def test_talk_that_nobody_hears_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    silenced: list[object] = []
    monkeypatch.setattr("aot.cli.output._silence", silenced.append)
    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr(sys, "stdout", Gone())
    say("hello")
    emit({}, ["hello"], as_json=False)
    assert silenced == [sys.stderr, sys.stdout]


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, LocalStorageFull, Exit.UNAVAILABLE),
        (errno.EDQUOT, LocalStorageFull, Exit.UNAVAILABLE),
        (errno.EACCES, InvalidInput, Exit.BAD_INPUT),
        (errno.EROFS, InvalidInput, Exit.BAD_INPUT),
        (errno.ENOTDIR, InvalidInput, Exit.BAD_INPUT),
    ],
)
def test_an_error_of_the_system_about_a_path_is_the_users(number: int, kind: type, code: Exit) -> None:
    error = of_system(OSError(number, "no", "/some/place"))
    assert type(error) is kind
    assert error is not None and exit_code_of(error) is code
    assert error.message == "/some/place: no" and error.hint


def test_other_errors_of_the_system_are_faults_of_ours() -> None:
    assert of_system(OSError(errno.EBADF, "bad descriptor")) is None
    assert of_system(OSError(errno.ENOENT, "without a path")) is None


def test_doctor_reads_well() -> None:
    environment = an_environment(node=a_node(gpus=(a_gpu(),), driver="580.65.06"))
    lines = environment_lines(environment)
    assert lines[0].split() == ["fact", "value"]
    facts = dict(line.split(maxsplit=1) for line in lines[1:])
    assert facts["gpus"] == "NVIDIA H100 80GB HBM3 (cuda:sm_90, 81920 MiB)"
    assert facts["libstdc++"] == "GLIBCXX_3.4.30"
    empty = dict(line.split(maxsplit=1) for line in environment_lines(Environment())[1:])
    assert (empty["cpu"], empty["torch"], empty["gpus"]) == ("not known", "not installed", "none")


def test_doctor_ends_with_what_is_wrong() -> None:
    problem = ErrorBody(code="two-compilers", message="$CXX is not g++ on PATH", hint="unset CXX")
    bad = report_lines(Report(environment=an_environment(), problems=(problem,)))
    assert bad[-3:] == ["", "problem: $CXX is not g++ on PATH", "  try: unset CXX"]
    assert report_lines(Report(environment=an_environment(), problems=()))[-1] == "no problem found"


def test_explain_gives_every_reason_a_line() -> None:
    manifest = a_manifest(artifacts=(an_artifact(), an_artifact(capability="cuda:sm_90", torch="2.11.0+cu130")))
    _, digest = manifest_text(manifest)
    lines = selection_lines(select([(digest, manifest)], an_environment()))
    assert lines[1].split()[-1] == "fits"
    assert "rejected" in lines[2]
    # Only the first reason repeats which artifact it is about.
    assert lines[3].startswith(" " * 10) and lines[3].strip()
    assert lines[-1] == f"chosen: {digest}"


def test_explain_tells_of_alternatives_and_of_what_is_not_used() -> None:
    one, other, refused = (Digest.of(text) for text in (b"1", b"2", b"3"))
    refusals = (Refusal(bundle=refused, reason="signed by nobody"),)
    selection = Selection(
        bundle=one, artifacts=(0,), decisions=(), undecided=True, alternatives=(other,), refusals=refusals
    )
    assert selection_lines(selection)[-3:] == [
        f"chosen: {one}",
        f"or, as load will decide: {other}",
        f"not used: {refused}: signed by nobody",
    ]
    [line] = pulled_lines([Pulled(Reference.parse("mini"), one, selection)])
    assert line.endswith(f"(undecided: load decides between it and {other.short})")


def test_a_bundle_reads_well() -> None:
    manifest = a_manifest()
    text = "\n".join(manifest_lines(manifest, manifest_text(manifest)[1]))
    for part in (
        "default/mini (any weights of this architecture)",
        "cpu-v3: cpu:x86-64-v3, torch 2.13.0+cpu",
        "artifact   whole program [batch 1..32] by route package",
        "at batch 1: 100 us, eager 200 us (2.00x), runs compiled",
        "needs capability cpu:x86-64-v3, torch 2.13.0+cpu",
        "start      1.90 s, eager 2.00 s, 0 child process(es), counted by ptrace",
        "numerics   2 comparisons agree",
    ):
        assert part in text, part


def test_gaps_of_a_proof_are_shown() -> None:
    gap = "whole program [batch 1..32] at batch 32: not tried"
    manifest = a_manifest(qualification=a_qualification(left_out=(gap,)))
    assert manifest_lines(manifest, manifest_text(manifest)[1])[-1] == f"left out   {gap}"


def test_a_list_is_narrowed_by_what_is_given() -> None:
    assert narrow(None) == {}
    assert narrow("team/mini") == {"namespace": "team", "name": "mini"}
    assert narrow("mini:v1") == {"namespace": "default", "name": "mini", "tag": "v1"}
    with pytest.raises(InvalidName):
        narrow("Not A Name")


@pytest.mark.parametrize("text", ["mini", "mini@sha256:" + "0" * 64])
def test_a_tag_to_move_is_spelled_out(text: str) -> None:
    assert parse_tagged("team/mini:v1") == "team/mini:v1"
    with pytest.raises(InvalidInput, match="wanted name:tag"):
        parse_tagged(text)
