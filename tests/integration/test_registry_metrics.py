"""What Prometheus reads: numbers that are right, who may read them, and what a scrape costs the database."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from aot import __version__
from aot.errors import Forbidden, StorageUnavailable, Unauthenticated
from aot.schema.codec import decode
from aot.schema.wire.errors import ErrorBody
from aot.schema.wire.workers import Scope
from registry.api.errors import status_of
from registry.db.models import BundleRow
from tests.builders import a_profile, a_spec
from tests.service import Service, a_service
from tests.statements import plan_of, statements

DOCS = Path(__file__).parents[2] / "docs/deploy.md"
V2 = a_profile("cpu-v2", capability="cpu:x86-64-v2")
OF_PROFILES = (
    "aot_builds_queued",
    "aot_builds_running",
    "aot_build_longest_wait_seconds",
    "aot_workers_live",
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path) as service:
        service.register(a_profile(), V2)
        yield service


def get(service: Service, token: str | None) -> Any:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return service.http.get("/metrics", headers=headers)


def scrape(service: Service) -> dict[str, dict[str, float]]:
    """Each metric's values by profile; under "" of the one that has none."""
    answer = get(service, service.token(Scope.READ))
    assert answer.status_code == 200, answer.text
    return {
        family.name: {sample.labels.get("profile", ""): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(answer.text)
    }


def of(service: Service, profile: str) -> tuple[float, ...]:
    """Queued, running, longest wait and live workers."""
    found = scrape(service)
    return tuple(found[name][profile] for name in OF_PROFILES)


def test_the_queue_is_counted_by_profile_over_all_namespaces(service: Service) -> None:
    service.submit(a_spec("one", profile="cpu-v2"))
    claim = service.claim("cpu-v2")
    first = service.submit(a_spec("two")).build
    service.clock.advance(40)
    service.submit(a_spec("three", namespace="theirs"))
    service.clock.advance(20)
    assert of(service, "cpu-v3") == pytest.approx((2, 0, 60, 1), abs=0.01)
    assert of(service, "cpu-v2") == (0, 1, 0, 1)
    service.publish(claim)
    service.claim("cpu-v3", build=first.id)
    assert of(service, "cpu-v2") == (0, 0, 0, 1), "a build that has ended is counted nowhere"
    assert of(service, "cpu-v3") == pytest.approx((1, 1, 20, 1), abs=0.01)


def test_a_build_that_comes_back_has_waited_since_it_was_submitted(service: Service) -> None:
    service.submit(a_spec())
    service.clock.advance(30)
    service.claim("cpu-v3")
    service.clock.advance(service.deps.settings.lease.total_seconds() + 30)
    service.sweep()
    waited = 60 + service.deps.settings.lease.total_seconds()
    assert of(service, "cpu-v3")[:3] == pytest.approx((1, 0, waited), abs=0.01)


def test_a_worker_that_died_is_not_counted_and_its_profile_says_when_it_was_seen(service: Service) -> None:
    lives = service.deps.settings.worker_lives.total_seconds()
    service.register(a_profile(), worker="worker-2")
    seen = service.clock().timestamp()
    assert scrape(service)["aot_workers_live"] == {"cpu-v2": 1, "cpu-v3": 2}
    service.clock.advance(lives)
    service.register(V2, worker="worker-3")
    service.clock.advance(1)
    found = scrape(service)
    assert found["aot_workers_live"] == {"cpu-v2": 1, "cpu-v3": 0}
    last = {"cpu-v2": seen + lives, "cpu-v3": seen}
    assert found["aot_worker_last_seen_timestamp_seconds"] == pytest.approx(last, abs=0.001)


def test_a_profile_that_no_worker_ever_was_has_no_time(service: Service) -> None:
    with service.deps.sessions.transaction() as session:
        session.execute(text("DELETE FROM worker_profiles WHERE profile = 'cpu-v2'"))
    found = scrape(service)
    assert found["aot_workers_live"]["cpu-v2"] == 0
    assert set(found["aot_worker_last_seen_timestamp_seconds"]) == {"cpu-v3"}


def test_a_lease_that_no_sweeper_has_ended_is_overdue(service: Service) -> None:
    service.submit(a_spec())
    assert scrape(service)["aot_lease_overdue_seconds"] == {"": 0}
    service.claim("cpu-v3")
    assert scrape(service)["aot_lease_overdue_seconds"] == {"": 0}
    service.clock.advance(service.deps.settings.lease.total_seconds() + 45)
    assert scrape(service)["aot_lease_overdue_seconds"] == {"": 45}
    service.sweep()
    assert scrape(service)["aot_lease_overdue_seconds"] == {"": 0}


def test_damaged_bundles_are_counted(service: Service) -> None:
    bundle = service.published(a_spec()).bundle
    assert scrape(service)["aot_bundles_damaged"] == {"": 0}
    with service.deps.sessions.transaction() as session:
        session.get_one(BundleRow, bundle).damage = "a blob is missing"
    assert scrape(service)["aot_bundles_damaged"] == {"": 1}


def test_it_is_prometheus_text_of_this_version_and_this_process(service: Service) -> None:
    answer = get(service, service.token(Scope.READ))
    assert answer.headers["content-type"] == CONTENT_TYPE_PLAIN_0_0_4
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    [version] = families["aot_registry_info"].samples
    assert (version.labels, version.value) == ({"version": __version__}, 1)
    assert families["process_start_time_seconds"].samples[0].value > 0
    assert families["process_open_fds"].samples[0].value >= 3
    assert all(family.documentation for family in families.values())
    ours = [family for name, family in families.items() if name.startswith("aot_") and not name.endswith("_info")]
    assert {family.type for family in ours} == {"gauge"}
    assert all("max, not sum" in family.documentation for family in ours)
    assert not any(name.startswith("aot_") for name in REGISTRY._names_to_collectors), "nothing is global"


def test_a_registry_without_builds_and_workers_says_so(tmp_path: Path) -> None:
    with a_service(tmp_path) as service:
        found = scrape(service)
    assert [found[name] for name in OF_PROFILES] == [{}, {}, {}, {}]


@pytest.mark.parametrize("token", [None, "", "aot_unknown"])
def test_who_has_no_known_token_is_refused(service: Service, token: str | None) -> None:
    answer = get(service, token)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert isinstance(decode(answer.content, ErrorBody).to_error(), Unauthenticated)


def test_a_token_needs_the_scope_read_for_all_namespaces(service: Service) -> None:
    others = service.token(*(scope for scope in Scope if scope not in (Scope.READ, Scope.ADMIN)))
    for token in (others, service.token(Scope.READ, namespaces=("default",)), service.token()):
        answer = get(service, token)
        assert answer.status_code == 403
        assert isinstance(decode(answer.content, ErrorBody).to_error(), Forbidden)
    assert get(service, service.admin).status_code == 200


def test_a_database_that_is_away_is_told_as_everywhere(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    token = service.token(Scope.READ)

    def away() -> Any:
        raise StorageUnavailable("the database did not answer")

    monkeypatch.setattr(service.deps.sessions, "reading", away)
    answer = get(service, token)
    assert answer.status_code == status_of(StorageUnavailable) == 503
    assert isinstance(decode(answer.content, ErrorBody).to_error(), StorageUnavailable)


def test_a_scrape_asks_as_often_however_many_profiles_there_are(service: Service) -> None:
    service.submit(a_spec())
    token = service.token(Scope.READ)
    with statements(service) as few:
        get(service, token)
    for start in (0, 10):
        profiles = (a_profile(f"profile-{number}") for number in range(start, start + 10))
        service.register(*profiles, worker=f"worker-of-{start}")
    service.submit(a_spec("other", profile="profile-7"))
    with statements(service) as many:
        assert get(service, token).text.count("aot_builds_queued{") == 22
    selects = [[sql for sql, _ in sent if sql.startswith("SELECT")] for sent in (few, many)]
    assert selects[0] == selects[1] and len(selects[0]) == 5, "the token, and four"


def test_a_scrape_reads_builds_and_bundles_by_indexes_of_what_lives(service: Service) -> None:
    token = service.token(Scope.READ)
    with statements(service) as sent:
        get(service, token)
    large = [one for one in sent if re.search(r"FROM (builds|bundles)\b", one[0])]
    assert len(large) == 3 and not re.search(r"\b(blobs|artifacts|kernels|receipts)\b", str(sent))
    with service.deps.sessions.reading() as session:
        plans = [plan_of(*one, session.connection()) for one in large]
    of_what_lives = "ix_builds_live|ix_builds_running|ix_bundles_damaged"
    for plan in plans:
        assert re.search(of_what_lives, str(plan)) and "Seq Scan" not in str(plan), plan
    if not service.deps.sessions.shared:
        assert "COVERING INDEX ix_builds_live" in str(plans), "rows of builds are large"


def test_the_pages_table_and_alerts_name_the_metrics_there_are(service: Service) -> None:
    [section] = re.findall(r"## Monitoring\n(.*?)(?=\n## )", DOCS.read_text(), re.S)
    told = set(re.findall(r"`(aot_\w+)`", "".join(re.findall(r"^\| .*", section, re.M))))
    assert told == {name for name in scrape(service) if name.startswith("aot_")}
    _, alerts = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", section, re.S))
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    asked = [set(re.findall(r"\b[a-z]+_[a-z_]+", rule["expr"])) for rule in rules]
    assert len(asked) == 3 and all(names and names <= told for names in asked), asked
