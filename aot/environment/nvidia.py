"""NVIDIA cards and their driver, by NVML through ctypes: no CUDA context, so a later fork stays possible.

Sources: NVML API reference (nvml.h); the number of cores in a multiprocessor by compute capability is NVIDIA's table in
the CUDA samples (helper_cuda.h, _ConvertSMVer2Cores).
"""

import ctypes
import re
from collections.abc import Iterator
from typing import Any

from aot.environment.host import Host
from aot.schema.capability import Capability
from aot.schema.environment import Gpu

_NAME_BYTES = 96
_KERNEL_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_CORES_PER_SM = {7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}
_CORES_PER_SM_OF_SM80 = 64


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Attributes(ctypes.Structure):
    """nvmlDeviceAttributes_t, of a MIG device."""

    _fields_ = [
        ("multiprocessors", ctypes.c_uint),
        ("copy_engines", ctypes.c_uint),
        ("decoders", ctypes.c_uint),
        ("encoders", ctypes.c_uint),
        ("jpeg_engines", ctypes.c_uint),
        ("optical_flow_engines", ctypes.c_uint),
        ("gpu_slices", ctypes.c_uint),
        ("compute_slices", ctypes.c_uint),
        ("memory_mb", ctypes.c_ulonglong),
    ]


class _NvmlRefused(Exception):
    """A call of NVML did not return success, or this driver does not have it."""


def observe_nvidia(host: Host) -> tuple[str | None, tuple[Gpu, ...] | None]:
    """Return the driver's version and the cards; each MIG instance is a card of its own.

    Cards are `()` where the host has no NVIDIA driver, and None where it has one that cannot be asked: a container
    without the driver's libraries. CUDA_VISIBLE_DEVICES is honoured as far as it is certain which cards it names.
    """
    driver = _driver(host)
    try:
        nvml = _Nvml(host.nvml)
    except (OSError, _NvmlRefused):
        return driver, None if driver else ()
    try:
        cards = tuple(nvml.cards())
        return driver or nvml.driver(), _visible(cards, host)
    except _NvmlRefused:
        return driver, None
    finally:
        nvml.close()


def _driver(host: Host) -> str | None:
    match = _KERNEL_MODULE.search(host.text("/proc/driver/nvidia/version") or "")
    return match[1] if match else (host.text("/sys/module/nvidia/version") or "").strip() or None


class _Nvml:
    """The library, initialised. Raises OSError where it is absent, _NvmlRefused where no driver answers."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._call("nvmlInit_v2")

    def close(self) -> None:
        self._library.nvmlShutdown()

    def driver(self) -> str | None:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(_NAME_BYTES))
        return text.value.decode(errors="replace") or None

    def cards(self) -> Iterator[tuple[str, Gpu]]:
        """Yield UUID and facts of every card, or of its MIG instances where it is cut into such."""
        for index in range(self._number("nvmlDeviceGetCount_v2")):
            card = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(card))
            whole = self._describe(card)
            yield from list(self._instances(card, whole)) or [(self._text("nvmlDeviceGetUUID", card), whole)]

    def _describe(self, card: ctypes.c_void_p) -> Gpu:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvmlDeviceGetCudaComputeCapability", card, ctypes.byref(major), ctypes.byref(minor))
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", card, ctypes.byref(memory))
        return Gpu(
            capability=Capability(f"cuda:sm_{major.value}{minor.value}"),
            sku=self._text("nvmlDeviceGetName", card),
            memory_bytes=memory.total,
            sm_count=self._sm_count(card, major.value, minor.value),
        )

    def _sm_count(self, card: ctypes.c_void_p, major: int, minor: int) -> int | None:
        per_sm = _CORES_PER_SM_OF_SM80 if (major, minor) == (8, 0) else _CORES_PER_SM.get(major)
        try:
            cores = self._number("nvmlDeviceGetNumGpuCores", card)
        except _NvmlRefused:
            return None
        return cores // per_sm if per_sm else None

    def _instances(self, card: ctypes.c_void_p, whole: Gpu) -> Iterator[tuple[str, Gpu]]:
        try:
            limit = self._number("nvmlDeviceGetMaxMigDeviceCount", card)
        except _NvmlRefused:
            return
        for index in range(limit):
            instance, attributes = ctypes.c_void_p(), _Attributes()
            try:
                self._call("nvmlDeviceGetMigDeviceHandleByIndex", card, ctypes.c_uint(index), ctypes.byref(instance))
                self._call("nvmlDeviceGetAttributes_v2", instance, ctypes.byref(attributes))
            except _NvmlRefused:
                continue  # a place that no instance occupies
            uuid, name = self._text("nvmlDeviceGetUUID", instance), self._text("nvmlDeviceGetName", instance)
            yield (
                uuid,
                Gpu(
                    capability=whole.capability,
                    sku=whole.sku,
                    memory_bytes=attributes.memory_mb << 20,
                    sm_count=attributes.multiprocessors or None,
                    mig=name.partition(" MIG ")[2] or name,
                ),
            )

    def _text(self, function: str, card: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._call(function, card, text, ctypes.c_uint(_NAME_BYTES))
        return text.value.decode(errors="replace")

    def _number(self, function: str, *arguments: Any) -> int:
        number = ctypes.c_uint()
        self._call(function, *arguments, ctypes.byref(number))
        return number.value

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            status = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise _NvmlRefused(f"{function} is not in this driver") from None
        if status != 0:
            raise _NvmlRefused(f"{function} returned {status}")


def _visible(cards: tuple[tuple[str, Gpu], ...], host: Host) -> tuple[Gpu, ...]:
    """Keep the cards that CUDA_VISIBLE_DEVICES names: by UUID, or by number where the order of cards is certain."""
    gpus = tuple(gpu for _, gpu in cards)
    setting = host.variables.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return gpus
    # CUDA stops at the first entry that names no card.
    names = [name.strip() for name in setting.split(",")]
    if names[0].startswith(("GPU-", "MIG-")):
        return tuple(gpu for name in names for uuid, gpu in cards if uuid.startswith(name))
    numbers = []
    for name in names:
        if not name.isdecimal() or int(name) >= len(gpus):
            break
        numbers.append(int(name))
    # CUDA numbers the fastest card first unless it is told otherwise, NVML goes by bus: equal cards make no difference.
    certain = len(set(gpus)) <= 1 or host.variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return tuple(gpus[number] for number in numbers) if certain or not numbers else gpus
