"""The steps of docker/Dockerfile, run in their order without Docker: `sudo python docker/rehearse.py [--quick]`.

Each stage is this machine's own root folder under an overlay, in which the repository, the homes and /tmp are empty: a
step finds what the base system has and what earlier steps have put there, and nothing of a checkout. The image's Python
is a bare environment of this machine's (so its version is not that of the base image). At the end the image's command
runs as compose has it: the image's user, no capabilities, no new privileges, a read-only root, no network; `--help`, a
promoted program behind its walls, and the gateway until its own health check passes and its encoder is loaded.

Linux, root and util-linux are needed; everything is gone when it ends. `--quick` installs by uv and its cache in place
of pip, which takes seconds instead of minutes.
"""

import argparse
import ctypes
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker" / "common.yaml"
PYTHON = "/opt/python"
UV = "/opt/uv"
UV_CACHE = "/var/cache/uv"
PASSED = re.compile(r"(PIP|UV|SSL|CURL|REQUESTS|HTTPS?|NO)_\w+|\w+_proxy", re.IGNORECASE)
HIDDEN = sorted({"/tmp", "/root", "/home", f"/{ROOT.parts[1]}"})  # noqa: S108 - the root's own
START_SECONDS = 90
STEP_SECONDS = 900
_CLONE_NEWNET = 0x40000000

PROGRAM = """
import numpy as np
from es_ttc.rescorers.programs.interface import Context, run
from es_ttc.sandbox.process_pool import ProgramLimits, ProgramProcessPool
host = ProgramProcessPool(ProgramLimits())
host.require()
one = np.ones((1, 2), np.float32)
program = host.program("def program(Q, D, S, ctx):\\n    return S + 1\\n")
assert run(program, one, one, Context(["q"], ["d"], ["0"], ["0"], None)).tolist() == [[3.0]]
host.close()
"""
READY = """
import json, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen("http://127.0.0.1:9280/_ttc/ready", timeout=4)
except urllib.error.HTTPError as error:
    answer = error
raise SystemExit(not json.load(answer)["encoder"])
"""
SHIM = f"""#!/bin/sh
# pip install, by uv and its cache; everything else is pip's own.
if [ "$1" != install ]; then exec {PYTHON}/bin/python -m pip "$@"; fi
for one; do shift; [ "$one" = --no-cache-dir ] || set -- "$@" "$one"; done
shift
exec {UV} pip install --quiet --python {PYTHON}/bin/python --link-mode copy "$@"
"""


@dataclass
class Stage:
    """A stage of the build while it is made.

    Attributes:
        root: Its root folder.
        folder: Its working folder.
        user: Who runs its steps.
        environment: Its variables.
    """

    root: Path
    folder: str = "/"
    user: str = "0"
    environment: dict[str, str] = field(default_factory=dict)
    healthcheck: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction of a Dockerfile and its arguments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        yield name, rest.strip()


def ignored(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path is left out of the build's context; the last pattern that matches it counts."""
    out = False
    for pattern in patterns:
        name = pattern.removeprefix("!").removeprefix("**/")
        parts = [path, *(str(parent) for parent in Path(path).parents if str(parent) != "."), Path(path).name]
        if any(fnmatch.fnmatch(part, name) for part in parts) or f"/{name}/" in f"/{path}/":
            out = not pattern.startswith("!")
    return out


def context(folder: Path) -> None:
    """Make the build's context: what Docker would send."""
    lines = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line.strip() for line in lines if line.strip()]
    named = sorted({pattern[1:].partition("/")[0] for pattern in patterns if pattern.startswith("!")})  # after a `*`
    for path in (path for name in named for path in (ROOT / name, *sorted((ROOT / name).rglob("*")))):
        relative = path.relative_to(ROOT)
        if path.is_dir() or ignored(str(relative), patterns):
            continue
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, folder / relative, follow_symlinks=False)


class Build:
    """A build of all stages.

    Args:
        folder: Where roots are.
        by_uv: Whether uv installs.
    """

    def __init__(self, folder: Path, *, by_uv: bool) -> None:
        self._folder = folder
        self._by_uv = by_uv
        self._stages: dict[str, Stage] = {}
        self.context = folder / "context"
        self.context.mkdir()
        context(self.context)
        if by_uv:
            self._uv, self._uv_cache = _uv()
        self._base = self._python()

    def whole(self, text: str) -> Stage:
        """Run all instructions and return the last stage."""
        stage: Stage | None = None
        begun = time.monotonic()
        for name, rest in instructions(text):
            print(f"{time.monotonic() - begun:5.1f} s  {name} {rest}"[:150], flush=True)  # noqa: T201
            if name == "FROM":
                stage = self._from(rest)
                continue
            assert stage is not None  # noqa: S101 - a Dockerfile begins with FROM
            self._step(stage, name, rest)
        assert stage is not None  # noqa: S101
        return stage

    def _from(self, rest: str) -> Stage:
        stage = self._stage(f"stage{len(self._stages)}", f"{self._base}:/")
        self._stages[rest.split()[-1]] = stage
        return stage

    def _stage(self, name: str, lower: str) -> Stage:
        """Return a root with this machine's system and what is in the lower folders, and nothing else."""
        place = self._folder / name
        upper, work, root = (place / one for one in ("upper", "work", "root"))
        for one in (upper, work, root):
            one.mkdir(parents=True)
        mount("-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay", str(root))
        for hidden in HIDDEN:
            if (root / hidden[1:]).is_dir():
                mount("-t", "tmpfs", "-o", "mode=1777", "none", str(root / hidden[1:]))
        base = root / sys.base_prefix[1:]
        if not base.exists():  # it was in a home
            base.mkdir(parents=True)
            mount("--bind", sys.base_prefix, str(base))
        for shared in ("/proc", "/dev", "/sys"):
            mount("--rbind", shared, str(root / shared[1:]))
        stage = Stage(root, environment={"PATH": f"{PYTHON}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})
        stage.environment |= {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
        if self._by_uv:
            stage.environment["UV_CACHE_DIR"] = UV_CACHE
            (root / UV_CACHE[1:]).mkdir(parents=True, exist_ok=True)
            mount("--bind", self._uv_cache, str(root / UV_CACHE[1:]))
        return stage

    def _python(self) -> Path:
        """Make the base image's Python, and return the folder that has it."""
        stage = self._stage("python", "/")
        inside(stage, [f"{sys.base_prefix}/bin/python3", "-m", "venv", PYTHON])
        if self._by_uv:
            shutil.copy2(self._uv, stage.root / UV[1:])
            shim = stage.root / PYTHON[1:] / "bin" / "pip"
            shim.write_text(SHIM)
            shim.chmod(0o755)
        return self._folder / "python" / "upper"

    def _step(self, stage: Stage, name: str, rest: str) -> None:
        match name:
            case "WORKDIR":
                stage.folder = rest
                (stage.root / rest[1:]).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(stage, rest.split())
            case "RUN":
                inside(stage, ["/bin/sh", "-ec", rest])
            case "USER":
                stage.user = rest
            case "ENV":
                stage.environment |= dict(one.split("=", 1) for one in shlex.split(rest))
            case "HEALTHCHECK":
                stage.healthcheck = json.loads(rest[rest.index("[") :])
            case "ENTRYPOINT":
                stage.entrypoint = json.loads(rest)
            case "CMD":
                stage.command = json.loads(rest)
            case "EXPOSE":
                pass
            case _:
                sys.exit(f"[{name}] is not rehearsed here")

    def _copy(self, stage: Stage, words: list[str]) -> None:
        source = self.context
        if words[0].startswith("--from="):
            source = self._stages[words.pop(0).partition("=")[2]].root
        *names, target = words
        into = stage.root / os.path.normpath(os.path.join(stage.folder, target))[1:]  # noqa: PTH118 - inside the root
        for name in names:
            found = source / name.lstrip("/")
            if found.is_dir():
                shutil.copytree(found, into, dirs_exist_ok=True, symlinks=True)
            else:
                to = into / found.name if target.endswith("/") or len(names) > 1 else into
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, to)


def _uv() -> tuple[str, str]:
    """Return uv and its cache."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        sys.exit("--quick: there is no uv beside this Python, nor on the path")
    cache = subprocess.run([found, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    Path(cache).mkdir(parents=True, exist_ok=True)
    return found, cache


def mount(*arguments: str) -> None:
    """Mount something; all of it goes with this process's namespace."""
    subprocess.run(["/usr/bin/env", "mount", *arguments], check=True)  # noqa: S603 - our own folders


def command_in(stage: Stage, command: Sequence[str], *, walled: bool = False) -> list[str]:
    """Return a command that runs another in a stage, by its user; walled as compose has it."""
    entry = re.search(rf"^([^:]+):[^:]*:{stage.user}:(\d+)", (stage.root / "etc/passwd").read_text(), re.MULTILINE)
    group = entry[2] if entry else stage.user
    who = ["--reuid", stage.user, "--regid", group, "--clear-groups"]
    walls = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"] if walled else []
    script = f"cd {shlex.quote(stage.folder)} && exec {shlex.join(command)}"
    return ["chroot", str(stage.root), "setpriv", *who, *walls, "/bin/sh", "-c", script]


def variables(stage: Stage) -> dict[str, str]:
    """Return a stage's variables, with the home of its user."""
    entry = re.search(
        rf"^[^:]+:[^:]*:{stage.user}:.*:([^:]*):[^:]*$", (stage.root / "etc/passwd").read_text(), re.MULTILINE
    )
    return {**stage.environment, "HOME": entry[1] if entry else "/"}


def inside(stage: Stage, command: Sequence[str], *, walled: bool = False) -> None:
    """Run a command in a stage; one that fails ends the rehearsal."""
    done = subprocess.run(  # noqa: S603 - the Dockerfile's own
        command_in(stage, command, walled=walled), env=variables(stage), timeout=STEP_SECONDS, check=False
    )
    if done.returncode:
        sys.exit(f"failed with status {done.returncode}: {shlex.join(command)}"[:2000])


def service() -> tuple[bool, list[str]]:
    """Return whether compose has the gateway's root read-only, and what it mounts as tmpfs."""
    text = COMPOSE.read_text()
    gateway = text[text.index("\n  gateway:") : text.index("\n  worker:")]
    tmpfs = re.search(r"^ +tmpfs: (\[.*\])$", gateway, re.MULTILINE)
    return "read_only: true" in gateway, json.loads(tmpfs[1]) if tmpfs else []


def serve(stage: Stage) -> None:
    """Run the image as compose does, until it is well."""
    read_only, tmpfs = service()
    if read_only:
        mount("-o", "remount,ro", str(stage.root))
        for hidden in HIDDEN:
            if (stage.root / hidden[1:]).is_mount():
                mount("-o", "remount,ro", str(stage.root / hidden[1:]))
    for one in tmpfs:
        path, _, options = one.partition(":")
        mount("-t", "tmpfs", *(["-o", options] if options else []), "none", str(stage.root / path[1:]))
    subprocess.run(["/usr/bin/env", "ip", "link", "set", "lo", "up"], check=True)
    inside(stage, [*stage.entrypoint, "--help"], walled=True)
    inside(stage, ["python", "-c", PROGRAM], walled=True)
    running: subprocess.Popen[Any] = subprocess.Popen(  # noqa: S603
        command_in(stage, [*stage.entrypoint, *stage.command], walled=True), env=variables(stage)
    )
    try:
        _await(stage, running, stage.healthcheck, "the health check")
        _await(stage, running, ["python", "-c", READY], "the encoder")
        running.send_signal(signal.SIGTERM)
        status = running.wait(timeout=30)
    finally:
        running.kill()
        running.wait()
    if status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        sys.exit(f"the gateway ended with status {status}")


def _await(stage: Stage, running: "subprocess.Popen[Any]", command: Sequence[str], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        asked = command_in(stage, command, walled=True)
        if not subprocess.run(asked, env=variables(stage), check=False, stderr=subprocess.DEVNULL).returncode:  # noqa: S603
            print(f"{what}: passed", flush=True)  # noqa: T201
            return
        if running.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{what} does not pass; the gateway's status: {running.poll()}")
        time.sleep(0.3)


def main() -> None:
    """Build, then run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Install by uv and its cache.")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside is None:
        if not sys.platform.startswith("linux") or os.geteuid():
            sys.exit("the rehearsal needs Linux and root: sudo python docker/rehearse.py")
        with tempfile.TemporaryDirectory(prefix="es-ttc-docker-") as folder:
            again = [sys.executable, __file__, "--inside", folder, *(["--quick"] if arguments.quick else [])]
            # Mounts of this namespace alone, processes that end with it.
            unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *again]
            sys.exit(subprocess.run(unshared, check=False).returncode)  # noqa: S603
    mount("-t", "tmpfs", "none", str(arguments.inside))
    stage = Build(arguments.inside, by_uv=arguments.quick).whole(DOCKERFILE.read_text())
    _leave_network()
    serve(stage)
    print("rehearsed: every step, and the gateway as compose runs it", flush=True)  # noqa: T201


def _leave_network() -> None:
    """Have a network of one's own, with nothing in it; `os.unshare` is Python 3.12's."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        sys.exit("the network cannot be left")


if __name__ == "__main__":
    main()
