"""What `benchmarks.dispatch` compares for regions: each block's own container, and the one that answers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import dispatch


def a_variant(size: int, calls: list[str], name: str) -> Any:
    def run(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        calls.append(name)
        return (tensors[0] + 1,)

    def check(tensors: tuple[torch.Tensor, ...]) -> str | None:
        return None if tensors[0].shape[0] == size else "another size"

    return SimpleNamespace(check=check, container=SimpleNamespace(run=run))


def test_the_raw_call_of_a_model_of_regions_goes_through_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "WINDOWS", 1)
    monkeypatch.setattr(dispatch, "WINDOW_CALLS", 3)
    raw: list[str] = []
    whole: list[torch.Tensor] = []
    units = [
        SimpleNamespace(
            _bound=SimpleNamespace(forms=[SimpleNamespace(variants=[a_variant(2, raw, "no"), a_variant(1, raw, name)])])
        )
        for name in ("one", "two", "three")
    ]

    class Model:
        _units = units

        def __call__(self, hidden: torch.Tensor) -> None:
            whole.append(hidden)

    found = dispatch.measure_regions(SimpleNamespace(compiled=Model(), example=(torch.zeros(1),), weights=36), torch)
    assert raw == ["one", "two", "three"] * 2 and len(whole) == 2
    assert (found["blocks"], found["weights"]) == (3, 12)
    assert set(found) == {"raw_us", "model_us", "overhead_us", "blocks", "weights"}
