"""Isolates a process: separate namespaces, a separate file system, no network, no privileges and hard limits.

A jail uses kernel features only, so nothing has to be installed. If the kernel or the machine's policy refuses
namespaces, Landlock (`landlock.py`) or only the limits apply, and every result says which.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tblite_container import landlock

NAMESPACES = "namespaces"
LANDLOCK = "landlock"
LIMITS = "limits"
KINDS = (NAMESPACES, LANDLOCK, LIMITS)

MB = 1 << 20
CELL = "/cell"

# The user and group of a process in a jail. Root's processes are not counted, so root becomes `nobody` outside.
INSIDE_ID = 1000
NOBODY = 65534

_CLONE = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000}
_CLONE_NET = 0x40000000
_MS_BIND, _MS_MOVE, _MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 0x1000, 0x2000, 0x4000, 0x40000, 0x2, 0x4
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 0x1 | 0x2 | 0x4
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38

# Paths that programs need in order to run. Links into /usr are recreated.
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin", "/etc/alternatives", "/etc/ld.so.cache", "/dev/null")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Limits:
    """Resource limits of one process, or of the whole jail where noted."""

    cpu_seconds: int = 2
    memory_mb: int = 512
    file_mb: int = 8
    disk_mb: int = 32  # of the whole jail
    processes: int = 48  # of the whole jail


def confine(
    kind: str,
    place: Path,
    visible: Sequence[Path],
    limits: Limits,
    body: Callable[[Path], None],
    complain: Callable[[str], None],
) -> int:
    """Start `body` in a jail and return the process to wait for, which leads the process group to kill.

    `place` is an empty directory in which the jail is built; `body` gets the directory it may write to. Of the rest of
    the machine it sees the programs and the `visible` paths, and cannot change either. If one of our paths must be
    visible and there are no namespaces, the process keeps our user. The caller must have only one thread.
    """
    is_apart, may_go_on = os.pipe(), os.pipe()
    keeper = os.fork()
    if keeper:
        os.close(is_apart[1])
        os.close(may_go_on[0])
        with open(is_apart[0], "rb") as told, open(may_go_on[1], "wb") as go:  # noqa: PTH123 (pipes)
            if told.read(1) and kind == NAMESPACES:
                _map_ids(keeper)
                go.write(b"+")
        return keeper
    try:
        os.setsid()
        os.umask(0o022)
        os.close(is_apart[0])
        os.close(may_go_on[1])
        if kind == NAMESPACES:
            _call("unshare", sum(_CLONE.values()) | _CLONE_NET)
        os.write(is_apart[1], b"+")
        os.close(is_apart[1])
        if kind == NAMESPACES and os.read(may_go_on[0], 1) != b"+":
            raise OSError("the ids of the jail could not be set")
        os.close(may_go_on[0])
        work = _build_root(place, visible, limits) if kind == NAMESPACES else place
        inner = os.fork()
        if inner == 0:
            if kind == NAMESPACES or not visible:
                _drop_root(kind, work)
            _drop_privileges(kind, limits)
            body(work)
            os._exit(0)
        _, status = os.waitpid(inner, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    except BaseException as error:
        complain(f"{type(error).__name__}: {error}")
    finally:
        os._exit(125)


def apply_landlock(kind: str, work: Path, visible: Sequence[Path] = ()) -> None:
    """Apply the Landlock sandbox that replaces namespaces, if that is the kind of sandbox."""
    if kind == LANDLOCK:
        null = Path(os.devnull)
        landlock.restrict([Path(entry) for entry in _SYSTEM if entry != os.devnull] + list(visible), [work, null])


def end_children(kind: str) -> None:
    """Kill all descendants of this process in its jail."""
    with contextlib.suppress(ProcessLookupError):
        if kind == NAMESPACES:
            # The first process of a namespace can signal all others.
            os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            # Without a namespace, orphans become our children, one generation after the other.
            for child in _children() if kind != NAMESPACES else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    """Return the children of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"\nPPid:\t{os.getpid()}\n" in (entry / "status").read_text():
                found.append(int(entry.name))
    return found


def _map_ids(pid: int) -> None:
    """Write the mapping of user and group ids of a jail."""
    uid, gid = os.getuid(), os.getgid()
    process = Path(f"/proc/{pid}")
    if uid == 0:
        # Root of a namespace may have no other id to map; it has no privileges outside anyway.
        with contextlib.suppress(PermissionError):
            (process / "gid_map").write_text(f"0 {gid} 1\n{INSIDE_ID} {NOBODY} 1\n")
            (process / "uid_map").write_text(f"0 {uid} 1\n{INSIDE_ID} {NOBODY} 1\n")
            return
    (process / "setgroups").write_text("deny")
    (process / "gid_map").write_text(f"{INSIDE_ID} {gid} 1\n")
    (process / "uid_map").write_text(f"{INSIDE_ID} {uid} 1\n")


def _build_root(place: Path, visible: Sequence[Path], limits: Limits) -> Path:
    """Build the file system of a jail at `place` and make it the root. Nothing else can be reached from then on."""
    root = str(place)
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("jail", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for path in [Path(entry) for entry in _SYSTEM] + _outermost(visible):
        target = Path(f"{root}{path}")
        if path.is_symlink():
            target.symlink_to(path.readlink())
        elif path.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir() if path.is_dir() else target.touch()
            _mount(str(path), str(target), None, _MS_BIND | _MS_REC)
            _make_read_only(target, is_device=path == Path("/dev/null"))
    Path(f"{root}{CELL}").mkdir()
    owner = f"uid={INSIDE_ID},gid={INSIDE_ID},mode=700"
    size = f"size={limits.disk_mb}m,nr_inodes=4096"
    _mount("cell", f"{root}{CELL}", "tmpfs", _MS_NOSUID | _MS_NODEV, f"{size},{owner}")
    _make_read_only(Path(root), is_device=False, recursive=False)
    os.chdir(root)
    _mount(".", "/", None, _MS_MOVE)
    os.chroot(".")
    os.chdir(CELL)
    return Path(CELL)


def _outermost(paths: Sequence[Path]) -> list[Path]:
    """Return the resolved paths that are not below another one or below the standard paths."""
    real = sorted({path.resolve() for path in paths if path.exists()})
    there = [Path(entry) for entry in _SYSTEM]
    own = [path for path in real if not any(path.is_relative_to(entry) for entry in there)]
    return [path for path in own if not any(path.is_relative_to(other) and path != other for other in own)]


def _make_read_only(path: Path, *, is_device: bool, recursive: bool = True) -> None:
    # For a device, the attribute "no devices" would make it unusable.
    attributes = _READ_ONLY & ~0x4 & ~0x1 if is_device else _READ_ONLY
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    _call("syscall", ctypes.c_long(_MOUNT_SETATTR), _AT_FDCWD, os.fsencode(path), flags, wanted, size)


def _drop_root(kind: str, work: Path) -> None:
    """Stop being root, if another user is available."""
    if os.getuid() == 0:
        own = INSIDE_ID if kind == NAMESPACES else NOBODY
        with contextlib.suppress(OSError):
            if kind != NAMESPACES:
                shutil.chown(work, own, own)
                work.parent.chmod(0o711)
            os.setgroups([])
            os.setresgid(own, own, own)
            os.setresuid(own, own, own)


def _drop_privileges(kind: str, limits: Limits) -> None:
    """Drop all privileges, set hard limits, and arrange that this process ends with its parent."""
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _call("capset", header, nothing)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    processes = limits.processes if kind == NAMESPACES else limits.processes + _processes_of(os.getuid())
    for name, value in {
        resource.RLIMIT_AS: limits.memory_mb * MB,
        resource.RLIMIT_FSIZE: limits.file_mb * MB,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
    }.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
    os.umask(0o077)


def _processes_of(uid: int) -> int:
    """Return how many processes and threads a user has: without a namespace, all of them count."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                count += sum(1 for _ in (entry / "task").iterdir())
        except OSError:
            continue  # The process has ended.
    return count


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), os.fsencode(data) or None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}", str(arguments[1]) if name == "mount" else None)
