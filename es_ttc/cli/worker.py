"""`es-ttc worker`: does the jobs."""

import logging
from contextlib import ExitStack

import click

from es_ttc.cli.common import engine_flag, given
from es_ttc.settings import Settings


@click.command()
@engine_flag
@click.option("--redis", metavar="URL", help="The Redis that workers share. Default: ES_TTC_REDIS, or one of its own.")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    help="Parts of jobs done side by side. Default: 2; 1 where each would load the model (ES_TTC_LLM_OFFLINE).",
)
@click.option("--verbose", is_flag=True, help="Tell of every turn.")
def worker(engine: str | None, redis: str | None, processes: int | None, verbose: bool) -> int:
    """Do jobs until stopped: the first Ctrl-C ends what is under way, a second one stops at once."""
    try:
        from es_ttc.tasks.app import run_worker
    except ImportError as error:
        from es_ttc.errors import ConfigurationError

        raise ConfigurationError("workers need Celery and a client of Redis: pip install 'es-ttc[jobs]'") from error
    from es_ttc.gateway.logs import configure_logs
    from es_ttc.llm import model_for_jobs
    from es_ttc.tasks.redis_server import OwnRedis, addresses

    settings = Settings(**given(engine=engine, redis=redis))
    model = model_for_jobs(settings)  # a worker without one could do nothing
    processes = processes or (2 if settings.llm_offline is None else 1)
    configure_logs("auto", logging.INFO if verbose else logging.WARNING)
    with ExitStack() as stack:
        if settings.redis is not None:
            url, where = settings.redis.get_secret_value(), "the Redis that is set"
        else:
            url, where = stack.enter_context(OwnRedis()).url, "a Redis of its own"
        broker, url = addresses(url)
        click.echo(f"worker of {processes} processes, {where}, model at {model.url}; Ctrl-C stops it", err=True)
        return run_worker(settings, broker, url, processes=processes)
