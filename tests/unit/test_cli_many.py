"""What one profile of several suffers costs the others nothing: every one ends in its line, its error told once."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from aot.cli import many
from aot.cli.exits import WORST_FIRST, Exit, worst
from aot.cli.many import follow_all, push_each, submit_all, submit_each
from aot.errors import (
    AotError,
    BackendFailed,
    BuildFailed,
    BuildUnfinished,
    Forbidden,
    InvalidSpec,
    RegistryUnreachable,
    SignatureRejected,
)
from aot.schema.digest import BuildKey, Digest
from aot.schema.names import Name
from aot.schema.state import BuildState
from aot.schema.wire.builds import BuildView, SubmitReply
from tests.builders import a_spec

NAMES = tuple(Name(f"cpu-x86-64-v{level}") for level in (2, 3, 4))
BUNDLE = Digest.of(b"bundle")
SUBMISSION: Any = type("Submission", (), {"tags": ()})()
CLIENT: Any = None


def a_view(profile: str, state: BuildState = BuildState.QUEUED, **changes: Any) -> BuildView:
    return BuildView(
        id=f"build-{profile[-2:]}",
        namespace="default",
        name="mini",
        profile=profile,
        build_key=BuildKey("sha256:" + "0" * 64),
        state=state,
        attempt=0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        bundle=BUNDLE if state is BuildState.PUBLISHED else None,
        **changes,
    )


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def packed_specs(client: Any, submission: Any, profiles: Any, **more: Any) -> Iterator[Any]:
        yield tuple(a_spec(profile=name) for name in profiles), None

    monkeypatch.setattr(many, "packed_specs", packed_specs)


@pytest.fixture
def submitting(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """What happens at the submission of each profile; nothing where it is not named."""
    wrong: dict[str, BaseException] = {}

    def submit_spec(client: Any, spec: Any, packed: Any, **given: Any) -> SubmitReply:
        if error := wrong.get(spec.profile):
            raise error
        return SubmitReply(build=a_view(spec.profile), created=True)

    monkeypatch.setattr(many, "submit_spec", submit_spec)
    return wrong


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[BuildState, BaseException | None]]:
    """The state that is seen last of each build, and what ends the following; published where it is not named."""
    ends: dict[str, tuple[BuildState, BaseException | None]] = {}

    def follow_build(client: Any, build: str, *, on_change: Callable[[BuildView], None], on_line: Any) -> BuildView:
        state, error = ends.get(build, (BuildState.PUBLISHED, None))
        view = a_view(f"cpu-x86-64-{build[-2:]}", state)
        on_change(view)
        if error is not None:
            raise error
        return view

    monkeypatch.setattr(many, "follow_build", follow_build)
    return ends


def build_all() -> Exit:
    return follow_all(CLIENT, submit_each(CLIENT, SUBMISSION, NAMES, priority=0), as_json=False, log=False)


def line(state: str, level: int, last: str) -> str:
    return f"{state}\tdefault/mini\tcpu-x86-64-v{level}\t{last}"


def test_a_profile_that_is_refused_costs_the_others_neither_build_nor_line(
    submitting: dict[str, BaseException], following: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    submitting[NAMES[1]] = InvalidSpec("this profile has no AVX2", hint="leave it out")
    assert build_all() is Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert out.splitlines() == [line("published", 2, BUNDLE), line("not-begun", 3, "-"), line("published", 4, BUNDLE)]
    assert err.count("this profile has no AVX2") == 1 and "cpu-x86-64-v3: not-begun" in err


def test_a_registry_away_while_one_is_followed_ends_that_one_alone(
    submitting: Any, following: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    following["build-v2"] = (BuildState.RUNNING, RegistryUnreachable("nobody answers", hint="wait"))
    assert build_all() is Exit.UNAVAILABLE
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        line("not-known", 2, "build-v2"),
        line("published", 3, BUNDLE),
        line("published", 4, BUNDLE),
    ]
    assert err.count("nobody answers") == 1


def test_a_build_that_fails_is_told_once_with_its_state(
    submitting: Any, following: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    following["build-v3"] = (BuildState.FAILED, BuildFailed("g++ said no", hint="look"))
    assert build_all() is Exit.BUILD_FAILED
    out, err = capsys.readouterr()
    assert line("failed", 3, "build-v3") in out.splitlines()
    assert err.count("g++ said no") == 1


def test_the_worst_code_wins_wherever_it_stands(submitting: Any, following: dict[str, Any]) -> None:
    following["build-v2"] = (BuildState.RUNNING, RegistryUnreachable("away", hint=""))
    following["build-v3"] = (BuildState.FAILED, BuildFailed("no", hint=""))
    submitting[NAMES[2]] = Forbidden("not yours", hint="")
    assert build_all() is Exit.REFUSED


def test_submit_prints_what_was_begun_and_documents_what_was_not(
    submitting: dict[str, BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    submitting[NAMES[1]] = RegistryUnreachable("nobody answers", hint="wait")
    assert submit_all(CLIENT, SUBMISSION, NAMES, priority=0, as_json=False) is Exit.UNAVAILABLE
    assert capsys.readouterr().out.splitlines() == ["build-v2", "build-v4"]
    submit_all(CLIENT, SUBMISSION, NAMES, priority=0, as_json=True)
    documents = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(one["profile"], one["id"], one["state"]) for one in documents] == [
        (NAMES[0], "build-v2", "queued"),
        (NAMES[1], None, "not-begun"),
        (NAMES[2], "build-v4", "queued"),
    ]
    assert documents[1]["error"]["code"] == "registry-unreachable"


@pytest.mark.parametrize("leaving", [KeyboardInterrupt(), SystemExit(143), RuntimeError("a fault")])
@pytest.mark.parametrize("moment", ["submitting", "following"])
def test_whoever_leaves_is_told_what_goes_on(
    moment: str,
    leaving: BaseException,
    submitting: dict[str, BaseException],
    following: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if moment == "submitting":
        submitting[NAMES[1]] = leaving
        left = "build-v2"
    else:
        following["build-v3"] = (BuildState.RUNNING, leaving)
        left = "build-v3, build-v4"
    with pytest.raises(type(leaving)):
        build_all()
    err = capsys.readouterr().err
    assert f"builds {left} go on" in err
    in_flight = f"{NAMES[1]}: nobody knows whether its build was begun; the same command finds it"
    assert (in_flight in err) is (moment == "submitting")


def test_builds_on_this_machine_go_on_after_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, following: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong: dict[str, Exception] = {
        NAMES[0]: BackendFailed("g++ said no", hint="look"),
        NAMES[1]: OSError(28, "No space left on device", "/scratch"),
    }

    def build_and_push(client: Any, spec: Any, packed: Any, *, tags: Any) -> str:
        if error := wrong.get(spec.profile):
            raise error
        return f"build-{spec.profile[-2:]}"

    monkeypatch.setattr(many, "build_and_push", build_and_push)
    code = follow_all(CLIENT, push_each(CLIENT, SUBMISSION, NAMES), as_json=False, log=False)
    out, err = capsys.readouterr()
    assert code is Exit.BUILD_FAILED
    assert out.splitlines() == [line("not-begun", 2, "-"), line("not-begun", 3, "-"), line("published", 4, BUNDLE)]
    assert err.count("g++ said no") == 1 and "No space left" in err


def test_every_code_has_its_place_among_the_worst() -> None:
    assert sorted(WORST_FIRST) == sorted(Exit)
    assert worst([]) is Exit.OK
    assert worst([Exit.UNAVAILABLE, Exit.INTEGRITY, Exit.OK]) is Exit.INTEGRITY


def test_tampering_is_worse_than_a_build_that_failed(submitting: Any, following: dict[str, Any]) -> None:
    errors: list[AotError] = [BuildFailed("no", hint=""), SignatureRejected("not signed", hint="")]
    for build, error in zip(("build-v2", "build-v3"), errors, strict=True):
        following[build] = (BuildState.FAILED, error)
    assert build_all() is Exit.INTEGRITY


def test_a_bundle_that_no_host_has_run_is_told_with_the_state_of_its_build(
    submitting: Any, following: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    following["build-v4"] = (BuildState.QUEUED, BuildUnfinished("is pending, not run: no host with AMX"))
    code = follow_all(CLIENT, submit_each(CLIENT, SUBMISSION, NAMES, priority=0), as_json=False, log=False)
    assert code == Exit.UNAVAILABLE
    assert capsys.readouterr().out.splitlines()[-1] == "queued\tdefault/mini\tcpu-x86-64-v4\tbuild-v4"
