"""How a child makes its callable, by every way to run a model; each imports what it needs when it is taken.

A `save-...` route makes the file that the route of the same name reads. `package` is torch's own loader of a package
that was compiled with the options of our builds, one file for each batch.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOB = "mega-cache.bin"
SAVES = ("save-mega-cache", "save-package", "save-aot-compile")
ROUTES = ("eager", "jit", "mega-cache", "ours", "package", "aot-compile", *SAVES)


def take_route(options: argparse.Namespace, module: Any) -> Callable[..., Any]:
    """Return what is called with the inputs. Its `counters` and `reasons`, where there are any, are ours."""
    import torch

    match options.route:
        case "eager" | "save-package" | "save-aot-compile":
            return module
        case "ours":
            import aot

            return aot.load(options.reference, module, lock=options.lock, fallback="raise")
        case "package":
            return Packages(Path(options.file), module)
        case "aot-compile":
            with open(options.file, "rb") as file:
                loaded = torch.compiler.load_compiled_function(file)
            return lambda *inputs: loaded(module, *inputs)
        case "mega-cache":
            with open(options.file, "rb") as file:
                torch.compiler.load_cache_artifacts(file.read())
    return torch.compile(module, mode=options.mode, dynamic=not options.batches)


def save_route(options: argparse.Namespace, module: Any, inputs_of: Callable[[int], tuple[Any, ...]]) -> None:
    """Write what the route of this name reads later to `options.file`, a directory for packages."""
    import torch

    match options.route:
        case "save-mega-cache":
            content, _ = torch.compiler.save_cache_artifacts()
            # Without a name it goes where a captured command may write.
            Path(options.file or Path(tempfile.gettempdir()) / BLOB).write_bytes(content)
        case "save-aot-compile":
            # Off in torch 2.11, where a compiled function has no `aot_compile` then; on in 2.13.
            torch._dynamo.config.enable_aot_compile = True
            compiled = torch.compile(type(module).forward, fullgraph=True, dynamic=False, mode=options.mode)
            inputs = inputs_of(options.batches[0] if options.batches else 0)
            compiled.aot_compile(((module, *inputs), {})).save_compiled_function(options.file)
        case "save-package":
            for batch in options.batches:
                _save_package(module, inputs_of(batch), Path(options.file) / f"{batch}.pt2", mode=options.mode)


class Packages:
    """The packages of a directory by batch, each opened at its first call, with the module's tensors bound in place."""

    def __init__(self, directory: Path, module: Any) -> None:
        self._directory = directory
        self._tensors = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        self._opened: dict[int, Any] = {}

    def __call__(self, *inputs: Any) -> Any:
        batch = inputs[0].shape[0]
        if batch not in self._opened:
            self._opened[batch] = self._open(batch)
        return self._opened[batch](*inputs)

    def _open(self, batch: int) -> Any:
        import torch

        package = torch._inductor.aoti_load_package(str(self._directory / f"{batch}.pt2"))
        wanted = package.get_constant_fqns()
        found = {name: self._tensors[name].detach() for name in wanted}
        package.load_constants(found, check_full_update=True, user_managed=True)
        return package


def _save_package(module: Any, inputs: tuple[Any, ...], path: Path, *, mode: str) -> None:
    import torch

    from aot.compile.options import inductor_settings
    from aot.compile.torch_inductor import known_options
    from aot.environment import observe_environment
    from aot.pipeline import observe_profiles
    from aot.schema.recipe import Mode, Recipe

    wanted = inductor_settings(Recipe(mode=Mode(mode)), observe_profiles(observe_environment())[0])
    # Options come and go from one release to the next.
    settings = {name: value for name, value in wanted.items() if name in known_options()}
    path.parent.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(module, inputs, strict=False)
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
