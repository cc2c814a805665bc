"""Write the reference pages from the code: `make docs`. A test compares the committed pages with this output."""

import ast
import importlib
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

import click
import prometheus_client as prometheus
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import es_ttc
from es_ttc.cli.app import cli
from es_ttc.engine import versions
from es_ttc.engine.versions import dotted
from es_ttc.errors import EsTtcError
from es_ttc.reranking.rerankers import RerankerSettings
from es_ttc.reranking.rerankers import registry as rerankers
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import registry
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.retrievers import registry as retrievers
from es_ttc.rewriters import registry as rewriters
from es_ttc.serving.admin.openapi import OPERATIONS
from es_ttc.serving.features.cache import FeatureCache
from es_ttc.serving.metrics import WATCHED, Metrics
from es_ttc.serving.plan.items import MAX_ITEMS
from es_ttc.serving.request.section import Section
from es_ttc.settings import GatewaySettings, Settings

FOLDER = Path(__file__).parent / "reference"
NOTICE = "<!-- Written by `make docs` from the code. -->\n"


READ_IN_PART = (
    "## Texts that are read in part\n",
    "An index reads the first `--max-tokens` tokens of a document (default 1,024), and a late-interaction model at "
    "most its own length. A pooled vector, that of a query too, is made from the encoder's first window (256 tokens "
    "for `minilm`). What was not read is searched by its words alone. The response says so:\n",
    "| key | value |",
    "| --- | --- |",
    "| `ttc.query_encoded_share` | for each text of the query the share of its characters that was read; only if one "
    "is below 1. Late interaction reads up to 1,024 tokens of the query |",
    "| `_ttc.encoded_share` of a hit, with `detail` | the share of its text that its token vectors are made from: of "
    "its characters, with `--skip-tokens repeated_words` times that of its words; only below 1, and only if the method "
    "reads token vectors |",
    "| `ttc.encoded_share` | the mean of the latter over the window; by its square root `blend` [weights]"
    "(../how-to/choose-a-method.md#change-the-weights) its vectors |",
    "",
)

DOCUMENTS_THAT_JOIN = (
    "## Documents that join\n",
    "With `candidates` the documents nearest to the query by pooled vector join the window, if the caller may read "
    "them and they meet the query's conditions (table below, and `min_score`). Their first-pass score is the "
    "engine's own score of the query, 0 if the query does not match them. Totals, aggregations and `collapse` include "
    'them, also with `"size": 0`, unless the section has `"candidates": {"count": false}`. Aggregations cost one more '
    "request, `inner_hits` "
    "another ([measured](../results/speed.md#processor-time-of-a-search)).\n",
    "| clause | condition for candidates |",
    "| --- | --- |",
    "| `match`, `match_bool_prefix` on analysed text, with the query's text | none |",
    "| `multi_match`, `combined_fields` with the query's text, on all fields or on some of which one is analysed text "
    "| none |",
    "| the same on a keyword, number, date, boolean or IP address, or with another text | the clause |",
    "| `query_string`, `simple_query_string` | none for plain words; with operators, field names, quotes or wildcards "
    "the clause |",
    "| `bool` | `filter`, `must_not`, the conditions of each `must`, and those of `minimum_should_match` of `should` |",
    "| `dis_max` | the conditions of one of its queries |",
    "| `boosting` | the conditions of `positive`; with `negative_boost: 0` also that `negative` does not match |",
    "| `function_score`, `script_score` | the conditions of its query, and that the functions score above 0; with "
    "`min_score` the clause. Functions run over all documents that meet the other conditions |",
    "| `pinned` | the conditions of `organic` |",
    "| `rule` | the rules, and the conditions of `organic` |",
    "| `constant_score`, `nested`, `terms_set`, `rank_feature`, `match_phrase` and any other | the clause |\n",
    "No documents join, and `ttc.candidates.reason` has the cause, if\n",
    "- the body has a `knn` section, a `hybrid` query, `slice` or an unknown part,",
    "- the URL has `search_pipeline`, `scroll`, or another parameter that decides what matches or how it is scored,",
    "- the caller may not read the types of fields,",
    "- the engine cannot search the index's vectors, or refuses the search for candidates.\n",
    "## Sort among equal scores\n",
    'With `"sort": ["_score", {"price": "asc"}, ...]` the further keys order documents of equal final score. Each hit '
    "shows `sort` as the engine does, with the final score first.\n",
    '- `_score` must come first, descending (`_score`, `{"_score": "desc"}`, `?sort=_score:desc,price:asc`).',
    "- The engine compares the keys, so `missing`, `format`, `nested`, runtime fields and scripts that do not read "
    "`_score` work. Equal scores cost one more request.",
    "- The engine rejects any other `sort` (400), as it does with a native `rescore`, and a sort beside "
    "`search_after`, `scroll`, a native rescorer, several sections or a method with a reranker.\n",
)
Record = tuple[str, str, str]
"""An option: name with its value's placeholder, meaning, and default and bounds in brackets."""


_USUAL = ("--engine URL", "--json")


def commands_page() -> str:
    """Return the page of all commands with help text and options; options of several commands come first, once."""
    options = {path: _options(command) for path, command in _commands(cli, "es-ttc")}
    counts = Counter((name, text) for records in options.values() for name, text, _ in records)
    shared = {key: {one[2] for one in chain(*options.values()) if one[:2] == key} for key in counts if counts[key] > 1}
    parts = [
        "# Commands\n",
        NOTICE,
        "`es-ttc COMMAND --help` has more text and examples. Defaults and bounds are in brackets. Nearly all commands "
        "have `--engine` and `--json`.\n",
        "## Options of several commands\n",
        "".join(_option(name, text, _common(shared[name, text])) for name, text in sorted(shared)),
    ]
    for path, command in _commands(cli, "es-ttc"):
        arguments = command.collect_usage_pieces(click.Context(command, info_name=path))[1:]
        summary, *further = inspect.cleandoc(command.help or "").split("\n\n")
        parts += [f"## `{' '.join([path, *arguments])}`\n", summary + "\n"]
        parts += [f"{text}\n" for text in further if text.startswith("Exit status")]
        set_too = [one for one in options[path] if _is_setting(one) and one[:2] not in shared]
        own = "".join(_option(*one) for one in options[path] if one[:2] not in shared and one not in set_too)
        if set_too:
            own += f"- [Settings](settings.md) as options: {', '.join(f'`{one[0]}`' for one in set_too)}.\n"
        also = ", ".join(
            f"`{name.split()[0]}`{'' if _common(shared[name, text]) else around}"
            for name, text, around in options[path]
            if (name, text) in shared and name not in _USUAL
        )
        parts += [f"{own}- Also {also}.\n" if own and also else own or f"Options: {also}.\n"] if own or also else []
    return "\n".join(parts)


def _options(command: click.Command) -> list[Record]:
    """Return a command's options that have a help text."""
    records = [one.get_help_record(click.Context(command)) for one in command.params]
    return [_record(*one) for one in records if one and one[1]]


def _record(name: str, text: str) -> Record:
    text = " ".join(text.split())
    around = "".join(re.findall(r" \[[^\[\]]*\]$", text))
    return re.sub(r"(INTEGER|FLOAT)( RANGE)?$", "N", name), text.removesuffix(around), around


def _is_setting(record: Record) -> bool:
    field = GatewaySettings.model_fields.get(record[0].split()[0].removeprefix("--").replace("-", "_"))
    return field is not None and record[1].startswith(field.description or " ")


def _common(brackets: Collection[str]) -> str:
    """Return the brackets of an option where all its commands have the same ones."""
    return next(iter(brackets)) if len(brackets) == 1 else ""


def _option(name: str, text: str, around: str) -> str:
    return f"- `{name}`: {' '.join(text.split())}{around}\n"


def methods_page() -> str:
    """Return the page of all rescorers and strategies with their parameters and needs."""
    parts = ["# Methods of the `rescore` hook\n", NOTICE]
    for name in registry.names():
        if name in CATALOGUE:
            continue
        rescorer = registry.load(name)
        doc = inspect.getdoc(type(rescorer)) or ""
        parts += [f"## `{name}`\n", doc + "\n", f"Needs: {_needs(rescorer)}.\n", _fields_table(rescorer.Params)]
    parts += [
        "## The twelve TTC programs\n",
        "[Which to use](../how-to/choose-a-program.md), [departures from the paper](../explanation/papers.md). c is "
        "the paper's cost ratio. Programs that need `first_pass` have the parameter `lexical`. `reversed` is needed "
        "only with an encoder that distinguishes queries from documents: "
        "[documents as queries](../how-to/choose-a-program.md#documents-as-queries).\n",
        "| program | section | c | needs | scores |\n| --- | --- | --- | --- | --- |",
    ]
    for name, entry in CATALOGUE.items():
        what = (inspect.getdoc(entry.program) or "").split("\n\n")[0].removeprefix("Return ")
        needs = _needs(registry.load(name))
        parts.append(f"| `{name}` | {entry.section} | {entry.cost} | {needs} | {_cell(what)} |")
    [lexical] = {_fields_table(model) for name in CATALOGUE if (model := registry.load(name).Params).model_fields}
    parts += ["", lexical, "# Methods that rerank under a budget\n"]
    parts.append("They send a few documents at a time to a reranker ([how to](../how-to/rerank-with-a-budget.md)).\n")
    return "\n".join([*parts, *_methods({name: (one.about, one.Params) for name, one in STRATEGIES.items()})])


def _needs(rescorer: Any) -> str:
    return ", ".join(f"`{need}`" for need in sorted(rescorer.needs(rescorer.Params())))


def _methods(methods: Mapping[str, tuple[str, type[BaseModel]]]) -> Iterator[str]:
    """Yield the parts of methods, each with its text and parameters; parameters of several methods come first, once."""
    tables = {name: _fields_rows(model) for name, (_, model) in methods.items()}
    counts = Counter(row for rows in tables.values() for row in rows.items())
    yield "Parameters of several of them:\n"
    yield "".join(row for (_, row), count in counts.items() if count > 1)
    for name, (text, _) in methods.items():
        yield f"## `{name}`\n"
        yield text + "\n"
        if own := [row for item in tables[name].items() if counts[item] == 1 for row in item[1:]]:
            yield "".join(own)
        yield f"Also {', '.join(f'`{field}`' for field, row in tables[name].items() if counts[field, row] > 1)}.\n"


def retrievers_page() -> str:
    """Return the page of all retrievers with their parameters and the vectors they search."""
    parts = ["# Methods of the `knn` hook\n", NOTICE]
    for name in retrievers.names():
        retriever = retrievers.load(name)
        params = retriever.Params()
        doc = inspect.getdoc(type(retriever)) or ""
        searches = ", ".join(f"`{one}`" for one in sorted(retriever.searches(params)))
        needs = ", ".join(f"`{one}`" for one in sorted(retriever.needs(params))) or "nothing else"
        uses = f"Searches the vectors of {searches}; reads {needs}.\n"
        rescorer = registry.load(name).Params if name in registry.names() else BaseModel
        same = [item for item in _fields_rows(rescorer).items() if item in _fields_rows(retriever.Params).items()]
        own = [row for item in _fields_rows(retriever.Params).items() if item not in same for row in item[1:]]
        parts += [f"## `{name}`\n", doc + "\n", uses, *(["".join(own)] if own else [])]
        if same:
            fields = ", ".join(f"`{field}`" for field, _ in same)
            parts.append(f"Parameters as of [the rescorer](methods.md#{name}): {fields}.\n")
    return "\n".join(parts)


_RIGHTS = """\
## Rights

| who | right on the cluster | rights on indices |
| --- | --- | --- |
| callers of the gateway | none; media types of newer clients are translated for those who may read the version \
(`cluster:monitor/main`) | `read`, `view_index_metadata`, also on `ttc-side-*` where features are attached (or \
`side_index_auth: gateway`) |
| every command | `cluster:monitor/main` (in Elasticsearch's `monitor`) | |
| `index create`, `ingest` | | `create_index`, `write`, `read`, `view_index_metadata`, `maintenance` (refresh) |
| `attach`, `fill`, `graph build` | | the same and `monitor` (shard statistics), on the index; `all` on `ttc-*` |
| `index pipeline` | `manage_ingest_pipelines` | `manage` |
| `evaluate --engine` | | `all` on `es-ttc-evaluate-*` |
| `jobs`, `worker` | | `write` on the index; `all` on `ttc-jobs*` |

The names are Elasticsearch's. A missing right ends a command with the engine's message, which names the privilege.
Without the right to read them, the licence is `unknown`, sizes on disk are left out, one data node and a body of 100
MiB are assumed, and the gateway reads features in parts of a fixed size.
"""
_SERVERLESS = f"""\
## Elasticsearch Serverless

Serverless returns an old version number. es-ttc recognises it by `build_flavor` and treats it as newer than any
version. Elasticsearch's code marks the interfaces of Serverless (`ServerlessScope`, `ServerlessPublic`; read from
9.4.3):

| request | used for | Serverless | es-ttc there |
| --- | --- | --- | --- |
| search, write, create and delete of indices, mappings, settings, aliases, points in time, `_analyze`, \
`_ingest/pipeline`, `_license` | all commands | yes | |
| `_nodes/http,plugins` | greatest body, number of nodes | no | 100 MiB, 1 node |
| `_nodes/stats/jvm` | how much is read at a time | no | 32 MiB, or `feature_reads_mb` |
| `INDEX/_stats/store` | sizes in `index show`, `graph show` | no | left out |
| `INDEX/_stats?level=shards` | which writes are complete | no | `attach`, `fill`, `graph build` end with a sentence |
| `{"`, `".join(sorted(versions.SERVERLESS_MANAGED_SETTINGS))}` | shape of new indices | no | left out |
"""


def engines_page() -> str:
    """Return the page of supported engine versions and their differences."""
    oldest = {product: dotted(numbers) for product, numbers in versions.OLDEST.items()}
    names = versions.NAMES
    rows = [f"| {names[product]} | {oldest[product]} | {versions.maintained_versions(product)} |" for product in names]
    features = [
        f"| {_cell(feature.what)} | {_since(feature, 'elasticsearch')} | {_since(feature, 'opensearch')} | "
        f"{_cell(feature.without)} |"
        for feature in versions.ENGINE_FEATURES
    ]
    return "\n".join(
        [
            "# Engines\n",
            NOTICE,
            "es-ttc works with these engines:\n",
            "| product | oldest version | maintained by its vendor (November 2026) |\n| --- | --- | --- |",
            *rows,
            "",
            "Commands refuse an older engine and any other server. The gateway forwards requests to an older engine "
            "unchanged, and refuses searches with a `ttc` section (400, `ttc_unsupported_engine_exception`). "
            "`es-ttc doctor` warns if the vendor does not maintain the version. [Tested "
            "versions](../results/engine-versions.md).\n",
            "## What depends on the version\n",
            "| feature | Elasticsearch | OpenSearch | without it |\n| --- | --- | --- | --- |",
            *features,
            "",
            "## What is detected\n",
            "es-ttc detects at the first connection: OpenSearch's k-NN plugin on every data node (without it there are "
            "no vector fields), Elasticsearch's licence (`rank_vectors` needs Enterprise), and the maximum HTTP body. "
            "For a user who may not read nodes or licence the defaults apply.\n",
            _RIGHTS,
            _SERVERLESS,
        ]
    )


def _since(feature: versions.VersionedFeature, product: versions.Product) -> str:
    since = feature.since.get(product)
    return "never" if since is None else f"{dotted(since)}"


def rewriters_page() -> str:
    """Return the page of all rewriters with their parameters."""
    methods = {}
    for name in rewriters.names():
        rewriter = rewriters.load(name)
        model = "Uses a language model." if rewriter.asks_model else "Uses no language model."
        methods[name] = (f"{inspect.getdoc(type(rewriter))}\n\n{model}", rewriter.Params)
    return "\n".join(["# Methods of the `query` hook\n", NOTICE, *_methods(methods)])


def section_page() -> str:
    """Return the page of the keys of the `ttc` section."""
    example = '{"rescore": {"window_size": 100, "ttc": {"method": "blend", "timeout": "200ms", "detail": true}}}'
    beside = '{"retriever": {"rrf": {...}}, "ext": {"ttc": {"window_size": 100, "query_text": "heart attack"}}}'
    clause = '{"knn": {"field": "ttc.vector", "query_text": "heart attack", "k": 10, "ttc": {"method": "nnn"}}}'
    query = '{"query": {"ttc": {"method": "sira", "query_text": "heart attack"}}}'
    parts = [
        "# The `ttc` section\n",
        NOTICE,
        "The `ttc` object in a search. Put it into `rescore`, alone or last in a list after native rescorers; "
        f"up to {MAX_ITEMS} items with it [run in order](../how-to/rerank-in-several-steps.md). "
        "`window_size` beside it is the number of rescored first-pass documents (default 100).\n",
        f"```json\n{example}\n```\n",
        "Beside Elasticsearch's `retriever`, which allows no `rescore`, put it into `ext`, with `window_size` inside. "
        "The retriever's first hits are the window, at most its `rank_window_size` (default 10). Totals and "
        "aggregations are the engine's, and no documents join. The engine applies `collapse` before the window is "
        "ranked.\n",
        f"```json\n{beside}\n```\n",
        "In a kNN clause it names the retrieval [method](retrievers.md). `score_mode` and the weights are only for "
        "`rescore`, and `on_error: first_pass` means the engine's own kNN.\n",
        f"```json\n{clause}\n```\n",
        "As a query it is rewritten to one native query by a [method](rewriters.md). It needs `query_text`, and "
        "`on_error: first_pass` means the plain query.\n",
        f"```json\n{query}\n```\n",
        _fields_table(Section),
        "A malformed section (an unknown key or name, a wrong type, a value out of range) is a 400 in the engine's own "
        "error form that names the key and the nearest valid key. A body "
        "with a section that is no JSON is a 400 that names the line and the column.\n",
        "If anything else is missing or fails (features, an encoder, a text, a calibration, a model that answers, "
        "time), the response is the engine's own ranking, with `ttc.applied: false`, the reason in `ttc.reason` and "
        "the header `x-ttc-applied: false`. `on_error: fail` returns an error instead. While "
        "[many search at once](../how-to/operate.md#when-many-search-at-once), `blend` may rank by fewer signals "
        "(`ttc.load`).\n",
        "The window has `window_size` documents on every page, so the first hits do not change with `size` "
        "and `from`. Scores are never negative and never rise down the page. Documents outside the window follow in "
        "the engine's order. `ttc.window` counts the first-pass documents of the window. All other "
        "parts of a search (`aggs`, `highlight`, `fields`, `_source`, `post_filter`, `min_score`, `explain`, "
        "`profile`, points in time, aliases, routing) are the engine's, except `highlight` with "
        "[type `ttc`](../how-to/show-passages.md); [known limits](../known-limits.md) lists what does not work.\n",
        *READ_IN_PART,
        *DOCUMENTS_THAT_JOIN,
    ]
    return "\n".join(parts)


def endpoints_page() -> str:
    """Return the page of the gateway's own endpoints."""
    parts = [
        "# Endpoints below `/_ttc/`\n",
        NOTICE,
        "`GET /_ttc/openapi.json` describes the endpoints in OpenAPI 3.1, with the form of every body. Errors have the "
        "engines' form. `GET /_ttc/search.schema.json` is the JSON Schema of a search body with a "
        "[`ttc` section](section.md), "
        "for [editors](../how-to/connect-a-client.md#check-a-search-body-in-an-editor). All other requests are the "
        "engine's.\n",
        "A token is required only if it is set. `admin_public` names endpoints that need no `admin_token` "
        "([settings](settings.md)).\n",
        "| request | what it does | body | credentials |\n| --- | --- | --- | --- |",
    ]
    carried = {
        "engine": "`admin_token`, the caller's credentials",
        "model_token": "`model_token` or `admin_token`",
        "sidecar_token": "`sidecar_token`",
    }
    submit = next(command for path, command in _commands(cli, "es-ttc") if path == "es-ttc jobs submit")
    submitted = {text: name.split()[0] for name, text, _ in _options(submit)}
    for summary, alike in groupby(OPERATIONS, key=lambda one: one.summary):
        operations = list(alike)
        paths = ", ".join(f"`{one.method.upper()} {one.path}`" for one in operations)
        body = " or ".join(_linked(model) for model in operations[0].body)
        security = operations[0].security
        carries = carried[security] if security else "`admin_token`"
        parts.append(f"| {paths} | {_cell(summary)} | {body} | {carries} |")
    for model in dict.fromkeys(model for one in OPERATIONS for model in one.body):
        if model.__name__ not in _DESCRIBED:
            rows = _fields_rows(model)
            same = {
                name: submitted[field.description]
                for name, field in model.model_fields.items()
                if field.description in submitted
            }
            own = "".join(row for name, row in rows.items() if name not in same)
            if same:
                named = (f"`{name}` (`{option}`)" for name, option in same.items())
                own += f"- As the options of `es-ttc jobs submit`: {', '.join(named)}.\n"
            parts += [f"\n## `{model.__name__}`\n", own]
    return "\n".join(parts)


_DESCRIBED = {
    "RerankRequest": "../how-to/rerank-endpoint.md#rerank-texts",
    "TextsRequest": "../how-to/rerank-endpoint.md#rerank-texts",
    "EmbeddingsRequest": "../how-to/rerank-endpoint.md#encode-texts",
    "ScoreRequest": "sidecar-protocol.md#the-request",
    "EncodeRequest": "sidecar-protocol.md#documents-to-encode",
}
"""Bodies that another page describes."""


def _linked(model: type[BaseModel]) -> str:
    name = model.__name__
    return f"[`{name}`]({_DESCRIBED.get(name, '#' + name.lower())})"


def rerankers_page() -> str:
    """Return the page of all kinds of rerankers with their settings; those of all kinds come first, once."""
    shared = _fields_rows(RerankerSettings)
    parts = [
        "# Kinds of rerankers\n",
        NOTICE,
        "The settings of a table `[rerankers.NAME]` in `es-ttc.toml`, in addition to its `kind`. Those of all kinds, "
        "with these defaults unless a kind has its own:\n",
        "".join(shared.values()),
    ]
    for name in rerankers.kinds():
        found = rerankers.kind(name)
        own = [row for field, row in _fields_rows(found.Settings).items() if shared.get(field) != row]
        parts += [f"## `{name}`\n", (inspect.getdoc(type(found)) or "") + "\n", "".join(own)]
    return "\n".join(parts)


def settings_page() -> str:
    """Return the page of all settings with type and default."""
    parts = [
        "# Settings\n",
        NOTICE,
        "A setting is read from, in this order: the command's flag, the `ES_TTC_*` variable, `es-ttc.toml` in the "
        "working folder (same names), the default. Type and default are in brackets; a setting without a type is a "
        "string. The variable of `request_timeout` is `ES_TTC_REQUEST_TIMEOUT`; a variable `ES_TTC_*` that is no "
        "setting is refused, as a key of the file is.\n",
        "## All commands\n",
        _fields_table(Settings),
        "## The gateway\n",
        _fields_table(GatewaySettings, skip=Settings.model_fields),
    ]
    return "\n".join(parts)


_REMEDIES: Mapping[tuple[int, str], str] = {
    (
        400,
        "illegal_argument_exception",
    ): "correct what the message names: it gives the nearest valid key, or the bounds",
    (404, "illegal_argument_exception"): "see [endpoints](endpoints.md)",
    (404, "index_not_found_exception"): "correct the name of the index",
    (404, "resource_not_found_exception"): "`es-ttc jobs list` lists jobs; `es-ttc judge pool` makes pools",
    (413, "content_too_long_exception"): "send less at once, or raise the limit that the message names",
    (429, "rejected_execution_exception"): "retry after `Retry-After` seconds, add gateways, or raise the limit",
    (503, "rejected_execution_exception"): "raise `max_connections`, or close idle connections in clients",
    (401, "security_exception"): "send credentials of the engine; below `/_ttc/` the [token](endpoints.md)",
    (403, "security_exception"): "grant the [right](engines.md#rights) that is named; for pages, `allowed_origins`",
    (400, "ttc_missing_text_exception"): "give `query_text` in the section",
    (400, "ttc_missing_feature_exception"): "run the command that the message names, or choose another method",
    (400, "ttc_encoder_mismatch_exception"): "add the encoder that the message names to the gateway's `encoders`",
    (500, "ttc_configuration_exception"): "change the setting or install the package that the message names",
    (400, "ttc_unsupported_engine_exception"): "upgrade the engine to a [supported version](engines.md)",
    (500, "ttc_encoder_exception"): "`es-ttc doctor` loads the encoder and names what is wrong",
    (503, "ttc_encoder_busy_exception"): "add the encoder to `encoders`, which keeps it loaded; or retry later",
    (502, "ttc_engine_exception"): "see the engine's own reason in the message",
    (503, "ttc_engine_exception"): "search again",
    (503, "ttc_engine_unavailable_exception"): "check the engine, and the setting `engine`: `es-ttc doctor`",
    (502, "ttc_llm_exception"): "check the model's server and the settings `llm_*`; calls resume by themselves",
    (503, "ttc_deadline_exceeded_exception"): "raise `timeout` in the section or `scoring_timeout_ms`, or lower "
    "`window_size`; [`es_ttc_stage_seconds`](metrics.md) shows the slow stage",
    (500, "ttc_node_exception"): "`es-ttc engine logs` shows why",
    (400, "ttc_program_refused_exception"): "see [what is refused](../how-to/discover-programs.md#what-is-refused)",
    (500, "ttc_program_exception"): "choose another program, or fix yours",
    (503, "ttc_reranker_exception"): "check the reranker's server; raise `timeout` in the section, or lower the budget",
    (400, "ttc_protocol_exception"): "install plugin and gateway of the same release",
    (400, "ttc_protocol_version_exception"): "install plugin and gateway of the same release",
    (500, "ttc_exception"): "report it: the gateway's log has the details under the request's id",
    (415, "media_type_header_exception"): "send the header `content-type: application/json`",
    (500, "ttc_scoring_exception"): "fix the method if it is yours, else report it",
    (400, "too_long_http_line_exception"): "send a shorter URL: put the query into the body",
    (400, "too_long_http_header_exception"): "send shorter headers, or fewer cookies",
    (408, "ttc_request_timeout_exception"): "send faster, or raise `idle_timeout`",
    (501, "ttc_transfer_coding_exception"): "send the body with `Content-Length`, or chunked",
    (503, "ttc_pending_features_exception"): "run `es-ttc fill NAME`, or wait for the worker; `es-ttc index show NAME` "
    "counts the documents",
    (421, "ttc_wrong_host_exception"): "add the host to `allowed_hosts`",
}
"""What to do about each kind of error, by status and type."""


def errors_page() -> str:
    """Return the page of all error types; a class that gives itself a type or a status is one."""
    causes: dict[tuple[int, str], list[str]] = {}
    for error in _error_classes():
        causes.setdefault((error.status, error.type), []).append(_summary(error).removesuffix("."))
    unknown = causes.keys() ^ _REMEDIES.keys()
    if unknown:
        raise ValueError(f"_REMEDIES must name exactly the kinds of errors, and differs in {sorted(unknown)}")
    causes[EsTtcError.status, EsTtcError.type] = ["Something unexpected failed"]  # the base is raised for this only
    example = '{"error": {"root_cause": [...], "type": "ttc_missing_text_exception", "reason": "..."}, "status": 400}'
    parts = [
        "# Errors\n",
        NOTICE,
        "Errors of the gateway have the engines' form. `reason` names the field, the value and the fix:\n",
        f"```json\n{example}\n```\n",
        "A malformed section is always an error. If a search with a section fails otherwise, the response is the "
        "engine's own ranking: `ttc.applied` is false, `ttc.reason` has the message, and "
        "[`es_ttc_fallbacks_total`](metrics.md) counts it with the type as the label `reason`. "
        '`"on_error": "fail"` in the section returns the error instead. The engine\'s own errors pass unchanged. '
        "Commands print the message and exit with status 1.\n",
        "| status | `type` | cause | what to do |\n| --- | --- | --- | --- |",
    ]
    for (status, kind), found in sorted(causes.items()):
        parts.append(f"| {status} | `{kind}` | {_cell('; '.join(found))} | {_REMEDIES[status, kind]} |")
    return "\n".join([*parts, ""])


def _error_classes() -> Iterator[type[EsTtcError]]:
    package = Path(es_ttc.__file__).parent
    for path in sorted(package.rglob("*.py")):
        if re.search(r"^    (type|status) = ", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))
    waiting = [EsTtcError]
    while waiting:
        error = waiting.pop(0)
        waiting += error.__subclasses__()
        if not vars(error).keys().isdisjoint(("type", "status")):
            yield error


_UNITS = {
    "fallbacks": "searches",
    "feature_cache_entries": "documents",
    "feature_cache_hits": "documents",
    "feature_cache_misses": "documents",
    "feature_reads_waiting": "parts of windows",
    "jobs_readable": "1 or 0",
    "model_breaker_open": "processes",
    "on_demand_queue": "documents",
}
"""Units that the last word of a metric's name does not say."""


class _ListedMetrics(Metrics):
    """Writes down a row of the page for each metric that is made."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        super().__init__()
        self.watch_cache(FeatureCache(1))
        self.watch({name: lambda: 0 for name in WATCHED if f"es_ttc_{name}" not in self.rows})

    def _gauge(self, name: str, what: str, *labels: str, together: Literal["livesum", "livemax"]) -> prometheus.Gauge:
        self._add(name, "gauge", what, labels)
        return super()._gauge(name, what, *labels, together=together)

    def _counter(self, name: str, what: str, *labels: str) -> prometheus.Counter:
        self._add(name, "counter", what, labels)
        return super()._counter(name, what, *labels)

    def _histogram(self, name: str, what: str, label: str) -> prometheus.Histogram:
        self._add(name, "histogram", what, (label,))
        return super()._histogram(name, what, label)

    def _add(self, name: str, kind: str, what: str, labels: tuple[str, ...]) -> None:
        short = name.removeprefix("es_ttc_")
        unit = _UNITS.get(short, short.rpartition("_")[2])
        exported = f"{name}_total" if kind == "counter" else name
        named = ", ".join(f"`{label}`" for label in labels)
        self.rows[exported] = f"| `{exported}` | {kind} | {unit} | {named} | {_cell(what)} |"


def metrics_page() -> str:
    """Return the page of the gateway's metrics."""
    rows = _ListedMetrics().rows
    return "\n".join(
        [
            "# Metrics\n",
            NOTICE,
            "`GET /_ttc/metrics` returns them in Prometheus' text format, of all worker processes together. A "
            "histogram has the series `_bucket`, `_sum` and `_count`. [Alerts](../../docker/prometheus/alerts.yaml) "
            "and [a dashboard](../../docker/grafana/es-ttc.json) use them.\n",
            "| name | kind | unit | labels | what it counts |\n| --- | --- | --- | --- | --- |",
            *rows.values(),
            "",
            "`reason` of `es_ttc_fallbacks_total` is an [error type](errors.md); [skipped "
            "documents](../how-to/operate.md#skipped-documents) explains that of `es_ttc_skipped_documents_total`.\n",
        ]
    )


API: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "Rescorers": {
        "es_ttc.rescorers.base": {
            "stable": "Rescorer Feature Params Query Window",
            "provisional": "PartialRescorer FieldRescorer",
        },
        "es_ttc.rescorers.registry": {"stable": "names load parse_params"},
        "es_ttc.vectors.tokens": {"provisional": "TokenVectors"},
        "es_ttc.vectors.chunks": {"provisional": "DocumentChunks"},
        "es_ttc.vectors.quantise": {"provisional": "quantise"},
        "es_ttc.rescorers.nnn": {"provisional": "Dictionary Penalty solve"},
        "es_ttc.rescorers.programs.interface": {"provisional": "run"},
    },
    "Retrievers": {
        "es_ttc.retrievers.base": {
            "provisional": "Retriever Search Retrieved NearestDocuments KnownDocuments Vectors together best",
        },
        "es_ttc.retrievers.registry": {"provisional": "names load parse_params"},
    },
    "Rewriters": {
        "es_ttc.rewriters.base": {"provisional": "Rewriter Corpus Expansion Fields Term"},
        "es_ttc.rewriters.weighted": {"provisional": "WeightedRewriter FieldParams"},
        "es_ttc.rewriters.registry": {"provisional": "names load parse_params"},
    },
    "Encoders": {"es_ttc.encoders": {"stable": "load_encoder Encoder EncoderIdentity Encodings CachedEncoder"}},
    "Rerankers": {
        "es_ttc.reranking.rerankers": {
            "provisional": "RerankerKind RerankerSettings PointwiseReranker ListwiseReranker Passage"
        },
    },
    "Evaluation": {
        "es_ttc.lab.evaluation.datasets": {"stable": "load_collection Collection Document"},
        "es_ttc.lab.evaluation.metrics": {"stable": "score metric_names QueryScores"},
        "es_ttc.lab.evaluation.bootstrap": {"provisional": "resampled_means interval compare Interval Comparison"},
    },
    "Errors": {"es_ttc.errors": {"stable": "EsTtcError InvalidRequest MissingFeature ConfigurationError EncoderError"}},
}
"""What other packages import, by section, module and stability. Everything else is internal."""


def api_page() -> str:
    """Return the page of what other packages import, with signatures and stability."""
    parts = [
        "# What to import\n",
        NOTICE,
        "Your own [rescorer](../how-to/add-a-rescorer.md), [rewriter](../how-to/rewrite-queries-with-sira.md), script "
        "or notebook may import these names. All else in `es_ttc` is internal and may change with any version. The "
        "package is typed (`py.typed`); docstrings give shapes, units and errors.\n",
        "- **stable**: changes only with a new major version; before 1.0, only with a new minor version, after one "
        "minor version in which the changelog has announced it.",
        "- **provisional**: may change with any minor version; the changelog says how. Signatures are in the code.\n",
        "Names of methods, their parameters, the `ttc` section, commands and settings are stable.\n",
    ]
    described: dict[str, str] = {}
    for section, modules in API.items():
        parts.append(f"## {section}\n")
        for module, names in modules.items():
            loaded = importlib.import_module(module)
            for stability, listed in names.items():
                parts.append(f"### `{module}` ({stability})\n")
                things = {name: getattr(loaded, name) for name in listed.split()}
                summaries = "".join(f"- `{name}`: {_summary(thing)}\n" for name, thing in things.items())
                before = described.setdefault(summaries, module)
                parts.append(summaries if before == module else f"The same functions as in `{before}`.\n")
                if stability == "stable":
                    parts.append(f"```python\n{(2 * chr(10)).join(map(_signature, things.values()))}\n```\n")
    return "\n".join(parts)


def _summary(thing: Any) -> str:
    first = (inspect.getdoc(thing) or "").split("\n", 1)[0]
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", first).replace("``", "`")


def _signature(thing: Any) -> str:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    if isinstance(definition, ast.FunctionDef) and definition.args.args and definition.args.args[0].arg == "self":
        del definition.args.args[0]  # a registry's method under a name of the module
    return "\n".join(_signatures(definition))


def _signatures(node: ast.stmt) -> Iterator[str]:
    """Yield the lines of a function, an attribute, or a class with its public ones."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield from (f"@{ast.unparse(one)}" for one in node.decorator_list)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        yield f"{kind} {node.name}({ast.unparse(node.args)}){returned}: ..."
    elif isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        yield f"class {node.name}{f'({bases})' if bases else ''}:"
        shown = [one for one in node.body if not _name(one).startswith("_") or _name(one) == "__init__"]
        lines = [line for one in shown for line in _signatures(one)]
        yield from (f"    {line}" for line in lines or ["..."])
    elif isinstance(node, ast.AnnAssign | ast.Assign):
        yield ast.unparse(node)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    target = (
        node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
    )
    return target.id if isinstance(target, ast.Name) else ""


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            if (below := command.get_command(context, name)) is not None:
                yield from _commands(below, f"{path} {name}")
    else:
        yield path, command


def _fields_table(model: type[BaseModel], *, skip: Collection[str] = ()) -> str:
    rows = [row for name, row in _fields_rows(model).items() if name not in skip]
    return "".join(rows) or "No parameters.\n"


def _fields_rows(model: type[BaseModel]) -> dict[str, str]:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    schema = model.model_json_schema()
    return {
        name: _option(name, field.description or "", _form(field, schema["properties"][name], schema.get("$defs", {})))
        for name, field in fields.items()
    }


def _form(field: FieldInfo, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return a field's type, which is a string where nothing is said, and default, in brackets."""
    kind = _type(schema, definitions).removeprefix("string")
    parts = [part for part in (kind, _default(field)) if part]
    return f" [{'; '.join(parts)}]" if parts else ""


def _type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Say a JSON schema's type in words."""
    if "$ref" in schema:
        return _type(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    if "anyOf" in schema:
        return " or ".join(word for part in schema["anyOf"] if (word := _type(part, definitions)) != "null")
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), definitions)}"
    return str(schema.get("type", "any"))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.annotation is Path:
        return "default: the user's cache folder"
    if field.annotation is int and field.default_factory is not None:
        return "default: the cores, at most 4"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value in (None, (), {}) or isinstance(value, BaseModel):
        return ""
    listed = (
        ", ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value)
        if isinstance(value, tuple)
        else value
    )
    return f"default: {listed}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "api.md": api_page,
    "commands.md": commands_page,
    "endpoints.md": endpoints_page,
    "engines.md": engines_page,
    "errors.md": errors_page,
    "methods.md": methods_page,
    "metrics.md": metrics_page,
    "rerankers.md": rerankers_page,
    "retrievers.md": retrievers_page,
    "rewriters.md": rewriters_page,
    "section.md": section_page,
    "settings.md": settings_page,
}


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
