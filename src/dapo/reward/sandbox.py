"""Run an untrusted Python program in a throwaway process.

    parent (any thread)        starts the runner, reads what comes out, kills at the end
    └── runner                 a new session; gives up root, unshares namespaces
        └── supervisor         holds the wall limit and reports the end; pid 1 of the program's namespace
            └── program        a fresh interpreter: standard library alone, no capabilities, no secrets

On Linux it always stops endless loops, memory, output and dumps beyond the limits, set-uid programs, and
the inheritance of variables and open files. It stops where `Outcome.isolated` says so, found in each run:

    user       the caller is root and the program isn't: it runs as nobody
    processes  it sees and signals no other process, and whatever it started dies with it
    ipc        it shares no System V memory or queues
    network    no network at all, not even localhost
    files      it sees the system's programs and libraries and this Python's own, read-only, and a working
               folder in memory; data sets, home folders, sockets and disks don't exist for it

Without `files` it reads and writes what its user can. Without `processes` it can kill what its user runs,
other sandboxes among it, a child that detached itself survives if the program also kills its supervisor,
and a fork bomb is bounded loosely. Root who can't run it as nobody is refused. macOS: none of the five.

It does not stop: exploits of the kernel (no seccomp filter), side channels, reading the kernel's public
figures in /proc, and use up to the limits: memory_mb is for each process, so the whole can reach
processes * memory_mb + file_mb (a cgroup around the caller bounds it). Mutually hostile tenants need
virtual machines.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from enum import Enum
from typing import IO

from dapo.errors import RewardError

STARTUP_S = 20.0  # for the set-up of a run on a loaded machine; not part of the wall limit
DRAIN_S = 0.5  # for the rest of the output once the supervisor is gone
CHUNK = 1 << 16


class Status(Enum):
    """How a run ended."""

    OK = "ok"  # exit status 0
    FAILED = "failed"  # any other exit, a signal, or too much output
    TIMEOUT = "timeout"  # the wall or the CPU limit
    MEMORY = "memory"  # it ended by a MemoryError
    ERROR = "error"  # the sandbox itself failed; stderr says why


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one program may use.

    wall_s: seconds from its start; depends on the machine's load, so keep it well above cpu_s.
    cpu_s: CPU seconds of each process, rounded up to whole ones.
    memory_mb: MiB of address space of each process; unlimited on macOS.
    processes: processes and threads at a time, the program itself among them.
    file_mb: MiB of a file; of all files together where `files` is isolated.
    output_kb: KiB kept of stdout and of stderr. More stdout ends the program; more stderr is dropped.
    """

    wall_s: float = 10.0
    cpu_s: float = 5.0
    memory_mb: int = 1024
    processes: int = 16
    file_mb: int = 16
    output_kb: int = 1024

    def __post_init__(self) -> None:
        """Raise a RewardError that names the limit which is no positive, finite number."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise RewardError(f"limits.{entry.name} = {value!r}: write a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run gave.

    returncode: exit status, or minus the signal; None where it was not seen.
    stdout, stderr: UTF-8 with replacements, at most limits.output_kb each; cut says stdout was longer.
    seconds: wall time of the program itself.
    isolated: which of user, processes, ipc, network and files the kernel granted.
    """

    status: Status
    returncode: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cut: bool = False
    isolated: tuple[str, ...] = ()


DEFAULT_LIMITS = Limits()


def run_program(code: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
    """Run `code` as a program with `stdin`. Blocks; safe to call from many threads at once.

    The program has the standard library, but no site-packages unless it adds the path of this Python's
    own; its empty working folder (HOME, TMPDIR) vanishes afterwards. In asyncio use `asyncio.to_thread`.

    Args:
        code: any text; what is not Python ends as FAILED.
        stdin: any text; a lone surrogate arrives as the bytes of its code point.
        limits: see Limits.

    >>> run_program("print(int(input()) + 1)", "41").stdout
    '42\\n'
    """
    source, given = (text.encode("utf-8", "surrogatepass") for text in (code, stdin))
    try:
        folders = tempfile.TemporaryDirectory(prefix="dapo-sandbox-", ignore_cleanup_errors=True)
        with folders as folder, tempfile.TemporaryFile() as feed:
            feed.write(source + given)
            feed.seek(0)
            return _run(folder, feed, len(source), limits)
    except OSError as error:
        return Outcome(status=Status.ERROR, stderr=f"{type(error).__name__}: {error}")


def _run(folder: str, feed: IO[bytes], source_bytes: int, limits: Limits) -> Outcome:
    # The environment's Python may be a copy inside it; its base carries the standard library.
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    report_end, status_end = os.pipe()
    with open(report_end, "rb", buffering=0) as report:
        sizes = (int(limits.memory_mb * 2**20), int(limits.processes), int(limits.file_mb * 2**20), source_bytes)
        places = (os.getpid(), status_end, folder, python, LAUNCHER)
        arguments = map(str, (*places, limits.wall_s, math.ceil(limits.cpu_s), *sizes))
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}  # the interpreter's
        try:
            process = subprocess.Popen(  # noqa: S603
                [python, "-I", "-S", "-B", "-X", "utf8", "-c", RUNNER, *arguments],
                stdin=feed,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(status_end,),
                start_new_session=True,
                cwd=folder,
                env={**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            )
        finally:
            os.close(status_end)
        with process:
            try:
                return _outcome(*_read(process, report, limits), limits)
            finally:
                # Before the wait: until then the group's number can't be another's.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)


def _read(process: subprocess.Popen[bytes], report: IO[bytes], limits: Limits) -> tuple[list[str], bool]:
    """(stdout, stderr and report, whether stdout was too long), read side by side: none waits for a full pipe."""
    assert process.stdout is not None
    assert process.stderr is not None
    streams: list[IO[bytes]] = [process.stdout, process.stderr, report]
    room = [int(limits.output_kb * 1024)] * 2 + [CHUNK]
    data = [bytearray() for _ in streams]
    deadline = time.monotonic() + STARTUP_S + limits.wall_s
    with selectors.DefaultSelector() as selector:
        for index, stream in enumerate(streams):
            selector.register(stream, selectors.EVENT_READ, index)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0 and len(data[0]) <= room[0]:
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, CHUNK)
                # One byte over the limit is kept as the sign of more.
                data[key.data] += chunk[: room[key.data] + 1 - len(data[key.data])]
                if not chunk:
                    selector.unregister(key.fd)
                if not chunk and key.fd == report.fileno():
                    deadline = time.monotonic() + DRAIN_S  # the supervisor is gone
    texts = [part[:most].decode("utf-8", "replace") for part, most in zip(data, room, strict=True)]
    return texts, len(data[0]) > room[0]


def _outcome(texts: list[str], cut: bool, limits: Limits) -> Outcome:
    """What the supervisor's report means: `start NAMES`, then `end CODE TIMED_OUT CPU_S SECONDS`."""
    stdout, stderr, report = texts
    lines = {line.partition(" ")[0]: line.split()[1:] for line in report.splitlines()}
    isolated = tuple(lines.get("start", ()))
    returncode, seconds = None, 0.0
    if "start" not in lines or "fail" in lines:
        status = Status.ERROR
    elif cut:
        status = Status.FAILED
    elif "end" in lines:
        code, late, cpu_s, wall_s = lines["end"]
        returncode, seconds = int(code), float(wall_s)
        spent = returncode == -signal.SIGXCPU or (returncode == -signal.SIGKILL and float(cpu_s) >= limits.cpu_s)
        no_memory = stderr.rstrip().rpartition("\n")[2].startswith("MemoryError")
        failure = Status.MEMORY if no_memory else Status.FAILED
        status = Status.TIMEOUT if late == "1" or spent else Status.OK if returncode == 0 else failure
    else:
        # The supervisor was killed or stopped: only a program that shares our processes can do that.
        status = Status.ERROR if "processes" in isolated else Status.FAILED
    return Outcome(
        status=status, returncode=returncode, stdout=stdout, stderr=stderr, seconds=seconds, cut=cut, isolated=isolated
    )


# The program's interpreter starts with this: without `site` there is no exit() and no quit().
LAUNCHER = """
import sys, builtins, _sitebuiltins
for _ in ("exit", "quit"):
    setattr(builtins, _, _sitebuiltins.Quitter(_, "Ctrl-D"))
sys.argv = [__file__ := sys.argv[1]]
with open(__file__, "rb") as _:
    _ = _.read()
del sys, builtins, _sitebuiltins
exec(compile(_, __file__, "exec", dont_inherit=True))
"""

# Runner and supervisor, a single-threaded process of its own, so that limits, forks and signals never
# touch the caller. Numbers are those of linux/prctl.h, sched.h and mount.h.
RUNNER = r"""
import contextlib, ctypes, os, resource, sys, time
parent, status, base, python, launcher, wall, cpu, memory, processes, size, split = sys.argv[1:]
parent, status, cpu, memory, processes, size, split = map(int, (parent, status, cpu, memory, processes, size, split))
wall = float(wall)
LINUX, NOBODY, KILL = sys.platform == "linux", 65534, 9
DEATHSIG, DUMPABLE, SUBREAPER, NO_NEW_PRIVS = 1, 4, 36, 38
NEW_USER, NEW_OTHERS = 1 << 28, 1 << 17 | 1 << 29 | 1 << 27 | 1 << 30  # NS, PID, IPC, NET
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result != 0: raise OSError(ctypes.get_errno(), "system call")

def prctl(option, value):
    if LINUX:
        check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))

def put(path, data):
    with open(path, "wb") as file: file.write(data)

def become_nobody(home, needed):
    try:  # first with the effective ids alone, for nobody must be able to read this Python
        os.chown(home, NOBODY, NOBODY)
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        for path in needed:
            os.close(os.open(path, os.O_RDONLY))
    except OSError:
        sys.exit("refused to run as root, and nobody can't read this Python. Make its folders readable "
                 "(chmod a+rx), or run as an ordinary user")
    os.seteuid(0)
    os.setegid(0)
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    prctl(DUMPABLE, 1)  # lost with root, and without it /proc/self can't be written

def unshare_as_user(others):
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    if not LINUX or libc.unshare(NEW_USER | others):
        return False
    put("/proc/self/setgroups", b"deny")
    for name, number in ids.items():  # not 0 inside: then exec drops every capability
        put("/proc/self/" + name, f"{NOBODY} {number} 1".encode())
    with contextlib.suppress(OSError):  # no namespaces within, where it would have capabilities
        put("/proc/sys/user/max_user_namespaces", b"0")
    return True

def mount(source, target, kind, flags, data=""):
    check(libc.mount(*map(str.encode, (source, target, kind)), ctypes.c_ulong(flags), data.encode()))

def bind(path):
    os.makedirs(os.path.dirname(base + path), exist_ok=True)
    if os.path.islink(path):
        return os.symlink(os.readlink(path), base + path)
    os.makedirs(base + path, exist_ok=True) if os.path.isdir(path) else put(base + path, b"")
    mount(path, base + path, "", 4096 | 16384)  # MS_BIND, MS_REC
    if not path.startswith("/dev/"):
        # mount_setattr(AT_FDCWD, path, AT_RECURSIVE, {RDONLY, NOSUID}); the same number everywhere
        attributes = (ctypes.c_uint64 * 4)(3, 0, 0, 0)
        check(libc.syscall(442, -100, (base + path).encode(), 0x8000, attributes, ctypes.c_size_t(32)))

def own_root(room):
    mount("none", "/", "", 16384 | 1 << 18)  # MS_REC, MS_PRIVATE
    mount("tmpfs", base, "tmpfs", 2 | 4, f"size={room},nr_inodes=8192,mode=755")  # MS_NOSUID, MS_NODEV
    system = "/usr /bin /sbin /lib /lib32 /lib64 /nix/store /etc/ld.so.cache /etc/localtime /etc/alternatives"
    devices = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom"
    own, done = map(os.path.realpath, (sys.base_prefix, sys.base_exec_prefix, python)), []
    for path in [*system.split(), *devices.split(), *own]:
        if os.path.lexists(path) and not any(f"{path}/".startswith(f"{other}/") for other in done):
            bind(path)
            done.append(path)
    for path in ("/proc", "/dev/shm", "/tmp", "/work"):
        os.makedirs(base + path)
        os.chown(base + path, NOBODY, NOBODY)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{base}/dev/{name}")
    with contextlib.suppress(OSError):  # a container that masks /proc allows none; most programs do without
        mount("proc", base + "/proc", "proc", 2 | 4 | 8)
    os.chdir(base)
    check(libc.pivot_root(b".", b"."))
    check(libc.umount2(b".", 2))  # MNT_DETACH: the old root is gone
    os.chdir("/")

def limit(name, value):
    number, most = getattr(resource, name), value + (name == "RLIMIT_CPU")  # SIGXCPU, a second later SIGKILL
    hard = resource.getrlimit(number)[1]
    known = [] if hard == resource.RLIM_INFINITY else [hard]
    with contextlib.suppress(*(() if LINUX else (OSError, ValueError))):
        resource.setrlimit(number, (min([value, *known]), min([most, *known])))

def program(home, most, supervisor):
    prctl(DEATHSIG, KILL)
    if os.getppid() != supervisor: os._exit(1)
    os.chdir(home)
    os.dup2(os.open("stdin", os.O_RDONLY), 0)
    os.unlink("stdin")
    os.set_inheritable(status, False)
    for name, value in (("CPU", cpu), ("AS", memory), ("FSIZE", size), ("CORE", 0), ("NOFILE", 256), ("NPROC", most)):
        limit("RLIMIT_" + name, value)
    prctl(NO_NEW_PRIVS, 1)
    flags = ["-I", "-S", "-B", "-X", "utf8", "-c", launcher, home + "/program.py"]
    os.execve(python, [python, *flags], {**os.environ, "HOME": home, "TMPDIR": home})

def sweep():
    # Where no namespace does it: orphans come to a subreaper, even out of another session.
    end = time.monotonic() + 2
    with contextlib.suppress(OSError):  # none left
        while time.monotonic() < end:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                for child in file.read().split():
                    os.kill(int(child), KILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)

def set_up(spaces, ours):
    isolated, home = list(spaces), base
    if spaces:
        with contextlib.suppress(OSError, AttributeError):
            own_root(size + len(source) + len(given) + 65536)
            isolated, home = [*spaces, "files"], "/work"
    if os.geteuid() == 0:
        become_nobody(home, [] if home == "/work" else [python, os.__file__])
        ours = int(unshare_as_user(0))
    put(home + "/program.py", source)
    put(home + "/stdin", given)
    # Counted within an own user namespace (Linux 5.14), where some are ours; else over all of the user's.
    return ["user"] * root + isolated, home, processes + (ours or 4096)

def supervise(spaces, ours):
    prctl(DEATHSIG, KILL)
    prctl(SUBREAPER, 1)
    isolated, home, most = set_up(spaces, ours)
    prctl(DEATHSIG, KILL)  # lost with root
    prctl(DUMPABLE, 0)  # from here on nobody may trace it, or write to the report in /proc/1/fd
    os.write(status, f"start {' '.join(isolated)}\n".encode())
    begin, supervisor = time.monotonic(), os.getpid()
    child = os.fork()
    if child == 0:
        try:
            program(home, most, supervisor)
        finally:
            os.write(status, b"fail\n")
    late, ended = 0, 0
    while ended != child:
        ended, state, usage = os.wait4(-1, os.WNOHANG)
        if ended == 0:
            if time.monotonic() - begin > wall:
                late = 1
                os.kill(child, KILL)
            time.sleep(min(0.02, 0.001 + (time.monotonic() - begin) / 50))
    code, used = os.waitstatus_to_exitcode(state), usage.ru_utime + usage.ru_stime
    os.write(status, f"end {code} {late} {used} {time.monotonic() - begin}\n".encode())

root, spaces, ours = os.geteuid() == 0, ["processes", "ipc", "network"], 0
with open(0, "rb", closefd=False) as file:
    source, given = file.read(split), file.read()
if not (root and LINUX and libc.unshare(NEW_OTHERS) == 0):
    if root:
        become_nobody(base, [python, os.__file__, base])
    ours = 2 if unshare_as_user(NEW_OTHERS) else 0
    spaces = spaces if ours else []
prctl(DEATHSIG, KILL)
if os.getppid() != parent: sys.exit("the caller is gone")
prctl(SUBREAPER, 1)
first = os.fork()
if first == 0: supervise(spaces, ours)
prctl(DUMPABLE, 0)
if first: os.waitpid(first, 0)  # its namespace is empty by then
if not spaces: sweep()
os._exit(0)
"""
