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
from aot.schema.environment import Clocks, Gpu

_NAME_BYTES = 96
_KERNEL_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_CORES_PER_SM = {7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}
_CORES_PER_SM_OF_SM80 = 64
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t


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


class NvmlRefused(Exception):
    """A call of NVML did not return success, or this driver does not have it."""


def observe_nvidia(host: Host) -> tuple[str | None, tuple[Gpu, ...] | None]:
    """Return the driver's version and the cards; each MIG instance is a card of its own.

    Cards are `()` where the host has no NVIDIA driver, and None where it has one that cannot be asked: a container
    without the driver's libraries. CUDA_VISIBLE_DEVICES is honoured as far as it is certain which cards it names.
    """
    driver = _driver(host)
    try:
        nvml = Nvml(host.nvml)
    except (OSError, NvmlRefused):
        return driver, None if driver else ()
    try:
        cards = tuple(nvml.cards())
        return driver or nvml.driver(), _visible(cards, host)
    except NvmlRefused:
        return driver, None
    finally:
        nvml.close()


def _driver(host: Host) -> str | None:
    match = _KERNEL_MODULE.search(host.text("/proc/driver/nvidia/version") or "")
    return match[1] if match else (host.text("/sys/module/nvidia/version") or "").strip() or None


class Nvml:
    """The library, initialised. Raises OSError where it is absent, NvmlRefused where no driver answers."""

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

    def clocks(self, uuid: str) -> Clocks:
        """What the driver tells of the clocks of a card, or of the card that a MIG instance is of; raises NvmlRefused.

        Newer drivers know no clocks of applications, and tell what they are locked to by none of these calls.
        """
        card, whole = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(card))
        try:
            self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", card, ctypes.byref(whole))
        except NvmlRefused:
            whole = card
        return Clocks(
            sm_mhz=self._clock("nvmlDeviceGetClockInfo", whole, _SM_CLOCK),
            memory_mhz=self._clock("nvmlDeviceGetClockInfo", whole, _MEMORY_CLOCK),
            most_sm_mhz=self._clock("nvmlDeviceGetMaxClockInfo", whole, _SM_CLOCK),
            most_memory_mhz=self._clock("nvmlDeviceGetMaxClockInfo", whole, _MEMORY_CLOCK),
            application_sm_mhz=self._clock("nvmlDeviceGetApplicationsClock", whole, _SM_CLOCK),
            application_memory_mhz=self._clock("nvmlDeviceGetApplicationsClock", whole, _MEMORY_CLOCK),
        )

    def _clock(self, function: str, card: ctypes.c_void_p, which: int) -> int | None:
        try:
            return self._number(function, card, ctypes.c_int(which))
        except NvmlRefused:
            return None

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
        except NvmlRefused:
            return None
        return cores // per_sm if per_sm else None

    def _instances(self, card: ctypes.c_void_p, whole: Gpu) -> Iterator[tuple[str, Gpu]]:
        try:
            limit = self._number("nvmlDeviceGetMaxMigDeviceCount", card)
        except NvmlRefused:
            return
        for index in range(limit):
            instance, attributes = ctypes.c_void_p(), _Attributes()
            try:
                self._call("nvmlDeviceGetMigDeviceHandleByIndex", card, ctypes.c_uint(index), ctypes.byref(instance))
                self._call("nvmlDeviceGetAttributes_v2", instance, ctypes.byref(attributes))
            except NvmlRefused:
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
            raise NvmlRefused(f"{function} is not in this driver") from None
        if status != 0:
            raise NvmlRefused(f"{function} returned {status}")


def first_card(cards: tuple[tuple[str, Gpu], ...], host: Host) -> str | None:
    """The UUID of CUDA's first card; None where there is none, or which one it is is not certain."""
    if not (visible := _visible_cards(cards, host)):
        return None
    by_uuid = host.variables.get("CUDA_VISIBLE_DEVICES", "").strip().startswith(("GPU-", "MIG-"))
    return visible[0][0] if by_uuid or _is_ordered(visible, host) else None


def _visible(cards: tuple[tuple[str, Gpu], ...], host: Host) -> tuple[Gpu, ...]:
    return tuple(gpu for _, gpu in _visible_cards(cards, host))


def _visible_cards(cards: tuple[tuple[str, Gpu], ...], host: Host) -> tuple[tuple[str, Gpu], ...]:
    """Keep the cards that CUDA_VISIBLE_DEVICES names: by UUID, or by number where the order of cards is certain."""
    setting = host.variables.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return cards
    # CUDA stops at the first entry that names no card.
    names = [name.strip() for name in setting.split(",")]
    if names[0].startswith(("GPU-", "MIG-")):
        return tuple((uuid, gpu) for name in names for uuid, gpu in cards if uuid.startswith(name))
    numbers = []
    for name in names:
        if not name.isdecimal() or int(name) >= len(cards):
            break
        numbers.append(int(name))
    return tuple(cards[number] for number in numbers) if _is_ordered(cards, host) or not numbers else cards


def _is_ordered(cards: tuple[tuple[str, Gpu], ...], host: Host) -> bool:
    """CUDA numbers the fastest card first unless it is told otherwise, NVML goes by bus: equal cards are no matter."""
    return len({gpu for _, gpu in cards}) <= 1 or host.variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
