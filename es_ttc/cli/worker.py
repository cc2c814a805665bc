"""`es-ttc worker`: process enrichment jobs."""

import logging
from contextlib import ExitStack

import click

from es_ttc.cli.common import engine_flag, given
from es_ttc.cli.options import examples
from es_ttc.settings import Settings


@click.command(
    epilog=examples(
        "es-ttc worker",
        "es-ttc worker --redis redis://127.0.0.1:6379/0 --processes 4",
    ),
)
@engine_flag
@click.option("--redis", metavar="URL", help="URL of the shared Redis. Default: ES_TTC_REDIS, or an embedded one.")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    help="Number of partitions processed in parallel. Default: 2; 1 with ES_TTC_LLM_OFFLINE.",
)
@click.option("--verbose", is_flag=True, help="Log every turn.")
def worker(engine: str | None, redis: str | None, processes: int | None, verbose: bool) -> int:
    """Process enrichment jobs until stopped.

    The first Ctrl-C finishes the work under way and ends; a second one stops at once.
    """
    try:
        from es_ttc.enrichment.jobs.app import run_worker
    except ImportError as error:
        from es_ttc.errors import ConfigurationError

        raise ConfigurationError("workers need Celery and a client of Redis: pip install 'es-ttc[jobs]'") from error
    from es_ttc.enrichment.jobs.redis_server import EmbeddedRedis, addresses
    from es_ttc.llm import model_for_jobs
    from es_ttc.serving.logs import configure_logs

    settings = Settings(**given(engine=engine, redis=redis))
    model = model_for_jobs(settings)  # a worker needs a model
    processes = processes or (2 if settings.llm_offline is None else 1)
    configure_logs("auto", logging.INFO if verbose else logging.WARNING)
    with ExitStack() as stack:
        if settings.redis is not None:
            url, where = settings.redis.get_secret_value(), "the Redis that is set"
        else:
            url, where = stack.enter_context(EmbeddedRedis()).url, "a Redis of its own"
        broker, url = addresses(url)
        click.echo(f"worker of {processes} processes, {where}, model at {model.url}; Ctrl-C stops it", err=True)
        return run_worker(settings, broker, url, processes=processes)
