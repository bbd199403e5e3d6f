"""`aot tag` and `aot untag`: of one bundle, and of all that a lock pins."""

import json
from pathlib import Path

from aot.schema.digest import BuildKey, Digest
from aot.schema.lock import Lock, LockEntry, encode_lock
from aot.schema.names import Name, Reference
from aot.schema.wire.bundles import TagRequest, WithdrawRequest
from aot.schema.wire.workers import Scope
from tests.builders import a_profile, a_source, a_spec
from tests.commands import Shell
from tests.integration.cli.shells import PROFILE

LOW = a_profile("cpu-low", capability="cpu:x86-64-v2")
KEY = BuildKey(Digest.of(b"key"))


def published(shell: Shell, name: str, *, profile: str = PROFILE.name, content: bytes = b"") -> Digest:
    return shell.service.published(a_spec(name, profile=profile, source=a_source(content or name.encode()))).bundle


def locked(tmp_path: Path, *entries: tuple[str, str, Digest]) -> str:
    path = tmp_path / "aot.lock"
    lock = Lock(
        entries=tuple(
            LockEntry(reference=Reference.parse(name), profile=Name(profile), bundle=bundle, build_key=KEY)
            for name, profile, bundle in entries
        )
    )
    path.write_bytes(encode_lock(lock))
    return str(path)


def test_all_that_a_lock_pins_is_tagged_for_every_profile_and_let_go(shell: Shell, tmp_path: Path) -> None:
    shell.service.register(PROFILE, LOW)
    first, low = published(shell, "several"), published(shell, "several", profile=LOW.name)
    other = published(shell, "besides")
    lock = locked(
        tmp_path,
        ("several:latest", PROFILE.name, first),
        ("several:latest", LOW.name, low),
        ("besides:v1", PROFILE.name, other),
    )
    ran = shell.aot("tag", "--lock", lock, "release-42")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == [  # in the lock's order
        f"tagged\tdefault/besides:release-42\t{PROFILE.name}\t{other}",
        f"tagged\tdefault/several:release-42\t{PROFILE.name}\t{first}",
        f"tagged\tdefault/several:release-42\t{LOW.name}\t{low}",
    ]
    for bundle in (first, low, other):
        view = shell.service.call("get_bundle", digest=bundle)
        assert (view.tags, view.expires_at) == (("release-42",), None)
    again = shell.aot("tag", "release-42", "--lock", lock, "--json")
    documents = [json.loads(line) for line in again.lines]
    assert (again.code, [one["outcome"] for one in documents]) == (0, ["tagged"] * 3)
    assert documents[0] == {
        "outcome": "tagged",
        "reference": "default/besides:release-42",
        "profile": PROFILE.name,
        "bundle": other,
    }
    # One of them is another release's by now: it stays.
    newer = published(shell, "besides", content=b"newer")
    shell.service.call("tag", TagRequest(bundle=newer), namespace="default", name="besides", tag="release-42")
    gone = shell.aot("untag", "--lock", lock, "release-42")
    assert (gone.code, [line.split("\t")[0] for line in gone.lines]) == (0, ["absent", "untagged", "untagged"])
    assert f"it stands for {newer}; nothing was removed" in gone.err
    assert [shell.service.call("get_bundle", digest=one).tags for one in (first, low, newer)] == [
        (),
        (),
        ("release-42",),
    ]
    done = shell.aot("untag", "--lock", lock, "release-42", "--json")
    assert (done.code, {json.loads(line)["outcome"] for line in done.lines}) == (0, {"absent"})


def test_what_cannot_be_tagged_is_named_and_costs_the_others_nothing(shell: Shell, tmp_path: Path) -> None:
    shell.service.register(PROFILE, LOW)
    good, bad = published(shell, "good"), published(shell, "bad")
    shell.service.call("withdraw", WithdrawRequest(reason="wrong on batch 1"), digest=bad)
    lock = locked(
        tmp_path,
        ("bad:latest", PROFILE.name, bad),
        ("good:latest", PROFILE.name, good),
        ("gone:latest", PROFILE.name, Digest.of(b"gone")),
    )
    ran = shell.aot("tag", "--lock", lock, "release-1")
    assert (ran.code, [line.split("\t")[0] for line in ran.lines]) == (7, ["failed", "failed", "tagged"])
    assert f"default/bad:release-1 on {PROFILE.name}:" in ran.err and "wrong on batch 1" in ran.err
    assert "default/gone:release-1" in ran.err and str(Digest.of(b"gone")) in ran.err
    assert shell.service.call("get_bundle", digest=good).tags == ("release-1",)
    reader = shell.with_environ(AOT_TOKEN=shell.service.token(Scope.READ))
    refused = reader.aot("tag", "--lock", lock, "release-1", "--json")
    assert (refused.code, refused.err.count("needs a token with the scope tag")) == (7, 1)
    told = [json.loads(line) for line in refused.lines]
    assert [(one["outcome"], one["error"]["code"]) for one in told] == [("failed", "forbidden")] * 3
    away = shell.with_environ(AOT_URL="http://127.0.0.1:9").aot("tag", "--lock", lock, "release-1")
    assert (away.code, [line.split("\t")[0] for line in away.lines]) == (5, ["failed"] * 3)


def test_a_tag_is_removed_and_what_it_pinned_says_when_it_goes(shell: Shell) -> None:
    bundle = published(shell, "leaving")
    shell.service.call("tag", TagRequest(bundle=bundle), namespace="default", name="leaving", tag="prod")
    refused = shell.aot("untag", "leaving:prod", Digest.of(b"another"))
    assert (refused.code, f"it stands for {bundle}" in refused.err) == (7, True)
    ran = shell.aot("untag", "leaving:prod", bundle)
    assert (ran.code, ran.out) == (0, f"default/leaving:prod -/-> {bundle} ({PROFILE.name})\n")
    goes = f"{shell.service.clock() + shell.service.deps.settings.keep:%Y-%m-%d}"
    assert shell.aot("ls", "leaving").lines[1].split()[-1] == goes
    for what in (bundle, f"leaving@{bundle}"):
        assert f"goes       {goes} unless it is used; no tag pins it" in shell.aot("show", what).lines
