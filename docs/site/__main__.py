"""Build the documentation site from docs/ into build/site/html: `make site`.

A page that links to nothing, or fetches something from another host, ends the build with an error.
"""

import argparse
import functools
import http.server
import re
import subprocess
import sys
from pathlib import Path

from docs.site import built, pages
from es_ttc.errors import EsTtcError

SITE = Path(__file__).resolve().parent
ROOT = SITE.parents[1]
STAGE = ROOT / "build" / "site"
BUILD_SECONDS = 300
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def main() -> int:
    """Build the site, and serve it on this machine if that is asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    parser.add_argument(
        "--zensical",
        type=Path,
        default=Path(sys.prefix) / "site" / "bin" / "zensical",
        help="the generator's program (default: the one that `make site` installs)",
    )
    parser.add_argument("--serve", type=int, metavar="PORT", help="then serve the site on 127.0.0.1:PORT")
    arguments = parser.parse_args()
    if not arguments.zensical.is_file():
        return _fail(f"there is no generator at [{arguments.zensical}]: run `make site`, which installs it")
    problems = build(arguments.zensical)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return _fail(f"the documentation site has {len(problems)} problem(s)")
    print(f"The site is in {STAGE.relative_to(ROOT)}/html: {built.summary(STAGE / 'html')}.")
    if arguments.serve:
        _serve(arguments.serve)
    return 0


def build(zensical: Path) -> list[str]:
    """Stage and build the site; return what is wrong with it, a sentence each."""
    problems = pages.stage(ROOT, SITE, STAGE)
    try:
        pages.add_mermaid(STAGE)
    except EsTtcError as error:
        problems.append(f"the script of the diagrams is missing: {error}")
    if problems:
        return problems
    command = [str(zensical), "build", "--strict", "--clean", "--config-file", str(STAGE / "zensical.toml")]
    try:
        done = subprocess.run(command, cwd=STAGE, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [f"the generator did not end within {BUILD_SECONDS} seconds"]
    if done.returncode:
        said = _COLOURS.sub("", done.stdout + done.stderr)
        warnings = said.partition("Traceback")[0]  # after warnings it raises an error of its own
        return [warnings if "Warning" in warnings else said]
    return built.problems(STAGE / "html")


def _serve(port: int) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=STAGE / "html")
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
