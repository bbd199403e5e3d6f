"""What people read: errors, tables, and the few places where a command's words need care."""

import errno
import io
import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from aot.cli.builds import list_lines, show_lines
from aot.cli.bundles import list_lines as bundle_lines
from aot.cli.bundles import manifest_lines, narrow, parse_tagged, view_lines
from aot.cli.doctor import Finding, Report, card_words, environment_lines, report_lines
from aot.cli.ensure import ensured_line
from aot.cli.exits import Exit, exit_code_of, of_system
from aot.cli.explain import selection_lines
from aot.cli.output import emit, say, say_error
from aot.cli.pod import pulled_lines
from aot.errors import BuildFailed, DigestMismatch, InvalidInput, InvalidName, LocalStorageFull
from aot.pipeline import Target
from aot.pipeline.ensure import Ensured
from aot.runtime.pod import Pulled
from aot.schema.capability import Capability
from aot.schema.decision import Refusal, Selection
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.guard import HostGuard
from aot.schema.lock import LockEntry
from aot.schema.names import Reference
from aot.schema.report import Phase, Provenance
from aot.schema.state import BuildState, BundleState
from aot.schema.wire.errors import ErrorBody
from aot.select import Policy, select
from tests.builders import (
    a_container,
    a_frozen_spec,
    a_gpu,
    a_manifest,
    a_node,
    a_qualification,
    a_spec,
    altered,
    an_artifact,
    an_environment,
    host_guards,
    manifest_text,
)
from tests.documents import AT, a_view, messages


def test_an_error_says_what_was_found_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(
        DigestMismatch("wanted a, found b", hint="fetch again", details={"path": "lib", "empty": "", "none": None})
    )
    assert capsys.readouterr() == ("", "error: wanted a, found b\n  try: fetch again\n  path: lib\n")


def test_a_detail_that_the_message_names_or_that_is_a_flag_is_not_said_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    details = {"variable": "AOT_URL", "known": ["a", "b"], "sent": False, "path": "$", "state": "fail", "count": 1}
    say_error(InvalidInput("AOT_URL of 1 is wrong: known are a, b; failed", details=details))
    assert capsys.readouterr().err.splitlines()[1:] == ["  state: fail", "  count: 1"]


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
        "  try: see the log",
        "  log:",
        "    one",
        "    two",
    ]


def test_a_finished_build_tells_what_it_took_and_no_phase() -> None:
    started = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    view = msgspec.structs.replace(
        a_view(), phase=Phase.UPLOADING, started_at=started, finished_at=started + timedelta(seconds=96.25)
    )
    running = msgspec.structs.replace(view, state=BuildState.RUNNING, finished_at=None)
    published = msgspec.structs.replace(view, state=BuildState.PUBLISHED)
    assert "took      96.2 s, proof and upload included" in show_lines(published)
    assert not [line for line in show_lines(running) if line.startswith("took")]
    assert ["uploading" in list_lines([one])[1] for one in (running, published)] == [True, False]


def test_a_long_reason_in_a_list_shows_that_it_goes_on() -> None:
    failed = msgspec.structs.replace(a_view(), state=BuildState.FAILED)
    why = [
        list_lines([msgspec.structs.replace(failed, error=ErrorBody.of(BuildFailed(text)))])[1]
        for text in ("no", 200 * "x")
    ]
    assert why[0].endswith("build-failed: no")
    assert why[1].endswith("xxx...") and "x" * 120 not in why[1]


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
    assert facts["gpus"] == "NVIDIA H100 80GB HBM3 (cuda:sm_90, 132 SM, 81920 MiB)"
    assert facts["libstdc++"] == "GLIBCXX_3.4.30"
    assert facts["cuda"] == (environment.container.cuda or "torch is built without")
    sliced = a_gpu(mig="3g.40gb", sm_count=60)
    assert card_words(sliced) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb (cuda:sm_90, 60 SM, 81920 MiB)"
    empty = dict(line.split(maxsplit=1) for line in environment_lines(Environment())[1:])
    assert (empty["cpu"], empty["torch"], empty["gpus"]) == ("not known", "not installed", "not known")


def test_doctor_ends_with_what_is_wrong() -> None:
    problems = (
        Finding(code="broken-compiler", message="g++ fails", hint="install one", keeps_from="building"),
        Finding(code="two-compilers", message="$CXX is not g++ on PATH", hint="unset CXX"),
    )
    bad = report_lines(Report(environment=an_environment(), problems=problems, exit_code=0))
    assert bad[-6:-3] == ["", "problem (keeps it from building): g++ fails", "  try: install one"]
    assert bad[-3:] == ["", "warning: $CXX is not g++ on PATH", "  try: unset CXX"]
    assert report_lines(Report(environment=an_environment(), problems=(), exit_code=0))[-1] == "no problem found"


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


def test_every_listing_says_which_weights_a_bundle_serves() -> None:
    listed = {}
    for spec in (a_spec(), a_frozen_spec()):
        manifest = a_manifest(spec)
        frozen, digest = manifest.frozen, manifest_text(manifest)[1]
        selection = select([(digest, manifest)], an_environment())
        reference = Reference.parse("mini")
        entry = LockEntry(
            reference=reference, profile=spec.profile, bundle=digest, build_key=manifest.build_key, frozen=frozen
        )
        listed[frozen] = {
            "ls --builds": list_lines([a_view(frozen=frozen)])[1],
            "explain": selection_lines(selection)[1],
            "pull": pulled_lines([Pulled(reference, digest, selection)])[0],
            "ensure": ensured_line(Target(reference, spec.profile, Ensured.BUILT, digest, entry)),
        }
    assert all("frozen" in line for line in listed[True].values()), listed[True]
    assert all("frozen" not in line for line in listed[False].values()), listed[False]
    assert all("any weights" in line for command, line in listed[False].items() if command != "pull")


def test_what_a_program_sets_for_itself_is_no_news_to_whoever_pulls() -> None:
    values = {"deterministic": "false", "default_dtype": "float32", "matmul_precision": "highest"}
    settings = tuple(HostGuard(kind=kind, value=value) for kind, value in values.items())
    manifest = a_manifest(artifacts=(an_artifact(host_guards=(*host_guards(), *settings)),))
    _, digest = manifest_text(manifest)
    for seen, word in ((an_environment(), False), (an_environment(container=a_container(libc=None)), True)):
        selection = select([(digest, manifest)], seen, policy=Policy(undecided=True))
        [line] = pulled_lines([Pulled(Reference.parse("mini"), digest, selection)])
        assert selection.undecided
        assert ("undecided" in line) is word


def test_explain_says_what_would_have_to_change_for_the_nearest() -> None:
    seen = an_environment(node=a_node(cpu=Capability("cpu:x86-64-v2")))
    far = a_manifest(artifacts=(an_artifact(capability="cpu:x86-64-v4"),))
    near = a_manifest(artifacts=(an_artifact(capability="cpu:x86-64-v2", torch="2.14.0+cpu"),))
    lines = selection_lines(select([(Digest.of(b"1"), far), (Digest.of(b"2"), near)], seen))
    assert lines[-2] == f"nearest: {Digest.of(b'2').short}: install torch 2.14.0+cpu"
    fits = selection_lines(select([(Digest.of(b"1"), a_manifest())], an_environment()))
    assert not any(line.startswith("nearest") for line in fits)


def test_explain_says_for_which_of_several_cards() -> None:
    guards = (*host_guards("cuda:sm_90", torch="2.13.0+cpu"), HostGuard(kind="driver", value="580.65.06"))
    guards += (HostGuard(kind="cuda", value="13.0"),)
    manifest = a_manifest(artifacts=(an_artifact(capability="cuda:sm_90", host_guards=guards),))
    cards = (a_gpu(capability=Capability("cuda:sm_86"), sku="NVIDIA A10"), a_gpu(), a_gpu())
    seen = an_environment(node=a_node(gpus=cards, driver="580.65.06"), container=a_container(cuda="13.0"))
    lines = selection_lines(select([(Digest.of(b"1"), manifest)], seen))
    assert lines[1].endswith("card 1, 2 of this host")


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
        "numerics   3 comparisons agree",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("provenance", "words"),
    [
        (Provenance(builder="ci"), "by ci, commit not known"),
        (Provenance(builder="ci", commit="abc"), "by ci, from commit abc"),
        (Provenance(builder="ci", commit="abc", dirty=True), "by ci, from commit abc (changed since)"),
        (
            Provenance(builder="ci", commit="abc", commit_told_by="ci"),
            "by ci, from commit abc (as CI says; nobody has looked for changes)",
        ),
        (
            Provenance(builder="w", aot_version="0.1.0", built_at="2026-01-02T03:04:05+00:00"),
            "by w at 2026-01-02T03:04:05+00:00 with aot 0.1.0, commit not known",
        ),
    ],
)
def test_a_bundle_says_who_built_it_from_which_commit(provenance: Provenance, words: str) -> None:
    manifest = a_manifest(provenance=provenance)
    assert f"built      {words}" in manifest_lines(manifest, manifest_text(manifest)[1])


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


def test_a_bundle_without_a_tag_says_when_it_goes_and_one_of_an_older_registry_says_nothing() -> None:
    _, tagged = messages()["get_bundle"]
    loose = altered(tagged, tags=(), expires_at=AT, state=BundleState.WITHDRAWN, withdrawn_reason="wrong")
    assert view_lines(loose)[-1] == "goes       2026-01-02 unless it is used; no tag pins it"
    older = altered(loose, expires_at=None)
    assert not [line for line in view_lines(older) if line.startswith("goes")]
    assert [line.split()[-1] for line in bundle_lines((tagged, loose, older))] == ["goes", "-", "2026-01-02", "-"]
