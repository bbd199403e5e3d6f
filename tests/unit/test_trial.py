"""How a first call is copied and compared: layouts stay, rounding is no difference, and what is no number is equal."""

import pytest
import torch

from aot.runtime.trial import _copies, _difference, _share_memory

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(8, 6)[::2, 1:4],
        torch.randn(1, 3, 1).expand(4, 3, 5),
        torch.tensor(2.0),
        torch.zeros(0, 4),
        torch.randn(2, 2, requires_grad=True),
        torch.arange(6).reshape(2, 3),
    ],
)
def test_a_copy_has_the_layout_and_a_memory_of_its_own(tensor: torch.Tensor) -> None:
    (copied,) = _copies((tensor,))
    assert torch.equal(copied, tensor)
    assert (copied.stride(), copied.dtype, copied.requires_grad) == (
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
    )
    assert not tensor.numel() or not _share_memory(copied, tensor)


def test_what_is_no_tensor_is_handed_on() -> None:
    assert _copies(((1, None), {"mode": "x"})) == ((1, None), {"mode": "x"})


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([torch.ones(4)], [torch.ones(4) + 1e-6]),
        ([torch.tensor([NAN, 1.0, INF])], [torch.tensor([NAN, 1.0, INF])]),
        ([torch.tensor([3]), 7, None], [torch.tensor([3]), 7, None]),
        ([torch.zeros(0)], [torch.zeros(0)]),
        ([torch.ones(4, dtype=torch.bfloat16)], [torch.ones(4, dtype=torch.bfloat16) + 2**-7]),
    ],
)
def test_what_rounding_explains_agrees(found: list[object], wanted: list[object]) -> None:
    assert _difference(found, wanted) == ""


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        ([torch.ones(4)], [torch.full((4,), 1.01)], "output 0: largest error 0.01"),
        ([torch.tensor([NAN, 1.0])], [torch.ones(2)], "output 0: NaN or infinity at other places"),
        ([torch.tensor([INF, 1.0])], [torch.tensor([-INF, 1.0])], "output 0: NaN or infinity at other places"),
        ([torch.tensor([3])], [torch.tensor([4])], "output 0: 1 of 1 values differ"),
        ([torch.ones(2)], [torch.ones(3)], "output 0: wanted torch.float32 of shape (3,)"),
        ([torch.ones(2)], [torch.ones(2).double()], "output 0: wanted torch.float64"),
        ([torch.ones(2), 7], [torch.ones(2), 8], "output 1 is 7, eagerly 8"),
        ([torch.ones(2)], [torch.ones(2), 8], "1 outputs, eagerly 2"),
    ],
)
def test_what_rounding_does_not_explain_is_told(found: list[object], wanted: list[object], reason: str) -> None:
    assert _difference(found, wanted).startswith(reason)
