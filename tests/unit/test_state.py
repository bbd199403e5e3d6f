import itertools

import pytest

from aot.schema.state import BuildEvent, BuildState, advance

ALLOWED = {
    ("queued", "claim", "running"),
    ("queued", "cancel", "cancelled"),
    ("running", "expire", "queued"),
    ("running", "release", "queued"),
    ("running", "exhaust", "failed"),
    ("running", "publish", "published"),
    ("running", "fail", "failed"),
    ("running", "cancel", "cancelled"),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(BuildState, BuildEvent)))
def test_advance_is_total(state: BuildState, event: BuildEvent) -> None:
    after = [to for source, cause, to in ALLOWED if (source, cause) == (state, event)]
    assert advance(state, event) == (after[0] if after else None)


def test_a_finished_build_never_moves() -> None:
    finished = [state for state in BuildState if state.finished]
    assert all(advance(state, event) is None for state in finished for event in BuildEvent)
    assert {state for state in BuildState if state.live} == {BuildState.QUEUED, BuildState.RUNNING}
