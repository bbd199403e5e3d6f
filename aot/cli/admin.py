"""`aot admin`: a registry's housekeeping, for whoever runs it: `python -m registry` in this command's place.

The server parts come with a checkout or an image, not with the wheel; they are not imported here.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import aot
from aot.cli.part_environ import parts_path
from aot.errors import InvalidConfig


def become(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by `python -m registry WORDS`, which has exit codes of its own.

    Raises InvalidConfig where only the wheel is installed.
    """
    path = parts_path(find_server(), environ)
    sys.stdout.flush()
    # -P: a directory `registry` where the command is run is another one.
    command = [sys.executable, "-P", "-m", "registry", *words]
    os.execve(sys.executable, command, {**environ, "PYTHONPATH": path})


def find_server() -> Path:
    """The directory that holds the server parts: beside this package in a checkout, on Python's path in an image."""
    spec = importlib.util.find_spec("registry")
    found = [Path(place).parent for place in spec.submodule_search_locations or ()] if spec is not None else []
    for root in (Path(aot.__file__).resolve().parents[1], *found):
        # Others may have a package of that name.
        if (root / "registry/__main__.py").exists() and (root / "registry/services/check.py").exists():
            return root
    raise InvalidConfig(
        "the server parts are not installed with the aot package",
        hint="run it where the registry runs, in its image or a checkout: `python -m registry` is the same command",
    )
