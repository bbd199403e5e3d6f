"""What is asked for, judged before anything is written: a spec that no worker could build is refused at once. Pure."""

import re

from aot.errors import InvalidInput, InvalidSpec
from aot.recipes import check_recipe
from aot.schema.recipe import Route
from aot.schema.spec import BytecodeSource, CommandSource, FactorySource, KernelSource, Spec
from aot.schema.wire.builds import SubmitRequest

HIGHEST_PRIORITY = 1000
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*")


def check_request(request: SubmitRequest) -> None:
    """Raises InvalidInput."""
    if abs(request.priority) > HIGHEST_PRIORITY:
        raise InvalidInput(
            f"wanted a priority between -{HIGHEST_PRIORITY} and {HIGHEST_PRIORITY}, found {request.priority}",
            hint="0 is the default; higher is sooner",
        )
    if isinstance(request.spec.source, KernelSource):
        raise InvalidSpec(
            "kernels are built where they are, and pushed: no worker builds them",
            hint="`aot kernel build --push`; it needs Triton, and no card",
        )
    if isinstance(request.spec.source, BytecodeSource):
        raise InvalidSpec(
            "bytecode is compiled where its distributions are installed, and pushed",
            hint="`aot bytecode build --push` in an image that has them",
        )
    if isinstance(request.spec.source, CommandSource) and request.spec.source.entries is not None:
        raise InvalidSpec(
            "entries that were captured elsewhere are pushed; whoever asks for a capture has none yet",
            hint="`aot capture NAME --source TREE --push -- COMMAND`, or `command` in aot.toml and `aot ensure`",
        )
    check_spec(request.spec)


def check_spec(spec: Spec) -> None:
    """Raises InvalidSpec for what no worker could build."""
    source = spec.source
    if isinstance(source, FactorySource | KernelSource) and not _ENTRY.fullmatch(source.entry):
        raise InvalidSpec(
            f"wanted an entry module:function, found {source.entry[:120]!r}", hint="for example model:make"
        )
    for requirement in source.requirements:
        if not _PIN.fullmatch(requirement):
            raise InvalidSpec(
                f"wanted an exact pin, found {requirement[:120]!r}",
                hint="write name==version, as pip freeze does",
            )
    if spec.commit is not None and not _REVISION.fullmatch(spec.commit.revision):
        raise InvalidSpec(
            f"wanted a commit's whole hash, found {spec.commit.revision[:120]!r}",
            hint="as git rev-parse HEAD prints it",
        )
    _check_route(spec)
    if not isinstance(source, KernelSource | BytecodeSource | CommandSource):
        check_recipe(spec.recipe)
    if spec.recipe.freeze and not spec.weights:
        raise InvalidSpec("a frozen build needs weights", hint="give the weights, or leave out `freeze`")


def _check_route(spec: Spec) -> None:
    source, routes = spec.source, spec.recipe.routes
    if isinstance(source, KernelSource) and not source.signatures:
        raise InvalidSpec("a kernel needs at least one signature", hint="name the types of its arguments")
    if isinstance(source, BytecodeSource) and not source.distributions:
        raise InvalidSpec("bytecode is of at least one distribution", hint="name what is installed")
    if isinstance(source, CommandSource) and (source.tree is None or not source.command):
        raise InvalidSpec(
            "captured caches need the command and the tree that it runs in: a worker proves them by running it again",
            hint="`aot capture NAME --source TREE --push -- COMMAND`",
        )
    if isinstance(source, CommandSource):
        if routes != (Route.CACHE,):
            raise InvalidSpec(
                f"the routes {', '.join(routes)} do not fit the source", hint="captured caches are of the route cache"
            )
        return
    own = {KernelSource: Route.KERNEL, BytecodeSource: Route.BYTECODE}
    only = own.get(type(source))
    if routes != (only,) if only else not set(own.values()).isdisjoint(routes):
        raise InvalidSpec(
            f"the routes {', '.join(routes)} do not fit the source",
            hint="the routes kernel and bytecode are those of kernels and of distributions, and their only ones",
        )
