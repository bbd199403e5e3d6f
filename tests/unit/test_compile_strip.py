"""Stripped programs: no weight leaves, equal programs give equal bytes, and the way back runs."""

import io
import zipfile
from pathlib import Path

import pytest
import torch

from aot.compile.constants import describe_parameters, tied_names
from aot.compile.shapes import plan_points
from aot.compile.strip import open_program, strip_program
from aot.errors import InvalidSource, SourceNotLoadable
from aot.runtime.program import explain_program
from aot.schema.recipe import Dimension, Recipe


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 16)
        self.head = torch.nn.Linear(16, 64, bias=False)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.LayerNorm(16)
        self.register_buffer("hidden", torch.full((16,), 0.125), persistent=False)
        self.gain = torch.tensor([2.0, 3.0])

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(ids)) + self.hidden * self.gain[0]) * scale


IDS, SCALE = torch.arange(12).reshape(3, 4) % 64, torch.full((3, 1, 1), 7.03125)


def export_to(path: Path, *, seed: int) -> Path:
    torch.manual_seed(seed)
    batch = torch.export.Dim("batch", min=2, max=32)
    shapes = {"ids": {0: batch}, "scale": {0: batch}}
    torch.export.save(torch.export.export(Net().eval(), (IDS, SCALE), dynamic_shapes=shapes), path)
    return path


@pytest.fixture(scope="module")
def stripped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("programs")
    strip_program(export_to(place / "full.pt2", seed=1), place / "stripped.pt2")
    return place / "stripped.pt2"


def test_no_bytes_of_the_weights_remain(stripped: Path) -> None:
    full, content = (stripped.parent / "full.pt2").read_bytes(), stripped.read_bytes()
    torch.manual_seed(1)
    module = Net()
    values = [module.embed.weight, module.hidden[:2], SCALE[:2]]
    for value in (value.detach().numpy().tobytes()[:64] for value in values):
        assert value in full
        assert value not in content
    assert len(content) < len(full)


def test_lifted_constants_and_integer_inputs_remain(stripped: Path) -> None:
    program = open_program(stripped, seed=0)
    assert torch.equal(program.module.gain, torch.tensor([2.0, 3.0]))
    assert torch.equal(program.examples[0].args[0], IDS)


def test_other_weights_in_another_place_give_the_same_bytes(stripped: Path, tmp_path: Path) -> None:
    place = tmp_path / "a longer name"
    place.mkdir()
    strip_program(export_to(place / "other.pt2", seed=2), place / "again.pt2")
    assert (place / "again.pt2").read_bytes() == stripped.read_bytes()


def test_no_path_of_the_exporter_remains(stripped: Path) -> None:
    content = b"".join(zipfile.ZipFile(stripped).read(name) for name in zipfile.ZipFile(stripped).namelist())
    assert b".py" not in content
    assert str(Path(__file__).parents[2]).encode() not in content


def test_the_way_back_has_seeded_weights_of_the_same_form_and_still_tied(stripped: Path) -> None:
    program, again, other = (open_program(stripped, seed=seed) for seed in (5, 5, 6))
    state, original = program.module.state_dict(), Net().state_dict()
    assert {name: (value.shape, value.stride()) for name, value in state.items()} == {
        name: (value.shape, value.stride()) for name, value in original.items()
    }
    assert program.module.head.weight.data_ptr() == program.module.embed.weight.data_ptr()
    assert torch.equal(again.module.embed.weight, program.module.embed.weight)
    assert not torch.equal(other.module.embed.weight, program.module.embed.weight)
    assert program.module.embed.weight.std() > 0


def test_the_modules_of_the_program_are_those_of_the_module_and_no_mark_of_export(tmp_path: Path) -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, int]:
            return x * mask, mask.shape[0]

    batch = torch.export.Dim("batch", min=2, max=8)
    shapes = {"x": {0: batch}, "mask": {0: batch}}
    program = torch.export.export(Masked(), (torch.ones(4, 3), torch.ones(4, 1)), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "full.pt2")
    strip_program(tmp_path / "full.pt2", tmp_path / "stripped.pt2")
    identity = open_program(tmp_path / "stripped.pt2", seed=0).identity
    assert identity is not None
    named = {factor.name for factor in identity.factors if factor.name.startswith("module:")}
    assert named == {"module:"}
    assert explain_program(identity, Masked()) == ()


def test_the_way_back_runs_and_keeps_its_dimensions(stripped: Path) -> None:
    program = open_program(stripped, seed=0)
    (example,) = program.examples
    assert torch.isfinite(program.module(*example.args, **example.kwargs)).all()
    (dimension,) = program.dimensions
    assert (dimension.low, dimension.high) == (2, 32)
    (point,) = plan_points(program, Recipe(dimensions=(Dimension(name=dimension.name, buckets=(8,)),)))
    assert [value.shape[0] for value in point.example.args] == [8, 8]


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"PK not a zip")
    with pytest.raises(InvalidSource, match=r"model\.pt2 is no exported program"):
        strip_program(tmp_path / "model.pt2", tmp_path / "out.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]
    with pytest.raises(SourceNotLoadable, match="does not load"):
        open_program(tmp_path / "model.pt2", seed=0)


def test_a_state_dict_is_no_program(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(Net().state_dict(), buffer)
    (tmp_path / "weights.pt2").write_bytes(buffer.getvalue())
    with pytest.raises(InvalidSource):
        strip_program(tmp_path / "weights.pt2", tmp_path / "out.pt2")


@pytest.mark.parametrize("content", [b"PK not a program", b"", b"import torch\n"])
def test_a_file_that_is_no_program_is_refused_without_a_word_of_torchs_own(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.pt2").write_bytes(content)
    with pytest.raises(InvalidSource, match=r"broken\.pt2 is no exported program"):
        strip_program(tmp_path / "broken.pt2", tmp_path / "stripped.pt2")
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("hello", "a ZIP archive of something else")
    with pytest.raises(InvalidSource, match=r"other\.pt2 is no exported program"):
        strip_program(tmp_path / "other.pt2", tmp_path / "stripped.pt2")
    assert capfd.readouterr().err == ""


class Turned(torch.nn.Module):
    """Square weights that lie in one memory: under two names, and as their transpose under three more."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(16.0).reshape(4, 4))
        self.same = self.weight
        self.register_buffer("kept", self.weight.detach())
        self.turned = torch.nn.Parameter(self.weight.detach().t())
        self.register_buffer("turned_too", self.weight.detach().t())
        self.register_buffer("transient", self.weight.detach().t(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + x @ self.same + x @ self.kept + x @ self.turned @ self.turned_too @ self.transient


@pytest.mark.parametrize("outlined", [True, False])
def test_a_weight_beside_its_own_transpose_is_not_tied_to_it(
    outlined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not outlined:
        monkeypatch.setattr("aot.compile.strip.write_outline", lambda *_: False)
    module = Turned().eval()
    torch.export.save(torch.export.export(module, (torch.ones(2, 4),)), tmp_path / "full.pt2")
    assert strip_program(tmp_path / "full.pt2", tmp_path / "stripped.pt2") == 2 * 64  # export copies the transient one
    program = open_program(tmp_path / "stripped.pt2", seed=0)

    def forms(of: torch.nn.Module) -> dict[str, tuple[int, ...]]:
        return {meta.name: meta.stride for meta in describe_parameters(of)}

    assert forms(program.module) == forms(module)
    weights = ("kept", "same", "weight")
    tied = {name: tuple(sorted((name, *others))) for name, others in tied_names(program.module).items()}
    assert tied == dict.fromkeys(weights, weights) | dict.fromkeys(("turned", "turned_too"), ("turned", "turned_too"))
    given = torch.ones(2, 4)
    assert torch.isfinite(program.module(given)).all()


class Views(torch.nn.Module):
    """Weights that lie in one memory and are not tied: pieces of it that overlap, and the same bits as integers."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(8.0)
        for name, piece in (("low", whole[:6]), ("high", whole[2:]), ("bits", whole[:6].view(torch.int32))):
            self.register_buffer(name, piece)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.low + self.high + self.bits


def test_pieces_of_one_memory_and_its_bits_as_another_type_are_not_tied(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Views(), (torch.ones(6),)), tmp_path / "full.pt2")
    strip_program(tmp_path / "full.pt2", tmp_path / "stripped.pt2")
    module = open_program(tmp_path / "stripped.pt2", seed=0).module
    assert tied_names(module) == {}
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in module.named_buffers()} == {
        "low": (torch.float32, (6,)),
        "high": (torch.float32, (6,)),
        "bits": (torch.int32, (6,)),
    }
    assert not torch.equal(module.low, module.high) and not module.bits.any()


def test_an_expanded_weight_is_told_by_name(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 4)
    module.register_buffer("gain", torch.rand(4).expand(3, 4))
    module.forward = lambda x: torch.nn.functional.linear(x, module.weight, module.bias) * module.gain
    torch.export.save(torch.export.export(module, (torch.ones(3, 4),)), tmp_path / "full.pt2")
    strip_program(tmp_path / "full.pt2", tmp_path / "stripped.pt2")
    with pytest.raises(SourceNotLoadable, match="found expanded gain"):
        open_program(tmp_path / "stripped.pt2", seed=0)
