"""Factories: what they may return, and how each wrong one is told."""

import sys
from pathlib import Path

import pytest
import torch

from aot.compile.program import Example, Program, forward_parameters, open_factory, program_from
from aot.errors import CompileOutOfMemory, InvalidSpec, SourceNotLoadable
from aot.schema.recipe import Dimension

HEAD = "import torch\nclass Net(torch.nn.Linear):\n    pass\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a source tree of one module with a name of its own, and return its entry."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)

    def write_tree(body: str, *, head: str = HEAD) -> tuple[Path, str]:
        name = f"source_{tmp_path.name}"
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text(f"{head}def make():\n    {body}\n")
        return tmp_path, f"{name}:make"

    return write_tree


def open_body(write, body: str, **options: str) -> Program:
    return open_factory(*write(body, **options))


@pytest.mark.parametrize(
    "body",
    [
        "return Net(4, 2), (torch.ones(3, 4),)",
        "return Net(4, 2), (torch.ones(3, 4),), {}",
        "return {'module': Net(4, 2), 'args': [torch.ones(3, 4)]}",
        "return {'module': Net(4, 2), 'kwargs': {'input': torch.ones(3, 4)}}",
        "return {'module': Net(4, 2), 'examples': [((torch.ones(3, 4),), {})]}",
    ],
)
def test_every_form_of_return_gives_a_program_that_runs(write, body: str) -> None:
    program = open_body(write, body)
    example = program.examples[0]
    assert program.module(*example.args, **example.kwargs).shape == (3, 2)


def test_the_module_is_put_into_eval_mode(write) -> None:
    assert open_body(write, "return Net(4, 2).train(), (torch.ones(3, 4),)").module.training is False


def test_dimensions_and_several_examples_are_read(write) -> None:
    body = (
        "x = torch.ones(3, 4); return {'module': Net(4, 2), 'examples': [((x,), {}), ((), {'input': x})],"
        " 'dimensions': {'batch': (1, 8)}, 'dynamic_shapes': {'input': {0: 'batch'}}}"
    )
    program = open_body(write, body)
    assert len(program.examples) == 2
    assert program.dimensions == (Dimension(name="batch", low=1, high=8),)
    assert program.dynamic_shapes == {"input": {0: "batch"}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "returned None"),
        ("return Net(4, 2)", "returned a Net"),
        ("return 1, 2, 3, 4", "a tuple of 4"),
        ("return 'model', (1,)", "must return a torch.nn.Module, found a str"),
        ("return Net, (1,)", "must return a torch.nn.Module, found a type"),
        ("return Net(4, 2), torch.ones(3, 4)", "args must be a tuple, found a Tensor"),
        ("return Net(4, 2), (), [1]", "kwargs must be a dict"),
        ("return {'module': Net(4, 2)}", "either args and kwargs, or examples"),
        ("return {'module': Net(4, 2), 'args': (), 'examples': []}", "either args and kwargs, or examples"),
        ("return {'module': Net(4, 2), 'examples': []}", "examples must be a list"),
        ("return {'module': Net(4, 2), 'examples': [1]}", "must be a pair"),
        ("return {'module': Net(4, 2), 'args': (), 'arguments': 1}", "unknown key(s) arguments"),
        ("return {'module': Net(4, 2), 'args': (), 'dimensions': {'b': (2, 1)}}", "dimension b has no sizes"),
    ],
)
def test_a_wrong_return_says_what_was_found(write, body: str, message: str) -> None:
    with pytest.raises(SourceNotLoadable) as caught:
        open_body(write, body)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("torch.rand(4).expand(3, 4)", "gain"),
        ("torch.arange(4).expand(3, 4)", "gain"),
        ("torch.rand(4).expand(1, 4)", ""),
        ("torch.rand(0).expand(3, 0)", ""),
        ("torch.eye(4).to_sparse()", ""),
    ],
)
def test_weights_whose_elements_share_a_place_are_refused_by_name(write, rest: str, found: str) -> None:
    body = f"net = Net(4, 2); net.register_buffer('gain', {rest}); return net, (torch.ones(3, 4),)"
    if not found:
        assert dict(open_body(write, body).module.named_buffers()).keys() == {"gain"}
        return
    with pytest.raises(SourceNotLoadable, match=f"found expanded {found}") as caught:
        open_body(write, body)
    assert "clone()" in caught.value.hint


def test_a_factory_that_raises_is_told_with_its_own_last_line(write) -> None:
    with pytest.raises(SourceNotLoadable, match="raised ValueError: no such size") as caught:
        open_body(write, "return build()", head="def build():\n    raise ValueError('no such size')\n")
    frame = caught.value.details["frame"]
    assert (frame["line"], frame["function"], frame["text"]) == (2, "build", "raise ValueError('no such size')")
    assert frame["file"].startswith("source_")
    assert "/" not in frame["file"]


def test_a_factory_that_reads_weights_beside_its_code_is_told_that_they_are_no_part_of_a_source(write) -> None:
    body = "from pathlib import Path\n    return torch.load(Path(__file__).with_name('net.pt'), weights_only=True)"
    with pytest.raises(SourceNotLoadable, match=r"raised FileNotFoundError.*net\.pt") as caught:
        open_body(write, body)
    assert "a source holds no weights" in (caught.value.hint or "")
    with pytest.raises(SourceNotLoadable) as elsewhere:
        open_body(write, "return open('/nowhere/at/all')")
    assert "call the factory by itself" in (elsewhere.value.hint or "")


def test_an_error_deep_in_a_library_is_told_with_the_sources_line(write) -> None:
    with pytest.raises(SourceNotLoadable, match="raised RuntimeError") as caught:
        open_body(write, "return torch.ones(2) @ torch.ones(3)")
    assert caught.value.details["frame"]["text"] == "return torch.ones(2) @ torch.ones(3)"


def test_a_source_that_does_not_import_is_told_with_its_line(write) -> None:
    with pytest.raises(SourceNotLoadable, match="No module named 'not_installed_anywhere'") as caught:
        open_body(write, "return None", head="import not_installed_anywhere\n")
    assert caught.value.details["frame"]["line"] == 1


def test_a_source_with_a_syntax_error_is_told_with_its_line(write) -> None:
    with pytest.raises(SourceNotLoadable, match="raised SyntaxError") as caught:
        open_body(write, "return (")
    assert caught.value.details["frame"]["line"] >= len(HEAD.splitlines())


def test_a_missing_factory_is_named(write) -> None:
    tree, entry = write("return None")
    with pytest.raises(SourceNotLoadable, match="has no build"):
        open_factory(tree, entry.replace(":make", ":build"))


def test_an_attribute_error_inside_a_factory_is_the_factorys(write) -> None:
    with pytest.raises(SourceNotLoadable, match="raised AttributeError"):
        open_body(write, "return torch.no_such_function()")


@pytest.mark.parametrize("entry", ["model", ":make", "model:", ""])
def test_an_entry_without_both_parts_is_refused(tmp_path: Path, entry: str) -> None:
    with pytest.raises(SourceNotLoadable, match="wanted an entry"):
        open_factory(tmp_path, entry)


def test_a_factory_that_exits_does_not_end_the_child(write) -> None:
    with pytest.raises(SourceNotLoadable, match="raised SystemExit"):
        open_body(write, "raise SystemExit(3)")


def test_an_allocation_that_fails_is_a_lack_of_memory(write) -> None:
    with pytest.raises(CompileOutOfMemory, match="more memory than there is"):
        open_body(write, "return torch.empty(1 << 46)")


def test_an_error_of_ours_passes_through(write) -> None:
    head = "from aot.errors import InvalidSpec\n"
    with pytest.raises(InvalidSpec, match="mine"):
        open_body(write, "raise InvalidSpec('mine')", head=head)


def test_the_tree_comes_first_on_the_path(write) -> None:
    tree, entry = write("return Net(4, 2), (torch.ones(3, 4),)")
    open_factory(tree, entry)
    assert sys.path[0] == str(tree)


def test_names_of_forwards_parameters_leave_out_the_variable_ones() -> None:
    class Net(torch.nn.Module):
        def forward(self, x, *rest, mask=None, **others):
            return x

    assert forward_parameters(Net()) == ("x", "mask")


def test_an_example_may_have_no_arguments() -> None:
    class Net(torch.nn.Module):
        def forward(self):
            return torch.ones(1)

    assert program_from((Net(), ()), "m:f").examples == (Example((), {}),)
