"""Landlock sandbox for machines that refuse namespaces; any process can apply it to itself.

Files outside the allowed paths cannot be opened, and no TCP connection can be made. That is weaker than a jail: names
outside can still be listed, UDP is open, and so are Unix sockets of the host that have a path, such as that of a
container engine. Before version 6 of Landlock, abstract sockets and signals to processes of the same user are open too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _BENEATH = 1, 1
# From this version on, TCP is restricted too.
LEAST_VERSION = 4
_SIGNALS_VERSION = 6

_EVERYTHING = (1 << 15) - 1
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read, list
_OF_A_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14  # execute, write, read, truncate
_TCP = 1 << 0 | 1 << 1
_SIGNALS_AND_SOCKETS = 1 << 0 | 1 << 1

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def is_supported() -> bool:
    """Return whether the kernel supports everything that the sandbox needs."""
    return _version() >= LEAST_VERSION


def restrict(readable: Sequence[Path], writable: Sequence[Path]) -> None:
    """Restrict this process and all its descendants. This cannot be undone."""
    scoped = _SIGNALS_AND_SOCKETS if _version() >= _SIGNALS_VERSION else 0
    wanted = _Ruleset(_EVERYTHING, _TCP, scoped)
    size = ctypes.sizeof(wanted) if scoped else 16
    rules = _call(_CREATE, ctypes.byref(wanted), ctypes.c_size_t(size), 0)
    for paths, allowed in ((readable, _READ), (writable, _EVERYTHING)):
        for path in paths:
            if path.exists():
                _allow(rules, path, allowed)
    _call(_RESTRICT, rules, 0)
    os.close(rules)


def _allow(rules: int, path: Path, allowed: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _Rule(allowed if path.is_dir() else allowed & _OF_A_FILE, place)
        _call(_ADD, rules, _BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(place)


def _version() -> int:
    return int(_libc.syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), _VERSION_FLAG))


def _call(number: int, *arguments: object) -> int:
    answer = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return answer
