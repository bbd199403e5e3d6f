"""How many processes a command runs as, seen before it starts: from what its launcher is told.

Code for two ranks has their number in it, so a bundle of two is none for four (`aot.rules.process`). A launcher starts
the ranks itself, and only its arguments tell here how many. A command that nothing is known of counts as one process.

Sources: torch/distributed/run.py, get_args_parser and determine_local_world_size; `accelerate launch --help`;
mpirun(1) of Open MPI.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

_TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
# Options without a value; of others the next word is one, but for a program that ends in .py.
_FLAGS = frozenset(
    {
        "--standalone",
        "--no-python",
        "--no_python",
        "--run-path",
        "--run_path",
        "--virtual-local-rank",
        "--virtual_local_rank",
        "--multi_gpu",
        "--multi-gpu",
        "--cpu",
        "--allow-run-as-root",
        "--oversubscribe",
        "--module",
        "-m",
    }
)
_OF_CARDS = ("gpu", "auto")
_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")  # what torch's launcher and Open MPI's tell each process


def world_size_of(command: Sequence[str], environ: Mapping[str, str], *, cards: int | None = None) -> int | None:
    """Return how many processes `command` will be, all nodes together; None where its launcher decides that later.

    A launcher comes before WORLD_SIZE, which it sets anew. `cards` are those of this node.
    """
    match _launcher(command):
        case "torchrun", arguments:
            return _of_torchrun(arguments, environ, cards)
        case "accelerate", arguments:
            number = _option(arguments, ("--num_processes", "--num-processes"))
            return _number(number) if number is not None else cards
        case "mpirun", arguments:
            return _number(_option(arguments, ("-np", "-n", "--np", "-c")) or "")
    told = next((environ[name] for name in _VARIABLES if environ.get(name)), "1")
    return _number(told)


def _launcher(command: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Return which launcher `command` is, and its arguments: those before the program that it starts among them."""
    if not command:
        return None
    name, rest = PurePath(command[0]).name, list(command[1:])
    if name.startswith("python"):
        module = rest[rest.index("-m") + 1 : rest.index("-m") + 2] if "-m" in rest else []
        if module and module[0] in _TORCH_MODULES and all(word.startswith("-") for word in rest[: rest.index("-m")]):
            return "torchrun", rest[rest.index("-m") + 2 :]
        return None
    if name == "accelerate" and rest[:1] == ["launch"]:
        return "accelerate", rest[1:]
    if name in ("mpirun", "mpiexec"):
        return "mpirun", rest
    return ("torchrun", rest) if name == "torchrun" else None


def _of_torchrun(arguments: Sequence[str], environ: Mapping[str, str], cards: int | None) -> int | None:
    names = ("--nproc-per-node", "--nproc_per_node")
    local = _option(arguments, names) or environ.get("PET_NPROC_PER_NODE") or "1"
    nodes = _option(arguments, ("--nnodes",)) or environ.get("PET_NNODES") or "1"
    least, _, most = nodes.partition(":")
    if most and most != least:  # elastic: as many as come
        return None
    on_node = cards if local in _OF_CARDS else _number(local)
    all_nodes = _number(least)
    return None if on_node is None or all_nodes is None else on_node * all_nodes


def _option(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of the last of these options among the launcher's own: those before the program it starts."""
    found, rest = None, list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, equals, value = rest.pop(0).partition("=")
        if not equals and name not in _FLAGS and rest and not rest[0].startswith("-") and not rest[0].endswith(".py"):
            value = rest.pop(0)
        found = value if name in names and value else found
    return found


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) > 0 else None
