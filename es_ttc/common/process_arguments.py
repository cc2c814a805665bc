"""Overwrite credentials in this process's arguments, because every user of the machine can read those."""

import re
from pathlib import Path

_USER_INFO = re.compile(rb"(?<=//)[^/@\s\0]+(?=@)")
_ARGUMENTS_START, _ARGUMENTS_END = 48 - 3, 49 - 3  # fields of /proc/PID/stat, counted from the one after the name


def hide_credentials() -> bool:
    """Replace ``user:password`` in URLs in the arguments that process lists show; `sys.argv` does not change.

    Linux only: arguments are in the process's own memory. A process list made before this call shows them.

    Returns:
        Whether something was replaced.
    """
    try:
        shown = Path("/proc/self/cmdline").read_bytes()
        hidden = _USER_INFO.sub(b"***", shown)
        if hidden == shown:
            return False
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
        if end - start != len(shown) or len(hidden) > len(shown):
            return False
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(hidden.ljust(len(shown), b"\0"))
    except (OSError, ValueError, IndexError):
        return False
    return True
