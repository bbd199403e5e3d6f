"""Children with limits, isolated where bubblewrap works: compile, proof and local build run in them."""

from aot.sandbox.bubblewrap import Bind, BindMode, Bubblewrap, NoSandbox, find_sandbox, list_gpu_devices
from aot.sandbox.child import run_child
from aot.sandbox.events import EVENTS_FD, OnEvent, ShouldStop, write_event
from aot.sandbox.exit import ChildExit, CountedBy, ExitKind, ProcessCount, Program
from aot.sandbox.limits import Limits, SandboxKind
from aot.sandbox.packages import find_packages, python_path
from aot.sandbox.room import Room, RoomOf, capped, find_room

__all__ = [
    "EVENTS_FD",
    "Bind",
    "BindMode",
    "Bubblewrap",
    "ChildExit",
    "CountedBy",
    "ExitKind",
    "Limits",
    "NoSandbox",
    "OnEvent",
    "ProcessCount",
    "Program",
    "Room",
    "RoomOf",
    "SandboxKind",
    "ShouldStop",
    "capped",
    "find_packages",
    "find_room",
    "find_sandbox",
    "list_gpu_devices",
    "python_path",
    "run_child",
    "write_event",
]
