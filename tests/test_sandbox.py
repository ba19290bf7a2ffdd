"""The sandbox against programs that attack it, with the kernel's namespaces and without them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dapo.errors import RewardError
from dapo.reward import sandbox
from dapo.reward.sandbox import Limits, Outcome, Status, run_program

LINUX = sys.platform == "linux"
ALL = ("processes", "ipc", "network", "files")
SHORT = Limits(wall_s=0.5)
PLENTY = Limits(wall_s=30.0, cpu_s=10.0)  # where the time is not the point


@cache
def granted(mode: str) -> set[str] | None:
    """What runs in this mode are isolated by; None where they are refused. Asked once: each run takes time."""
    outcome = run_program("pass")
    return None if outcome.status is Status.ERROR else set(outcome.isolated)


@pytest.fixture(params=["namespaces", "fallback"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of running: what the kernel grants, and a kernel that grants no namespace."""
    name: str = request.param
    if name == "fallback":
        refuse_namespaces(monkeypatch)
        if granted(name) is None:
            pytest.skip("root, and nobody can read no Python here")
    elif "files" not in (granted(name) or ()):
        pytest.skip("this kernel grants no namespaces")
    return name


@pytest.fixture
def isolated() -> None:
    """For what only namespaces stop."""
    missing = set(ALL) - (granted("namespaces") or set())
    if missing:
        pytest.skip(f"this kernel doesn't grant {', '.join(sorted(missing))}")


def refuse_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose seccomp filter refuses unshare; with a Python that nobody can read."""
    assert "libc.unshare(" in sandbox.RUNNER
    monkeypatch.setattr(sandbox, "RUNNER", sandbox.RUNNER.replace("libc.unshare(", "bool("))
    if LINUX and os.geteuid() == 0 and os.path.exists("/usr/bin/python3"):
        monkeypatch.setattr(sys, "_base_executable", "/usr/bin/python3")


def named(name: str) -> list[int]:
    """Living processes of that name (at most 15 characters) on the whole machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text()
                if f"({name})" in state and f"({name}) Z" not in state:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def soon_none(name: str) -> bool:
    """Whether no process of that name is left within a second; the kernel buries in its own time."""
    end = time.monotonic() + 1
    while named(name) and time.monotonic() < end:
        time.sleep(0.01)
    return not named(name)


def as_named(name: str, code: str) -> str:
    """The program, with a name to find it and all it forks by."""
    return f"open('/proc/self/comm', 'w').write({name!r})\n{code}"


# ---- an honest program


def test_a_program_reads_computes_and_prints(mode: str) -> None:
    """stdin, both outputs, the exit status and the standard library."""
    code = "import sys, json, collections\nprint(json.dumps(sys.stdin.read()))\nprint('e', file=sys.stderr)\nexit(3)"
    outcome = run_program(code, "zwölf\n", PLENTY)
    assert (outcome.status, outcome.returncode) == (Status.FAILED, 3)
    assert (outcome.stdout, outcome.stderr) == ('"zw\\u00f6lf\\n"\n', "e\n")
    assert 0 < outcome.seconds < 5


def test_the_program_is_main_and_alone(mode: str) -> None:
    """As if run by name: __main__, its file, no arguments, an own empty folder, stdlib only."""
    code = """
import os, sys, inspect
print(__name__, os.path.basename(__file__), len(sys.argv), sorted(os.listdir('.')), os.getcwd() == os.environ['HOME'])
def f(): return 1
print(inspect.getsource(f).strip(), sorted(set(globals()) - {'os', 'sys', 'inspect', 'f'} - set(dir(type(sys)('m')))))
open('x', 'w').write('1'); print(open('x').read(), 'site' in sys.modules)
try: import numpy
except ImportError: print('none')
"""
    outcome = run_program(code, limits=PLENTY)
    assert outcome.stderr == ""
    assert outcome.stdout.splitlines() == [
        "__main__ program.py 1 ['program.py'] True",
        "def f(): return 1 ['_', '__annotations__', '__builtins__', '__file__']",
        "1 False",
        "none",
    ]


def test_large_input_and_input_nobody_reads(mode: str) -> None:
    """Neither fills a pipe that somebody waits for."""
    text = "0123456789abcdef" * 2**18  # 4 MiB
    outcome = run_program("import sys\nprint(len(sys.stdin.read()))", text, PLENTY)
    assert outcome.stdout == f"{len(text)}\n"
    assert run_program("print(1)", text, PLENTY).stdout == "1\n"
    assert run_program("print(len(open('/dev/stdin').read()))", "abc", PLENTY).stdout == "3\n"


@pytest.mark.parametrize(
    ("code", "status", "stdout"),
    [
        ("print('\u00e4\u4e2d\U0001f600')", Status.OK, "\u00e4\u4e2d\U0001f600\n"),
        ("print(1)\r\nif True:\r\n    print(2)\r\n", Status.OK, "1\n2\n"),
        ("\ufeffprint(1)", Status.OK, "1\n"),
        ("from __future__ import annotations\nprint(1)", Status.OK, "1\n"),
        ("print(1)\n\x0cprint(2)", Status.OK, "1\n2\n"),
        ("", Status.OK, ""),
        ("print('\udc80')", Status.FAILED, ""),
        ("print(1)\0", Status.FAILED, ""),
        ("\0" * 100, Status.FAILED, ""),
        ("# -*- coding: nonsense -*-\nprint(1)", Status.FAILED, ""),
        ("print(", Status.FAILED, ""),
        ("(" * 100_000, Status.FAILED, ""),
        ("1+" * 100_000 + "1", None, None),
    ],
)
def test_any_text_is_a_program(code: str, status: Status | None, stdout: str | None) -> None:
    """Whatever the text, the program fails and the sandbox doesn't."""
    outcome = run_program(code, "\ud800\0", PLENTY)
    assert outcome.status is status if status else outcome.status is not Status.ERROR
    assert stdout is None or outcome.stdout == stdout


def test_output_that_is_no_text(mode: str) -> None:
    """Bytes that aren't UTF-8 are replaced."""
    assert run_program("import os\nos.write(1, b'a\\xff\\0b')", limits=PLENTY).stdout == "a\ufffd\0b"


@pytest.mark.parametrize("name", ["wall_s", "cpu_s", "memory_mb", "processes", "file_mb", "output_kb"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", None])
def test_a_limit_that_is_none_is_refused(name: str, value: Any) -> None:
    """By name."""
    with pytest.raises(RewardError, match=f"limits.{name} = .*write a number above 0"):
        Limits(**{name: value})


# ---- time, memory, processes, output, files


@pytest.mark.parametrize("code", ["while True: pass", "import time\ntime.sleep(60)", "import signal\nsignal.pause()"])
def test_the_wall_limit(mode: str, code: str) -> None:
    """Busy or asleep."""
    begin = time.monotonic()
    outcome = run_program(code, limits=Limits(wall_s=0.4))
    assert outcome.status is Status.TIMEOUT
    assert 0.4 <= outcome.seconds <= time.monotonic() - begin < 4


@pytest.mark.parametrize("deaf", [False, True])
def test_the_cpu_limit(deaf: bool) -> None:
    """By SIGXCPU, and a second later for those who ignore it."""
    code = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" * deaf + "while True: pass"
    outcome = run_program(code, limits=Limits(wall_s=30, cpu_s=1))
    assert outcome.status is Status.TIMEOUT
    assert outcome.returncode == (-signal.SIGKILL if deaf else -signal.SIGXCPU)


@pytest.mark.skipif(not LINUX, reason="macOS doesn't limit memory")
@pytest.mark.parametrize("code", ["bytearray(10**10)", "x = [0]\nwhile True: x += x", "x = 'a' * (1 << 40)"])
def test_memory(mode: str, code: str) -> None:
    """At once or step by step."""
    outcome = run_program(code, limits=Limits(memory_mb=128))
    assert (outcome.status, outcome.returncode) == (Status.MEMORY, 1)


def test_recursion_without_end() -> None:
    """However the interpreter dies of it."""
    code = "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return [f(y) for y in [x]]\nf(1)"
    outcome = run_program(code, limits=Limits(wall_s=5, memory_mb=64))
    assert outcome.status in (Status.FAILED, Status.MEMORY, Status.TIMEOUT)
    assert run_program("def f(): f()\nf()", limits=PLENTY).stderr.rstrip().endswith("maximum recursion depth exceeded")


BOMB = """
import os, time
made = 0
try:
    while made < 40:
        if os.fork() == 0: time.sleep(60)
        made += 1
except BlockingIOError: pass
print(made, flush=True)
"""


def test_a_fork_bomb_meets_the_limit(isolated: None) -> None:
    """The count is this run's own; the children die with it."""
    name = f"b{secrets.token_hex(5)}"
    limits = Limits(processes=8, wall_s=5)
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda _: run_program(as_named(name, BOMB), limits=limits), range(3)))
    assert [outcome.stdout for outcome in outcomes] == ["7\n"] * 3
    assert soon_none(name)


def test_a_fork_bomb_that_goes_on(isolated: None) -> None:
    """Every copy forks, and goes on when it can't."""
    name = f"b{secrets.token_hex(5)}"
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert run_program(as_named(name, code), limits=Limits(processes=8, wall_s=0.5)).status is Status.TIMEOUT
    assert soon_none(name)


def test_threads_count_as_processes(isolated: None) -> None:
    """And a pool within the limit works."""
    code = "from concurrent.futures import *\nprint(sum(ThreadPoolExecutor(4).map(abs, range(9))))"
    assert run_program(code, limits=PLENTY).stdout == "36\n"
    code = "from threading import Thread\nfrom time import sleep\n"
    code += "for _ in range(40): Thread(target=sleep, args=(9,), daemon=True).start()"
    assert "can't start new thread" in run_program(code, limits=PLENTY).stderr


def test_multiprocessing_works(isolated: None) -> None:
    """Semaphores need /dev/shm."""
    code = (
        "import multiprocessing as m\nif __name__ == '__main__':\n    with m.Pool(2) as p: print(p.map(abs, [-1, 2]))"
    )
    outcome = run_program(code, limits=PLENTY)
    assert outcome.stdout == "[1, 2]\n", outcome.stderr


@pytest.mark.parametrize("code", ["while True: print('x' * 10**5)", "import os\nwhile True: os.write(1, b'x' * 10**6)"])
def test_a_flood_of_output_ends_the_program(mode: str, code: str) -> None:
    """At once, not at the wall limit, and no more is kept than the limit."""
    begin = time.monotonic()
    outcome = run_program(code, limits=Limits(output_kb=64, wall_s=20))
    assert (outcome.status, outcome.cut, len(outcome.stdout)) == (Status.FAILED, True, 64 * 1024)
    assert time.monotonic() - begin < 5


def test_output_up_to_the_limit_is_whole(mode: str) -> None:
    """One byte more is not."""
    limits = Limits(output_kb=64, wall_s=20)
    outcome = run_program("print('x' * 65535)", limits=limits)
    assert (outcome.status, len(outcome.stdout), outcome.cut) == (Status.OK, 65536, False)
    assert run_program("print('x' * 65536)", limits=limits).cut


def test_a_flood_of_errors_is_dropped(mode: str) -> None:
    """stderr is for people: it is cut, and the program goes on."""
    code = "import sys\nfor _ in range(100): sys.stderr.write('x' * 10**5)\nprint('done')"
    tracemalloc.start()
    try:
        outcome = run_program(code, limits=Limits(output_kb=64, wall_s=20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 10**6  # of the ten it wrote
    assert (outcome.status, outcome.stdout, len(outcome.stderr)) == (Status.OK, "done\n", 64 * 1024)


def test_a_huge_file(mode: str) -> None:
    """One file."""
    outcome = run_program("f = open('f', 'wb')\nfor _ in range(100): f.write(b'x' * 10**5)", limits=Limits(file_mb=1))
    assert outcome.status is Status.FAILED
    assert "File too large" in outcome.stderr


def test_many_files_and_many_names(isolated: None) -> None:
    """All files together, their number, and the other places one may write to."""
    code = "for i in range(9):\n    with open(f'{place}/{i}', 'wb') as f: f.write(b'x' * 900_000)"
    for place in (".", "/tmp", "/dev/shm", "/"):
        outcome = run_program(f"place = {place!r}\n{code}", limits=Limits(file_mb=1, wall_s=20))
        assert outcome.status is Status.FAILED
        assert "No space left" in outcome.stderr or "Permission denied" in outcome.stderr
    code = "for i in range(10**5): open(str(i), 'w').close()"
    assert "No space left" in run_program(code, limits=PLENTY).stderr


# ---- what it reaches


def test_no_secret_is_inherited(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither variables nor open files, nor the code of the runner."""
    monkeypatch.setenv("DAPO_TEST_SECRET", "hush")
    with tempfile.TemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os, sys\nprint(sorted(os.environ))\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))"
        outcome = run_program(
            code if LINUX else "import os\nprint(sorted(os.environ))\nprint([0, 1, 2, 3])", limits=PLENTY
        )
    names, descriptors = outcome.stdout.splitlines()
    assert set(eval(names)) <= {"HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TMPDIR"}
    assert descriptors == "[0, 1, 2, 3]"  # 3 is the listing itself


CONNECT = """
import socket, sys
family, place = {place!r}
try:
    socket.socket(family).connect(place)
    print("connected")
except OSError as error: print("no:", error)
"""


def connects(family: int, place: Any) -> tuple[Outcome, bool]:
    """What a program says that connects to a listener of ours, and whether somebody came."""
    with socket.socket(family) as listener:
        listener.bind(place)
        listener.listen()
        listener.settimeout(0.2)
        code = CONNECT.format(place=(int(family), listener.getsockname()))
        outcome = run_program(code, limits=PLENTY)
        try:
            listener.accept()[0].close()
        except TimeoutError:
            return outcome, False
        return outcome, True


def test_the_network_is_cut_where_it_says_so(mode: str) -> None:
    """And where it doesn't, the same program gets through: the test can fail."""
    outcome, came = connects(socket.AF_INET, ("127.0.0.1", 0))
    assert came is ("network" not in outcome.isolated)
    assert outcome.stdout.startswith("no:" if "network" in outcome.isolated else "connected")


def test_no_socket_by_name(isolated: None, tmp_path: Path) -> None:
    """Neither in the file system nor abstract."""
    for place in (str(tmp_path / "s"), f"\0dapo-{secrets.token_hex(8)}"):
        outcome, came = connects(socket.AF_UNIX, place)
        assert not came
        assert outcome.stdout.startswith("no:")


def test_files_of_ours_do_not_exist(isolated: None, tmp_path: Path) -> None:
    """Neither to read nor to write, nor anything else outside of the system and this Python."""
    (tmp_path / "answers").write_text("42")
    code = f"""
import os
for path in [{str(tmp_path / "answers")!r}, {__file__!r}, "/etc/passwd", "/etc/shadow", "/var/run", "/sys/kernel"]:
    print(os.path.exists(path))
for path in [os.__file__, "/usr/x", "/bin/x", os.path.dirname(os.__file__) + "/x.py"]:
    try: print(open(path, "a"))
    except OSError as error: print("no")
print(sorted(set(os.listdir("/")) - {{"bin", "sbin", "lib", "lib32", "lib64", "usr", "nix", "etc"}}))
"""
    outcome = run_program(code, limits=PLENTY)
    *answers, root = outcome.stdout.splitlines()
    assert answers == ["False"] * 6 + ["no"] * 4, outcome.stderr
    assert set(eval(root)) <= {"dev", "proc", "tmp", "work", Path(sys.base_prefix).parts[1]}


def test_what_it_shares_is_read_only(isolated: None) -> None:
    """Whoever owns it: all mounts but its own root, the devices and /proc."""
    code = "for line in open('/proc/self/mountinfo'): print(*line.split()[4:6])"
    mounts = dict(line.split() for line in run_program(code, limits=PLENTY).stdout.splitlines())
    assert {"/", "/usr", "/proc", "/dev/null"} <= set(mounts)
    writable = {place for place, options in mounts.items() if not options.startswith("ro,")}
    assert {place for place in writable if not place.startswith(("/dev/", "/proc"))} == {"/"}


def test_it_has_no_power(isolated: None) -> None:
    """Not root, no capabilities, no new privileges, no namespaces of its own, no way into its supervisor."""
    code = """
import ctypes, os
libc = ctypes.CDLL(None)
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(os.getuid() != 0, int(status["CapEff"], 16), int(status["CapPrm"], 16), status["NoNewPrivs"], os.getppid())
print([libc.unshare(flag) for flag in (1 << 28, 1 << 17, 1 << 30)], libc.chroot(b"/tmp"))
print(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None), libc.ptrace(16, 1, 0, 0), libc.setuid(0))
for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/fd", "/proc/1/root"):
    try: print(os.listdir(path) if path.endswith(("fd", "root")) else open(path, "rb").read(1))
    except OSError as error: print(type(error).__name__)
print([name for name in os.listdir("/proc") if name.isdigit()])
"""
    lines = run_program(code, limits=PLENTY).stdout.splitlines()
    assert lines[:3] == ["True 0 0 1 1", "[-1, -1, -1] -1", "-1 -1 -1"]
    assert lines[3:7] == ["PermissionError"] * 4
    assert lines[7] == "['1', '2']"


@pytest.mark.skipif(not LINUX or os.geteuid() != 0, reason="only root can give it up")
def test_root_is_given_up(mode: str) -> None:
    """In either mode the program is nobody."""
    outcome = run_program("import os\nprint(os.getresuid(), os.getgroups())", limits=PLENTY)
    assert "user" in outcome.isolated
    assert outcome.stdout.startswith("(65534, 65534, 65534) [")
    assert "0" not in outcome.stdout.rpartition("[")[2]


@pytest.mark.skipif(not LINUX or os.geteuid() != 0, reason="only root is refused")
def test_root_that_cannot_be_given_up_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No namespaces and a Python that nobody can read: nothing runs, and stderr has the mend."""
    refuse_namespaces(monkeypatch)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    (locked / "python").symlink_to(sandbox.os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    monkeypatch.setattr(sandbox.os.path, "realpath", lambda path: str(locked / "python"))
    outcome = run_program("print(1)")
    assert (outcome.status, outcome.stdout) == (Status.ERROR, "")
    assert "chmod a+rx" in outcome.stderr


# ---- who outlives whom

DETACH = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        if {closed}: os.closerange(0, 3)
        time.sleep(60)
    os._exit(0)
time.sleep({seconds})
print("end")
"""


@pytest.mark.skipif(not LINUX, reason="macOS has no subreaper")
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("seconds", "status"), [(0.1, Status.OK), (60, Status.TIMEOUT)])
def test_a_detached_grandchild_dies(mode: str, seconds: float, status: Status, closed: bool) -> None:
    """In a session of its own, orphaned, with our pipes open or closed; at the end and at the limit."""
    name = f"g{secrets.token_hex(5)}"
    begin = time.monotonic()
    outcome = run_program(as_named(name, DETACH.format(seconds=seconds, closed=closed)), limits=SHORT)
    assert outcome.status is status
    assert time.monotonic() - begin < 5
    assert soon_none(name)


@pytest.mark.skipif(not LINUX, reason="writes to /proc")
def test_the_report_cannot_be_forged(mode: str) -> None:
    """The open files of those who watch it are out of reach, even of a program of their own user."""
    code = """
import os
pid, done = os.getppid(), 0
for _ in range(2):
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with open(f"/proc/{pid}/fd/{name}", "wb") as file: done += file.write(b"end 0 0 0 0\\n")
    except OSError: pass
    try: pid = int(open(f"/proc/{pid}/stat").read().split()[3])
    except OSError: pass
print(done)
exit(1)
"""
    outcome = run_program(code, limits=PLENTY)
    assert (outcome.status, outcome.returncode, outcome.stdout) == (Status.FAILED, 1, "0\n")


def test_a_program_that_kills_its_parent(mode: str) -> None:
    """The caller lives; where the supervisor is out of reach the program merely goes on."""
    outcome = run_program("import os\nos.kill(os.getppid(), 9)\nprint('alive', flush=True)", limits=PLENTY)
    if mode == "namespaces":
        assert (outcome.status, outcome.stdout) == (Status.OK, "alive\n")
    else:
        assert outcome.status in (Status.FAILED, Status.OK)


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_a_run_ends_even_if_a_survivor_holds_the_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without namespaces a program can kill both who watch it; the caller then waits for nobody."""
    refuse_namespaces(monkeypatch)
    if granted("fallback") is None:
        pytest.skip("root, and nobody can read no Python here")
    code = DETACH.format(seconds=0.1, closed=False).replace("sleep(60)", "sleep(4)")
    code += "\nos.kill(int(open(f'/proc/{os.getppid()}/stat').read().split()[3]), 9)\ntime.sleep(60)"
    begin = time.monotonic()
    outcome = run_program(code, limits=PLENTY)
    assert outcome.status is Status.FAILED
    assert time.monotonic() - begin < 2.5


def test_a_program_that_kills_everybody(isolated: None) -> None:
    """Everybody it knows is itself."""
    code = "import os\nfor pid in (-1, 1):\n    try: os.kill(pid, 9)\n    except OSError: pass\nprint('alive')"
    assert run_program(code, limits=PLENTY).stdout == "alive\n"
    assert run_program(f"import os\nos.kill({os.getpid()}, 9)", limits=PLENTY).status is Status.FAILED
    assert run_program("import os\nos.killpg(0, 9)", limits=PLENTY).returncode == -9


def test_a_program_that_dies_of_a_signal(mode: str) -> None:
    """Reported as minus its number, SIGKILL of its own is no time limit."""
    for number in (signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGABRT):
        outcome = run_program(f"import os\nos.kill(os.getpid(), {int(number)})", limits=PLENTY)
        assert (outcome.status, outcome.returncode) == (Status.FAILED, -number)


def test_closed_outputs_are_no_end(mode: str) -> None:
    """A program that closes its pipes is still waited for, and still limited."""
    code = "import os, time\nos.closerange(0, 99)\ntime.sleep({})\nos._exit(7)"
    outcome = run_program(code.format(0.2), limits=SHORT)
    assert (outcome.status, outcome.returncode) == (Status.FAILED, 7)
    assert run_program(code.format(60), limits=Limits(wall_s=0.3)).status is Status.TIMEOUT


@pytest.mark.parametrize("code", ["print(1)", "while True: pass", "import os\nos.mkdir('d', 0)\nos.abort()"])
def test_nothing_is_left_behind(isolated: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """No folder, no open file, no zombie."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    descriptors, others = len(os.listdir("/proc/self/fd")), children.read_text()
    run_program(code, limits=Limits(wall_s=0.3))
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert children.read_text() == others


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_an_interrupted_caller_leaves_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a program runs."""
    name = f"i{secrets.token_hex(5)}"
    folders: list[str] = []

    def interrupt(process: Any, *_: Any) -> Any:
        folders.append(os.readlink(f"/proc/{process.pid}/cwd"))
        while not named(name):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "_read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_program(as_named(name, "while True: pass"), limits=PLENTY)
    assert soon_none(name)
    assert not os.path.exists(folders[0])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda patch: patch.setattr(sys, "_base_executable", "/nonexistent/python"),
        lambda patch: patch.setattr(sys, "_base_executable", "/bin/false"),
        lambda patch: patch.setattr(tempfile, "tempdir", "/nonexistent"),
        lambda patch: patch.setattr(sandbox, "RUNNER", "raise ValueError('broken')"),
        lambda patch: patch.setattr(sandbox, "RUNNER", sandbox.RUNNER.replace("os.execve(", "os.nothing(")),
    ],
)
def test_a_sandbox_that_fails_says_so(spoil: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """An ERROR, never an exception and never the program's fault."""
    spoil(monkeypatch)
    assert run_program("print(1)").status is Status.ERROR


# ---- many at once


def test_eight_threads() -> None:
    """Each gets its own answer."""
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda i: run_program("print(int(input()) ** 2)", str(i), PLENTY), range(24)))
    assert [outcome.stdout for outcome in outcomes] == [f"{i * i}\n" for i in range(24)]


def test_a_thread_that_ends_takes_no_other_run_along() -> None:
    """The death signal is bound to the thread that started the run, which waits for it."""
    results: list[str] = []
    long = threading.Thread(
        target=lambda: results.append(run_program("import time\ntime.sleep(0.4)\nprint(1)", "", PLENTY).stdout)
    )
    short = threading.Thread(target=lambda: run_program("pass"))
    for thread in (long, short):
        thread.start()
    for thread in (short, long):
        thread.join()
    assert results == ["1\n"]


def test_asyncio() -> None:
    """Through to_thread, beside a loop that goes on."""

    async def main() -> list[Outcome]:
        return await asyncio.gather(*(asyncio.to_thread(run_program, f"print({i})", "", PLENTY) for i in range(4)))

    assert [outcome.stdout for outcome in asyncio.run(main())] == ["0\n", "1\n", "2\n", "3\n"]
