"""`es-ttc ingest`: write documents from files or standard input into an index, with their features."""

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field
from rich.progress import Progress

from es_ttc.cli.common import (
    AsJson,
    EncoderOptions,
    EngineUrl,
    loaded_encoder,
    mebibytes,
    print_json,
    progress_bar,
    provided,
    stderr,
    stop_on_sigterm,
    strips_html,
    take_proposal,
    warn_of_texts,
)
from es_ttc.cli.model_options import command
from es_ttc.cli.options import StripHtml, TextFields
from es_ttc.cli.size_estimates import longer, size_sentence
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EncoderError, EngineError, InvalidRequest
from es_ttc.index.ingest import DeadLetterFile, IngestOptions, IngestResult, Inputs, compose, open_source
from es_ttc.index.ingest import ingest as ingest_documents
from es_ttc.index.ingest.bulk import BatchLimits
from es_ttc.index.ingest.checkpoint import IngestCheckpoint, IngestRunKey, fingerprints
from es_ttc.index.ingest.columns import ColumnType, parse_types
from es_ttc.index.ingest.encode_parts import EncodeProcesses
from es_ttc.index.ingest.pipeline import ReportIngest
from es_ttc.index.ingest.proposal import describe, number_fields, propose_fields
from es_ttc.index.ingest.readers import Csv, Record, count_records
from es_ttc.index.ingest.size_estimate import estimate_size, share_with_text
from es_ttc.index.mappings.contents import stored_bytes
from es_ttc.index.mappings.encoder import load_encoder_for
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.merging import merge_segments
from es_ttc.index.mappings.spec import DEFAULT_FIELDS, IndexSpec
from es_ttc.settings import Settings

_PEEKED = 50
_OF_ACTIONS = frozenset({"_id", "_index", "_type", "pipeline", "require_alias", "routing", "version", "version_type"})


@dataclass(frozen=True, slots=True)
class IngestCommand:
    """The options of the command line."""

    name: str
    files: tuple[str, ...]
    text_fields: tuple[str, ...] | None
    options: IngestOptions
    resume: bool
    dead_letters: Path
    processes: int
    merge: bool
    types: str
    yes: bool
    strip_html: str

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's file, next to the dead-letter file."""
        return self.dead_letters.with_suffix(".checkpoint.json")


@command(
    "es-ttc ingest articles articles.jsonl",
    "es-ttc ingest articles part-1.parquet part-2.parquet --id-field sku --text-fields title,body",
    "es-ttc ingest shop products.csv --types zip=text,price=number --yes",
    "es-ttc ingest articles articles.jsonl --resume",
    "es-ttc ingest articles articles.jsonl --processes 8",
    "zcat dump.jsonl.gz | es-ttc ingest articles -",
    "es-ttc ingest handbook docs/",
)
def ingest(
    name: str,
    files: Annotated[tuple[str, ...], "FILE..."],
    /,
    *,
    engine: EngineUrl,
    encoding: EncoderOptions,
    id_field: Annotated[str | None, "Field of ids. Default: `_id`, else a hash of the document's content."] = None,
    text_fields: TextFields = None,
    types: Annotated[
        str,
        "--types COLUMN=TYPE,...",
        "Types of columns of CSV: text, integer, number, decimal-comma, boolean, date; `text` for all. The others are "
        "found from the first 1,000 rows, and shown.",
    ] = "auto",
    strip_html: StripHtml = "auto",
    yes: Annotated[bool, "Accept the proposed fields of a new index."] = False,
    resume: Annotated[bool, "Resume a stopped run of the same command."] = False,
    batch_mb: Annotated[float, Field(ge=0.1, le=1000), "Size of a bulk request, in MB."] = 8.0,
    processes: Annotated[
        int,
        Field(ge=1, le=64),
        "Number of processes that encode. Each has its own copy of the encoder, so its memory too.",
    ] = 1,
    merge: Annotated[
        bool,
        "Merge the index's segments at the end: features then take less than half of the space. The engine reads and "
        "writes the index once more, after up to a minute.",
    ] = False,
    as_json: AsJson,
) -> int:
    """Write documents with their features into the index NAME.

    A FILE is .jsonl, .ndjson, .csv or .tsv (each also .gz), .parquet, or - for JSON lines on standard input. It may
    also be a document (.md, .html, .txt, .pdf) or a folder of documents: the ids are their paths in the folder, the
    titles their first headings.

    A missing index is created with defaults. If its documents have no `text`, the fields to encode and the id are
    proposed from the first documents. Documents that the index already holds, unchanged, are skipped, so a second run
    costs little. A document with a known id replaces the old one.

    Exit status: 0 when every document is in the index, which is queried for each of them at the end; 1 when some were
    rejected (the others are in the index), are missing at the end, or the run failed; 130 when it was stopped. Rejected
    documents are appended to NAME.rejected.jsonl in this folder, with the reason. --resume continues a stopped or
    failed run.

    Documents that the engine cannot accept for now (it is busy, its disk is full, a shard or a node is missing) are
    sent again for 150 s, and never count as rejected.
    """
    if Path(name).is_file() and not Path(files[0]).exists():
        raise InvalidRequest(
            f"[{name}] is a file, and the name of the index comes first: es-ttc ingest {files[0]} {name}"
        )
    settings = encoding.settings(Settings, engine=engine)
    writing = IngestOptions(id_field, BatchLimits(bytes=int(batch_mb * 2**20)))
    rejected = Path(f"{name}.rejected.jsonl")
    request = IngestCommand(
        name, files, text_fields, writing, resume, rejected, processes, merge, types, yes, strip_html
    )
    try:
        outcome, tokens_read, size = asyncio.run(_run(settings, request))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo(f"es-ttc: stopped; {_how_to_go_on(files)}", err=True)
        return 130
    except (EngineError, EncoderError):
        if request.checkpoint.exists():
            click.echo(f"es-ttc: not finished; {_how_to_go_on(files)}", err=True)
        raise
    if as_json:
        print_json({**_as_dict(outcome, request), "bytes": size})
    else:
        click.echo(_sentence(outcome, tokens_read))
        if size is not None:
            smaller = "" if merge else " (less after merges of its segments: now with --merge, or later by the engine)"
            click.echo(f"index [{name}] takes {mebibytes(size)}{smaller}", err=True)
    for sentence in _problems(outcome, rejected):
        click.echo(sentence, err=True)
    return 0 if outcome.complete else 1


def _rejected(count: int) -> str:
    return f"{count:,} {'document was' if count == 1 else 'documents were'} rejected"


def _problems(outcome: IngestResult, rejected: Path) -> Iterator[str]:
    if outcome.repeated:
        yield (
            f"es-ttc: {outcome.repeated:,} of the records have the id of an earlier one: the last of each id is in the "
            "index"
        )
    if outcome.empty:
        documents = "document has" if outcome.empty == 1 else "documents have"
        yield f"es-ttc: {outcome.empty:,} {documents} no text in the index's text fields"
    if outcome.rejected:
        yield f"es-ttc: {_rejected(outcome.rejected)}: see {rejected}"
        yield from (f"  {reason}" for reason in outcome.reasons)
        if outcome.rejected > len(outcome.reasons):
            yield f"  and {outcome.rejected - len(outcome.reasons):,} more"
    if outcome.rejected_before:
        yield f"es-ttc: {_rejected(outcome.rejected_before)} before this run was resumed: see {rejected}"
    if outcome.missing:
        yield (
            f"es-ttc: {outcome.missing:,} documents were acknowledged and are not in the index any more "
            f"({', '.join(outcome.missing_ids)}): run the same command without --resume to write them again"
        )


async def _run(settings: Settings, request: IngestCommand) -> tuple[IngestResult, int, int | None]:
    types = parse_types(request.types)
    inputs = Inputs([open_source(file, types) for file in request.files])
    stop_on_sigterm()
    async with connected(settings) as engine:
        request, index, encoder = await _ready(engine, settings, request, inputs)
        run, checkpoint = _checkpoint(index, request, encoder)
        spec = index.own_spec
        with DeadLetterFile(request.dead_letters, run) as dead_letters, progress_bar() as bar:
            rejected = dead_letters.forget(checkpoint.position) if checkpoint else ()
            outcome = await ingest_documents(
                engine,
                index,
                inputs,
                encoder,
                dead_letters=dead_letters,
                options=_options(request, settings, spec),
                checkpoint=checkpoint,
                rejected_before=rejected,
                report=_reporter(bar),
            )
        return outcome, spec.tokens_read, await _size(engine, index.index, merge=request.merge)


def _options(request: IngestCommand, settings: Settings, spec: IndexSpec) -> IngestOptions:
    if request.processes == 1:
        return request.options
    load = partial(load_encoder_for, spec.encoder, settings.chosen_encoder, cache_dir=settings.cache_dir)
    return replace(request.options, processes=EncodeProcesses(request.processes, load))


async def _size(engine: Engine, index: str, *, merge: bool) -> int | None:
    """Return the bytes of an index on disk, after a merge of its segments where it is requested."""
    if merge:
        with stderr.status("merging segments (at first up to a minute until the engine can drop what it keeps)"):
            await merge_segments(engine, index)
    return await stored_bytes(engine, index)


async def _ready(
    engine: Engine, settings: Settings, request: IngestCommand, inputs: Inputs
) -> "tuple[IngestCommand, Index, Encoder]":
    """Load the encoder; find or check the text fields; create the index if there is none."""
    index = await Index.find(engine, request.name)
    spec = index.own_spec if index else None
    if spec and request.text_fields not in (None, spec.text_fields):
        raise InvalidRequest(
            f"index [{request.name}] encodes the fields {','.join(spec.text_fields)}: leave --text-fields out, or make "
            "another index"
        )
    records = await asyncio.to_thread(_first_records, inputs, spec.text_fields if spec else request.text_fields)
    documents = [record.document for record in records if record.document]
    _require_documents(request, documents)
    if spec is None:
        for name in number_fields(documents, request.text_fields or ()):
            raise InvalidRequest(
                f"[{name}] is a number in the first {len(documents)} documents, which has no text to encode: name the "
                "fields that hold text with --text-fields"
            )
        request = _with_proposal(request, documents)
    encoder = await asyncio.to_thread(loaded_encoder, settings, spec.encoder if spec else None)
    if spec is None:
        required = IndexSpec(encoder.identity, **provided(text_fields=request.text_fields))
        required = replace(required, strip_html=strips_html(request.strip_html, documents, required.text_fields))
    else:
        required = spec
    if documents and not any(_has_text(document, required.text_fields) for document in documents):
        fix = "name the fields that hold text with --text-fields"
        if spec is not None:
            fix = f"these are the fields that index [{request.name}] encodes: make another index for such documents"
        raise InvalidRequest(f"{_no_text(documents, required.text_fields)}: {fix}")
    warn_of_texts(documents, required.text_fields, encoder.identity)
    await _tell_size(inputs, len(records), documents, required, encoder)
    if index is None:
        if not documents:
            why = f" ({records[0].error})" if records and records[0].error else ""
            raise InvalidRequest(
                f"there is no document in {', '.join(map(str, request.files))}{why}, so index [{request.name}] is not "
                "made"
            )
        await create_index(engine, request.name, required)
        click.echo(
            f"made index [{request.name}] with defaults: fields {','.join(required.text_fields)}, encoder "
            f"{required.encoder.model}, {required.codec} token vectors (`es-ttc index create` to choose)",
            err=True,
        )
        index = await Index.find(engine, request.name)
        if index is None:
            raise EngineError(f"index [{request.name}] was deleted as soon as it was made")
    return request, index, encoder


def _first_records(inputs: Inputs, text_fields: Sequence[str] | None) -> list[Record]:
    """Return the first records, and say which types the columns of CSV have; text fields are read as text."""
    tables = [source for source in inputs.sources if isinstance(source, Csv)]
    for table in tables:
        table.keep_text(text_fields or DEFAULT_FIELDS)
    records = inputs.peek(_PEEKED)
    for table in tables:
        typed = [f"{name} {kind}" for name, kind in table.types.items() if kind is not ColumnType.TEXT]
        if typed:
            click.echo(f"[{table.name}]: {', '.join(typed)}; other columns are text (--types to change)", err=True)
    return records


def _require_documents(request: IngestCommand, documents: Sequence[Mapping[str, Any]]) -> None:
    """Refuse the lines of a bulk request, and hits of a search: they hold documents, and are none."""
    first = documents[0] if documents else {}
    action = first.get("index", first.get("create"))
    if len(first) == 1 and isinstance(action, dict) and all(key in _OF_ACTIONS for key in action):
        raise InvalidRequest(
            f"[{request.files[0]}] is the body of a bulk request: send it to the engine, `POST /{request.name}/_bulk`, "
            f"and then `es-ttc attach {request.name}`"
        )
    if isinstance(first.get("_source"), dict):
        raise InvalidRequest(
            f"[{request.files[0]}] has hits of a search: take their documents, `jq -c '{{_id}} + ._source'`"
        )


def _with_proposal(request: IngestCommand, documents: Sequence[Mapping[str, Any]]) -> IngestCommand:
    """Return the command with proposed text fields and id, if it names no fields and texts are in other than `text`."""
    empty = [name for name in DEFAULT_FIELDS if not any(_has_text(document, [name]) for document in documents)]
    if request.text_fields is not None or "text" not in empty or not documents:
        return request
    proposal = propose_fields(documents)
    if set(proposal.text_fields) <= set(DEFAULT_FIELDS):
        return request  # without any, the check that follows names the fields that there are
    chosen = replace(request.options, id_field=request.options.id_field or proposal.id_field)
    command = f"es-ttc ingest {request.name} {' '.join(request.files)} {proposal.options}"
    described = ", ".join(map(str, describe(documents, proposal.text_fields)))
    take_proposal(f"{_no_text(documents, empty)}; proposed: {described}: {command}", yes=request.yes)
    return replace(request, text_fields=proposal.text_fields, options=chosen)


async def _tell_size(
    inputs: Inputs, records: int, documents: Sequence[Mapping[str, Any]], spec: IndexSpec, encoder: Encoder
) -> None:
    size = await asyncio.to_thread(estimate_size, documents, spec, encoder)
    if size is None:
        return
    total = records if records < _PEEKED else await asyncio.to_thread(count_records, inputs)
    if total is not None:  # records that are no documents, and documents without text, get no features
        total = round(total * share_with_text(documents, spec) * len(documents) / records)
    click.echo(f"{size_sentence(size, spec, total)} (estimated)", err=True)


def _no_text(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> str:
    present = sorted({field for document in documents for field in document})
    fields = ",".join(text_fields)
    return f"none of the first {len(documents)} documents has text in {fields} (they have {','.join(present)})"


def _checkpoint(index: Index, request: IngestCommand, encoder: Encoder) -> tuple[str, IngestCheckpoint | None]:
    """Return the run's id, and the checkpoint to resume or to begin; none for standard input."""
    run = uuid.uuid4().hex
    inputs = fingerprints(request.files)
    if inputs is None:
        return run, None
    job = IngestRunKey(index.index, index.uuid, encoder.identity.key, request.options.id_field, inputs)
    checkpoint = IngestCheckpoint.load(request.checkpoint, job) if request.resume else None
    if checkpoint is None:
        if request.resume:
            click.echo("there is no unfinished run to resume: reading from the start", err=True)
        checkpoint = IngestCheckpoint(request.checkpoint, run, job)
    checkpoint.save(checkpoint.position)
    return checkpoint.run, checkpoint


def _reporter(bar: Progress) -> ReportIngest:
    """Return the function that updates the bar; the total is estimated from the share of the input that was read."""
    task = bar.add_task("documents", total=None)

    def report(outcome: IngestResult, fraction: float | None) -> None:
        done = outcome.resumed_at + outcome.settled
        read = outcome.resumed_at + outcome.read
        total = max(round(read / fraction), done) if fraction else None
        label = f"documents ({outcome.rejected:,} rejected)" if outcome.rejected else "documents"
        bar.update(task, completed=done, total=total, description=label)

    return report


def _has_text(document: Mapping[str, Any], fields: Sequence[str]) -> bool:
    try:
        return bool(compose(document, fields)[0])
    except InvalidRequest:  # the document is rejected later, with the reason
        return True


def _how_to_go_on(files: Sequence[str]) -> str:
    if "-" in files:
        return "run the same command again to resume (documents that the index has already are skipped)"
    return "run the same command with --resume to go on"


def _sentence(outcome: IngestResult, tokens_read: int) -> str:
    parts = [f"{outcome.written:,} documents written"]
    parts += [f"{outcome.skipped:,} unchanged"] if outcome.skipped else []
    parts += [f"{outcome.rejected:,} rejected"] if outcome.rejected else []
    parts += [longer(outcome.truncated, tokens_read)] if outcome.truncated else []
    parts += [f"{outcome.resumed_at:,} settled before"] if outcome.resumed_at else []
    encoders = "encoder" if outcome.processes == 1 else f"{outcome.processes} encoders"
    speed = f"{outcome.documents_per_second:,.1f} a second, {encoders} busy {outcome.encoder_busy:.0%}"
    return f"{', '.join(parts)} in {outcome.seconds:,.1f} s ({speed})"


def _as_dict(outcome: IngestResult, request: IngestCommand) -> dict[str, Any]:
    return {
        "index": request.name,
        **asdict(outcome),
        "documents_per_second": outcome.documents_per_second,
        "encoder_busy": outcome.encoder_busy,
        "dead_letters": str(request.dead_letters) if outcome.rejected else None,
    }
