"""Guards and fingerprints where tensors are on a card."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from aot.compile.guards import describe
from aot.errors import BindingFailed
from aot.runtime.fingerprint import fingerprint
from aot.runtime.guards import compile_check

pytestmark = pytest.mark.gpu


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.table = torch.arange(8.0)
        self.device = torch.device("cuda:0")

    def forward(self, x, steps):
        return self.linear(x) * steps[:, None]


def test_inputs_are_held_to_the_card_of_the_weights() -> None:
    dim = Dim("batch", min=2, max=32)
    net = Net().cuda().eval()
    args = (torch.rand(4, 8, device="cuda"), torch.rand(4, device="cuda"))
    described = describe(export(net, args, dynamic_shapes=({0: dim}, {0: dim})), dimension_names={})
    check = compile_check(described.input_guards, described.inputs, device="cuda:0")
    with torch.no_grad():
        assert check(args) is None
        assert check([args[0], args[1].cpu()]) == "args[1]: on cpu, wanted cuda:0, where the weights are"
        assert check([args[0].t().contiguous().t(), args[1]]) is not None
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert check(args) == "autocast is on; the program was compiled without it"
    with torch.inference_mode():
        assert check([one.clone() for one in args]) is None
    with pytest.raises(BindingFailed, match="inputs on cuda, the weights are on cpu"):
        compile_check(described.input_guards, described.inputs, device="cpu")


@pytest.mark.gpu(cards=2)
def test_another_card_is_a_miss() -> None:
    args = (torch.rand(4, 8, device="cuda:0"), torch.rand(4, device="cuda:0"))
    described = describe(export(Net().cuda().eval(), args), dimension_names={})
    check = compile_check(described.input_guards, described.inputs, device="cuda:1")
    with torch.no_grad():
        assert check(args) == "args[0]: on cuda:0, wanted cuda:1, where the weights are"
        assert check([one.to("cuda:1") for one in args]) is None


def test_a_fingerprint_does_not_know_the_card() -> None:
    net = Net().eval()
    before = fingerprint(net)
    net.cuda()
    net.table = net.table.cuda()
    assert fingerprint(net) == before
