"""The whole suite, as `make test` runs it; a few tests that fail are run once more, alone.

Hundreds of these tests start processes, kill nodes and wait for both; on a loaded machine one of them fails now and
then. A test that fails again is a failure. One that then passes is named at the end: such a test, or what it tests, is
to be mended. So is one in which a process of the run ended and which passed when repeated: `rerun` counts those.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST = 5
"""Failures from which on nothing is repeated: that many are no accident."""
_TESTS_FAILED = 1
_LAST_FAILED = Path(".pytest_cache") / "v" / "cache" / "lastfailed"


def main(arguments: list[str]) -> int:
    """Run the tests with pytest's arguments; return its exit status."""
    _LAST_FAILED.unlink(missing_ok=True)
    status = subprocess.call([sys.executable, "-m", "pytest", *arguments])
    failed = sorted(json.loads(_LAST_FAILED.read_text())) if _LAST_FAILED.exists() else []
    if status != _TESTS_FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"\n{len(failed)} failed: once more, alone", flush=True)
    again = subprocess.call([sys.executable, "-m", "pytest", "-n", "0", "-v", *failed])
    if again == 0:
        print("\npassed the second time, and to be mended:", *failed, sep="\n  ")
    return again


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
