"""A program whose classes come from an installed distribution needs its pin; equal keys must mean equal builds."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from aot.compile.pins import distributions_of, refuse_unpinned
from aot.errors import InvalidSpec

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
CODE = "from torch import nn\nclass Layer(nn.Linear):\n    pass\n"


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    """An instance of a class of an installed distribution, some-layers 1.4."""
    site = tmp_path / "site"
    info = site / "some_layers-1.4.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA.format(name="some-layers", version="1.4"))
    (info / "RECORD").write_text("some_layers/__init__.py,,\nsome_layers-1.4.dist-info/METADATA,,\n")
    (site / "some_layers").mkdir()
    (site / "some_layers" / "__init__.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(site))
    import some_layers  # type: ignore[import-not-found]

    yield some_layers.Layer(2, 2)
    del sys.modules["some_layers"]


def test_classes_of_torch_and_of_the_source_need_no_pin() -> None:
    class Own(nn.Module):
        pass

    assert distributions_of(nn.Sequential(nn.Linear(1, 1), Own())) == {}
    refuse_unpinned(nn.Sequential(nn.Linear(1, 1), Own()), ())


def test_a_class_of_another_distribution_needs_its_pin(layer: nn.Module) -> None:
    nested = nn.Sequential(nn.ReLU(), nn.Sequential(layer))
    assert distributions_of(nested) == {"some-layers": "1.4"}
    with pytest.raises(InvalidSpec, match=r"some-layers==1\.4, which the source does not pin") as caught:
        refuse_unpinned(nested, ("other==1.0",))
    assert caught.value.hint == "add to the requirements: some-layers==1.4"
    refuse_unpinned(nested, ("Some_Layers==1.4",))


def test_a_module_of_the_source_with_a_distributions_name_is_the_sources_own(
    layer: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "tree" / "some_layers.py"
    own.parent.mkdir()
    own.write_text(CODE)
    monkeypatch.setattr(sys.modules["some_layers"], "__file__", str(own))
    assert distributions_of(layer) == {}


def test_what_a_module_only_holds_as_tensors_is_nobodys() -> None:
    module = nn.Module()
    module.register_buffer("table", torch.ones(2))
    assert distributions_of(module) == {}
