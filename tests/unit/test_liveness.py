"""What a module does beside its graph: hooks that appear after loading, and what an exported program cannot have."""

import timeit
from typing import Any

import pytest
import torch
from torch import nn

from aot.runtime import liveness
from aot.runtime.liveness import Hooks, explain_conduct


def a_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))


def hook(*args: Any) -> None: ...


def test_a_hook_is_noticed_where_it_is_and_forgotten_when_it_is_removed() -> None:
    net = a_net()
    check = Hooks(net).change
    assert check() is None
    handle = net[1][0].register_forward_hook(hook)  # type: ignore[index]
    assert check() == "a forward hook was added to 1.0 after loading: hook"
    handle.remove()
    assert check() is None
    handle = net.register_forward_pre_hook(hook)
    assert check() == "a forward hook was added to the module itself after loading: hook"
    handle.remove()
    with_global = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        assert check() == "a forward hook was added to every module after loading: hook"
    finally:
        with_global.remove()
    assert check() is None


def test_hooks_that_were_there_at_load_may_stay_but_not_go() -> None:
    net = a_net()
    handle = net[0].register_forward_hook(hook)  # type: ignore[index]
    check = Hooks(net).change
    assert check() is None
    handle.remove()
    assert check() == "a forward hook was removed from 0 after loading: hook"


def test_hooks_of_a_library_are_allowed_while_nobody_asks_for_what_they_collect() -> None:
    from transformers import BertConfig, BertModel
    from transformers.utils.output_capturing import _active_collector

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=30, **sizes)).eval()
    check = Hooks(model).change
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.int64), output_hidden_states=True)
    assert any(part._forward_hooks for part in model.modules())
    assert check() is None and check() is None
    token = _active_collector.set({"attentions": []})
    try:
        assert "intermediate results" in (check() or "")
    finally:
        _active_collector.reset(token)
    assert check() is None
    # A real hook beside an idle one, on a module that has one already.
    busy = next(part for part in model.modules() if part._forward_hooks)
    busy.register_forward_hook(hook)
    assert "a forward hook was added to" in (check() or "")


def test_a_hook_that_comes_while_another_is_examined_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = a_net()
    hooks = Hooks(net)

    def is_idle(one: object) -> bool:
        monkeypatch.setattr(liveness, "is_idle", lambda one: one is idle)
        net[0].register_forward_hook(hook)  # type: ignore[index]  # another thread, whose part was looked at already
        return one is idle

    def idle(*args: Any) -> None: ...

    monkeypatch.setattr(liveness, "is_idle", is_idle)
    net[1].register_forward_hook(idle)  # type: ignore[index]
    assert [hooks.change(), hooks.change()][-1] == "a forward hook was added to 0 after loading: hook"


def test_a_hook_that_comes_while_a_module_is_first_looked_at_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = a_net()
    net[0].register_forward_hook(hook)  # type: ignore[index]

    def is_idle(one: object) -> bool:
        monkeypatch.setattr(liveness, "is_idle", lambda one: False)
        net[0].register_forward_hook(hook)  # type: ignore[index]
        return False

    monkeypatch.setattr(liveness, "is_idle", is_idle)
    assert Hooks(net).change() == "a forward hook was added to 0 after loading: hook"


def test_it_takes_microseconds_for_hundreds_of_modules() -> None:
    net = nn.Sequential(*(nn.Linear(1, 1) for _ in range(300)))
    check = Hooks(net).change
    best = min(timeit.repeat(check, number=200, repeat=30)) / 200
    assert best < 20e-6


# Against a program of which only the graph is known


def a_live_net() -> nn.Module:
    return a_net().eval()


def test_a_plain_module_for_inference_may_be_an_exported_program() -> None:
    assert explain_conduct(a_live_net()) == ()


def test_mode_hooks_and_parametrizations_are_named_all_at_once() -> None:
    net = a_live_net()
    net[1][0].train()  # type: ignore[index]
    net[1].register_forward_pre_hook(hook)  # type: ignore[union-attr]
    nn.utils.parametrizations.weight_norm(net[0]).eval()  # type: ignore[index]
    assert [reason.replace("of which the exported program knows nothing: ", "") for reason in explain_conduct(net)] == [
        "the live module is in training mode, 1.0",
        "the live module has forward hooks, 1: hook",
        "the live module has parametrizations, 0.weight",
    ]


def test_a_graph_has_no_mode_but_the_modules_that_it_calls_have_theirs() -> None:
    net = a_live_net()
    assert explain_conduct(torch.export.export(net, (torch.ones(1, 2),)).module()) == ()
    traced = torch.fx.symbolic_trace(net)
    assert explain_conduct(traced) == ()
    net[1][0].train()  # type: ignore[index]
    [reason] = explain_conduct(torch.fx.symbolic_trace(net))
    assert reason.endswith(": 1.0")


def test_a_hook_on_the_graph_of_an_export_is_named() -> None:
    graph = torch.export.export(a_live_net(), (torch.ones(1, 2),)).module()
    graph.register_forward_hook(hook)
    [reason] = explain_conduct(graph)
    assert reason.endswith(": the module itself: hook")
