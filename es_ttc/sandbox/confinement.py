"""Remove a process's rights: resource limits, then a filter of system calls that cannot be removed.

The filter is libseccomp's, through pyseccomp. It lists the allowed calls, so unknown calls are refused too; any other
call kills the process.
"""

import ctypes
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from es_ttc.errors import ConfigurationError

ALLOWED_CALLS = (
    # its one socket, and the shared memory that comes through it
    "read", "write", "sendmsg", "recvmsg", "close",
    # memory
    "brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "mbind",
    # locks, signals to itself, its end
    "futex", "sched_yield", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall",
    "exit", "exit_group",
    # queries of the C library about this process and the clock
    "getpid", "gettid", "getrandom", "clock_gettime", "clock_getres", "gettimeofday", "time", "sched_getaffinity",
    "sysinfo",
)  # fmt: skip

_PR_SET_PDEATHSIG = 1
_MAX_DESCRIPTORS = 64


def seccomp() -> Any:
    """Return the filter's library."""
    if not sys.platform.startswith("linux"):
        raise ConfigurationError(f"programs run in a sandbox that needs Linux, and this is {sys.platform}")
    try:
        import pyseccomp
    except ImportError as error:
        raise ConfigurationError(
            "programs run in a sandbox that needs pyseccomp: pip install 'es-ttc[sandbox]'"
        ) from error
    except RuntimeError as error:
        raise ConfigurationError(
            "programs run in a sandbox that needs libseccomp: install it (`apt install libseccomp2`, "
            "`dnf install libseccomp`)"
        ) from error
    return pyseccomp


def lock(memory: int, cpu_seconds: int) -> None:
    """Permanently restrict this process to computing, with so many more bytes and seconds of processor time."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    taken = _address_space()
    for kind, most in (
        (resource.RLIMIT_AS, taken + memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _MAX_DESCRIPTORS),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (most, most))
    library = seccomp()
    rules = library.SyscallFilter(library.KILL_PROCESS)
    rules.set_attr(library.Attr.CTL_TSYNC, 1)  # for threads that a library has begun, too
    for name in ALLOWED_CALLS:
        _allow(rules.add_rule, library.ALLOW, name)
    rules.load()


def _allow(add: Callable[[Any, str], None], action: Any, name: str) -> None:
    try:
        add(action, name)
    except OSError:  # no such call on this processor (`time` on ARM)
        return


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
