"""Run benchmarks one after the other, each in a process of its own, and keep their tables: `make bench`."""

import subprocess
import sys
from pathlib import Path

import click

from es_ttc.engine.node import process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.settings import Settings

FOLDER = Path(__file__).parent
_PARTS = frozenset(
    {
        "__init__",
        "__main__",
        "bare_servers",
        "common",
        "figures",
        "nnn_penalties",
        "served",
        "simulated_llm",
    }
)
WITH_ENGINE = frozenset(
    {
        "agent_session", "attach_speed", "blend_speed", "corpus_size", "gateway", "on_demand", "pass_through",
        "pictures", "search_cost", "sira", "soak", "storage", "table_iv",
    }
)  # fmt: skip


def names() -> list[str]:
    """Return every benchmark's name."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in _PARTS)


@click.command(help=f"Run the named benchmarks, all where none is named: {', '.join(names())}.")
@click.argument("chosen", nargs=-1, metavar="[NAME]...", type=click.Choice(names()))
@click.option(
    "--out", type=click.Path(path_type=Path), default="reports", show_default=True, help="Folder of the tables."
)
def main(chosen: tuple[str, ...], out: Path) -> None:
    """Run them; the first that fails ends the run."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = chosen or names()
    if WITH_ENGINE.isdisjoint(wanted):
        for name in wanted:
            _run(name, [], out)
        return
    spec = NodeSpec(cache_dir=Settings().cache_dir, name="benchmarks", port=0, owned=True, keep_data=False)
    with process.start_node(spec) as node:
        for name in wanted:
            _run(name, ["--engine", node.url] if name in WITH_ENGINE else [], out)


def _run(name: str, arguments: list[str], out: Path) -> None:
    click.echo(f"{name}: running", err=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    done = subprocess.run(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True, check=False)
    click.echo(done.stdout)
    if done.returncode:
        raise click.ClickException(f"benchmark [{name}] ended with status {done.returncode}")
    (out / f"{name}.md").write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
