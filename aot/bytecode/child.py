"""Compiles the modules of one distribution, in a process of its own. Standard library alone; no module is run.

A process of its own, without site packages and with hashes fixed, because marshal writes what it meets: whether a
string is shared depends on everything else that the process has seen. So equal sources give equal bytes.

stdin: the root and the paths below it, parted by NUL. stdout: for each path eight bytes of length and the `.pyc`, a
length of zero where the file does not compile (templates, code for other versions).
"""

import importlib.util
import marshal
import os
import sys
import warnings


def main() -> None:
    root, *paths = sys.stdin.read().split("\0")
    warnings.simplefilter("ignore")
    for path in paths:
        content = compile_file(os.path.join(root, path), path)
        sys.stdout.buffer.write(len(content).to_bytes(8, "big") + content)


def compile_file(place: str, name: str) -> bytes:
    """Return a `.pyc` of the checked kind (PEP 552) as importlib writes it; empty where the source does not compile."""
    try:
        with open(place, "rb") as file:
            source = file.read()
        # As importlib.abc.InspectLoader.source_to_code does; the import replaces the name by the real path.
        code = compile(source, name, "exec", dont_inherit=True, optimize=-1)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return b""
    checked = 0b11
    header = importlib.util.MAGIC_NUMBER + checked.to_bytes(4, "little") + importlib.util.source_hash(source)
    return header + marshal.dumps(code)


if __name__ == "__main__":
    main()
