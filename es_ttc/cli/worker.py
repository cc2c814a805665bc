"""`es-ttc worker`: encode what is written to followed indices, and process enrichment jobs."""

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import click
from pydantic import Field

from es_ttc.cli.common import EncoderName, EngineUrl, provided
from es_ttc.cli.model_options import command
from es_ttc.settings import Settings

if TYPE_CHECKING:
    from es_ttc.llm import LanguageModel

_REDIS_SECONDS = 15.0  # time in which a Redis that starts together with its workers must answer


@command("es-ttc worker", "es-ttc worker --processes 4", "es-ttc worker --only encode")
def worker(
    *,
    engine: EngineUrl,
    encoder: EncoderName,
    processes: Annotated[
        int | None,
        Field(ge=1, le=256),
        "Number of partitions processed in parallel. Default: 2; 1 with ES_TTC_LLM_OFFLINE.",
    ] = None,
    only: Annotated[
        Literal["encode", "enrich"] | None,
        "The jobs to process. Default: those that encode, and those that enrich if a language model is configured.",
    ] = None,
) -> int:
    """Process jobs until stopped.

    Encodes the documents of indices that `es-ttc index pipeline --encode` has prepared, and enriches documents for
    `es-ttc jobs`. The two have separate processes: a slow language model never delays vectors. ES_TTC_REDIS names the
    Redis that several workers share; without it the worker starts its own.

    The first Ctrl-C finishes the work under way and ends; a second one stops at once. `es-ttc --debug worker` logs
    every turn.
    """
    try:
        from es_ttc.enrichment.jobs.app import encoding_process, run_encoding_worker, run_enrichment_worker
    except ImportError as error:
        from es_ttc.errors import ConfigurationError

        raise ConfigurationError("workers need Celery and a client of Redis: pip install 'es-ttc[worker]'") from error
    from es_ttc.enrichment.jobs.redis_server import EmbeddedRedis, addresses, await_redis
    from es_ttc.serving.logs import configure_logs

    settings = Settings(**provided(engine=engine, encoder=encoder))
    model = None if only == "encode" else _model(settings, required=only == "enrich")
    processes = processes or (2 if settings.llm_offline is None else 1)
    debug = bool(click.get_current_context().obj)
    configure_logs(logging.INFO if debug else logging.WARNING)
    with ExitStack() as stack:
        if settings.redis is not None:
            url, where = settings.redis.get_secret_value(), "the Redis that is set"
        else:
            url, where = stack.enter_context(EmbeddedRedis()).url, "a Redis of its own"
        broker, url = addresses(url)
        await_redis(url, _REDIS_SECONDS)
        if model is None:
            unset = "" if only else "; no language model is configured (ES_TTC_LLM_URL), so it enriches nothing"
            click.echo(f"worker that encodes, {where}{unset}; Ctrl-C stops it", err=True)
            return run_encoding_worker(settings, broker, url)
        encodes = "" if only else " and one that encodes"
        click.echo(
            f"worker of {processes} processes{encodes}, {where}, model at {model.url}; Ctrl-C stops it", err=True
        )
        if not only:
            stack.enter_context(encoding_process(settings, url, debug=debug))
        return run_enrichment_worker(settings, broker, url, processes=processes)


def _model(settings: Settings, *, required: bool) -> "LanguageModel | None":
    from es_ttc.llm import model_for_jobs

    if not required and settings.llm_url is None and settings.llm_offline is None:
        return None
    return model_for_jobs(settings)
