"""The fleet's verdicts against an account of them that shares nothing with the rules."""

import copy
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from aot.schema.codec import decode
from aot.schema.decision import Accepted, Level, Verdict, reasons_of
from aot.schema.environment import Environment
from aot.select import verdict_on
from tests.fleet import ARTIFACTS, HOSTS, as_a_fresh_process
from tests.oracle import BUILT, judge

FILES = {path.stem: json.loads(path.read_text()) for path in sorted(HOSTS.glob("*.json"))}
LEVELS = {
    Level.FITS: "fits",
    Level.TUNED_ELSEWHERE: "elsewhere",
    Level.UNDECIDED: "undecided",
    Level.REJECTED: "rejected",
}


def said(name: str, host: dict[str, Any]) -> Verdict:
    environment = decode(json.dumps(host), Environment)
    return verdict_on(ARTIFACTS[name], as_a_fresh_process(environment))


def kinds_of(verdict: Verdict) -> frozenset[str]:
    reasons = verdict.notes if isinstance(verdict, Accepted) else reasons_of(verdict)
    return frozenset(reason.kind for reason in reasons)


def disagreements(name: str, host: dict[str, Any]) -> Iterator[str]:
    verdict, (level, kinds, cards) = said(name, host), judge(name, host)
    if LEVELS[Level(verdict.level)] != level:
        told = f"{verdict.level} {sorted(kinds_of(verdict))}"
        yield f"the rules say {told}, the oracle {level} {list(map(sorted, kinds))}"
    elif kinds_of(verdict) not in kinds:
        yield f"{level}: the rules name {sorted(kinds_of(verdict))}, the oracle {list(map(sorted, kinds))}"
    elif verdict.devices != cards:
        yield f"{level}: the rules say cards {verdict.devices}, the oracle {cards}"


def changed(host: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The host, and it again without each fact in turn."""
    yield "as it is", host
    for scope in ("node", "container", "process"):
        for fact in host.get(scope) or {}:
            less = copy.deepcopy(host)
            del less[scope][fact]
            yield f"without {scope}.{fact}", less


def test_the_oracle_knows_every_artifact_of_the_fleet() -> None:
    assert BUILT.keys() == ARTIFACTS.keys()


@pytest.mark.parametrize("name", sorted(FILES))
def test_rules_and_oracle_agree_on_level_reasons_and_cards(name: str) -> None:
    found = [
        f"{artifact} on {name} {how}: {text}"
        for how, host in changed(FILES[name])
        for artifact in ARTIFACTS
        for text in disagreements(artifact, host)
    ]
    assert not found, "\n".join(found)


def test_the_fleet_has_every_level_and_a_rejection_on_every_axis() -> None:
    """Agreement about what never happens proves nothing."""
    levels: Counter[str] = Counter()
    alone: set[str] = set()
    for host in FILES.values():
        for artifact in ARTIFACTS:
            level, kinds, _ = judge(artifact, host)
            levels[level] += 1
            alone |= {kind for one in kinds if level == "rejected" for kind in one}
    assert min(levels[level] for level in ("fits", "elsewhere", "undecided", "rejected")) >= 5
    axes = {"capability", "torch", "machine", "libc", "libstdcxx", "cuda", "driver", "cpu", "kernel"}
    assert alone == axes | {"deterministic", "default_dtype"}
