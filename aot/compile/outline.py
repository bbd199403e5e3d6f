"""Outlines: an exported program's archive with a few bytes in place of each weight's memory.

Stripping asks of the weights their forms, and which of them share memory, and never for a value. But torch.export.load
reads all of them, so it is given an outline: a checkpoint of many gigabytes is stripped with the memory that its graph
takes. An outline loads as the archive does, but for the strides and offsets of its weights.

The archive's layout (torch.export.pt2_archive, torch >= 2.9), below one folder:

    models/model.json                            the graph, and what each of its inputs is
    data/weights/model_weights_config.json       by name: the member with its memory; sizes, strides and offset in it
    data/constants/model_constants_config.json   the same of lifted constants, and buffers that a state dict leaves out
"""

import json
import math
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

GRAPH = "models/model.json"
WEIGHTS, WEIGHTS_CONFIG = "data/weights/", "model_weights_config.json"
CONSTANTS, CONSTANTS_CONFIG = "data/constants/", "model_constants_config.json"
# Compiled code beside the program: load looks at it in the file itself.
_OTHERS = ("data/aotinductor/",)
# The element of any type has a size that divides this.
_ELEMENT_BYTES = 16
_CHUNK_BYTES = 1 << 20
# Only a buffer among the constants that is larger is looked for: the graph is read for it, which is large as well.
_LARGE_BYTES = 1 << 20


def write_outline(source: Path, into: IO[bytes]) -> bool:
    """Write the outline of the archive at `source`; False, and nothing to be used, where its layout is not known.

    Raises OSError.
    """
    try:
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(into, "w") as outline:
            members = _members(archive)
            replaced = _replaced(archive, members)
            for name, info in members.items():
                if name in replaced:
                    outline.writestr(zipfile.ZipInfo(info.filename), replaced[name])
                else:
                    copy_member(archive, info, outline)
    except (LookupError, TypeError, ValueError, AttributeError, ImportError, zipfile.BadZipFile):
        return False
    into.seek(0)
    return True


def copy_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, into: zipfile.ZipFile) -> None:
    """Write the member to `into` uncompressed, as of 1980, a piece at a time."""
    plain = zipfile.ZipInfo(member.filename)
    plain.file_size = member.file_size  # by which a member of 2 GiB and more is written in the form for large ones
    with archive.open(member) as content, into.open(plain, "w") as copy:
        shutil.copyfileobj(content, copy, _CHUNK_BYTES)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by their name below the one folder that all are in; none where that is not so."""
    infos = archive.infolist()
    folders = {info.filename.partition("/")[0] for info in infos}
    named = {info.filename.partition("/")[2]: info for info in infos}
    return named if len(folders) == 1 and len(named) == len(infos) else {}


def _replaced(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> dict[str, bytes]:
    """What the outline has in place of which members. Raises LookupError or ValueError for a layout not known."""
    models = [name for name in members if name.startswith("models/")]
    if models != [GRAPH] or any(name.startswith(_OTHERS) for name in members):
        raise ValueError("no archive of one program")
    weights = _stand_ins(archive, members, WEIGHTS, WEIGHTS_CONFIG, lambda name: True)
    large = [name for name, info in members.items() if name.startswith(CONSTANTS) and info.file_size > _LARGE_BYTES]
    if not large:
        return weights
    left_out = frozenset(_buffers_left_out(json.loads(archive.read(members[GRAPH]))))
    return weights | _stand_ins(archive, members, CONSTANTS, CONSTANTS_CONFIG, left_out.__contains__)


def _stand_ins(
    archive: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    folder: str,
    config: str,
    is_weight: Callable[[str], bool],
) -> dict[str, bytes]:
    """Stand-ins for the members that hold nothing but weights, and the configuration that fits them."""
    told = json.loads(archive.read(members[folder + config]))
    sharing: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for name, entry in told["config"].items():
        sharing[entry["path_name"]].append((name, entry))
    found = {}
    for path, entries in sharing.items():
        # What torch pickles is an object of a class of its own: its form is known to that class alone.
        if any(entry["use_pickle"] or not is_weight(name) for name, entry in entries):
            continue
        metas = [entry["tensor_meta"] for _, entry in entries]
        if any(_reach(meta) for meta in metas):
            _require_room(metas, size_bytes=members[folder + path].file_size)
            found[folder + path] = _flatten(metas)
    return {**found, folder + config: json.dumps(told).encode()} if found else {}


def _flatten(metas: list[dict[str, Any]]) -> bytes:
    """Make every element of a tensor the same one, and return their memory: one element for each distinct offset.

    Tensors that had an offset in common still have, and others have not: that is what makes weights tied.
    """
    offsets = sorted({meta["storage_offset"]["as_int"] for meta in metas})
    for meta in metas:
        meta["strides"] = [{"as_int": 0} for _ in meta["strides"]]
        meta["storage_offset"] = {"as_int": offsets.index(meta["storage_offset"]["as_int"])}
    return bytes(_ELEMENT_BYTES * len(offsets))


def _require_room(metas: list[dict[str, Any]], *, size_bytes: int) -> None:
    """Raises ValueError where a tensor would not lie within its memory: torch says it in its own words."""
    from torch import empty
    from torch._export.serde.serialize import deserialize_scalar_type

    # Of one member all have the type of the first; one without bytes stands for zeros of the first one's form.
    element_bytes = empty(0, dtype=deserialize_scalar_type(metas[0]["dtype"])).element_size()
    elements, rest = divmod(size_bytes, element_bytes)
    if not size_bytes:
        elements = math.prod(size["as_int"] for size in metas[0]["sizes"])
    if rest or max(map(_reach, metas)) > elements:
        raise ValueError(f"{size_bytes} bytes are not the memory of these tensors")


def _reach(meta: Mapping[str, Any]) -> int:
    """How many elements of its memory a tensor needs; 0 where it has no element. Raises LookupError, ValueError."""
    sizes, strides = ([number["as_int"] for number in meta[key]] for key in ("sizes", "strides"))
    offset = meta["storage_offset"]["as_int"]
    if len(sizes) != len(strides) or min((offset, *sizes, *strides)) < 0:
        raise ValueError("no form of a tensor")
    if 0 in sizes:
        return 0
    return int(offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)))


def _buffers_left_out(program: Mapping[str, Any]) -> Iterator[str]:
    """Names of the buffers that the module holds and its state dict leaves out."""
    for spec in program["graph_module"]["signature"]["input_specs"]:
        buffer = spec.get("buffer")
        if buffer and not buffer["persistent"]:
            yield buffer["buffer_name"]
