"""Write the reference pages from the code: `make docs`. A test compares the committed pages with this output."""

import ast
import importlib
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from es_ttc.cli.app import cli
from es_ttc.engine import versions
from es_ttc.engine.versions import dotted
from es_ttc.reranking.rerankers import registry as rerankers
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import registry
from es_ttc.retrievers import registry as retrievers
from es_ttc.rewriters import registry as rewriters
from es_ttc.serving.admin.openapi import OPERATIONS
from es_ttc.serving.request.section import Section
from es_ttc.serving.rescore.plan import MAX_ITEMS
from es_ttc.settings import GatewaySettings, Settings

FOLDER = Path(__file__).parent / "reference"
NOTICE = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->\n"


DOCUMENTS_THAT_JOIN = (
    "## Documents that join\n",
    "A search finds what its query matches and what joins the window (`candidates`): the documents nearest to the "
    "query by pooled vector among those that the caller may read and that satisfy what the query demands beside its "
    "words. "
    "A document that joins has the engine's own score of the query as first-pass score, and 0 if the query does not "
    "match it. Totals, aggregations, `collapse` and its `inner_hits` include it; `highlight`, `matched_queries`, "
    "`explain`, `fields` and all other parts of a hit are as for any other. `min_score` is a demand too.\n",
    "With aggregations the query runs once more, for the union of both, beside the request for the page; with "
    "`inner_hits` once more for the page's groups. Nothing else costs a further request. "
    '`"candidates": {"count": false}` keeps totals and aggregations those of the query alone.\n',
    "What a query demands of a document that joins:\n",
    "| clause | demand |",
    "| --- | --- |",
    "| `match`, `match_bool_prefix`, `multi_match`, `combined_fields` on analysed text, with the query's text | none |",
    "| the same on a keyword, number, date, boolean or IP address, or with another text | the clause |",
    "| `query_string`, `simple_query_string` | none for plain words; with operators, field names, quotes or wildcards "
    "the clause |",
    "| `bool` | `filter`, `must_not`, what each `must` demands, and what `minimum_should_match` of `should` demand |",
    "| `dis_max` | what one of its queries demands |",
    "| `boosting` | what `positive` demands; with `negative_boost: 0` also that `negative` does not match |",
    "| `function_score`, `script_score` | what its query demands, and that the functions score above 0; with "
    "`min_score` the clause. Functions run over all documents that satisfy the other demands |",
    "| `pinned` | what `organic` demands |",
    "| `rule` | the rules, and what `organic` demands |",
    "| `constant_score`, `nested`, `terms_set`, `rank_feature`, `match_phrase` and any other | the clause |\n",
    "In these cases nothing joins, and `ttc.candidates.reason` names the cause: a `knn` section, a `hybrid` query, "
    "`slice` or any part of the body that this release does not know beside the query; the URL parameters "
    "`search_pipeline`, `scroll` and others that are not known to leave the found documents alone; types of fields "
    "that the caller may not read; an index whose vectors the engine cannot search; a search for candidates that the "
    "engine refuses.\n",
    "## Sort among equal scores\n",
    'With `"sort": ["_score", {"price": "asc"}, ...]` the further keys order the documents whose final scores '
    "are equal, those that joined and groups of `collapse` among them. Each hit shows `sort` as the engine "
    "does, with the final score first. The engine compares the keys, so `missing`, `format`, `nested`, runtime "
    'fields and scripts that read no `_score` work. `_score` must come first and fall (`_score`, `{"_score": '
    '"desc"}`, `?sort=_score:desc,price:asc`). The window is read with all fields of its hits, and equal scores'
    " cost one request more. Any other sort, and one beside `search_after`, `scroll`, a native rescorer, "
    "several sections or a method that asks a reranker, is the engine's own 400 of a `sort` with a `rescore`.\n",
)
_MIN_SHARED = 4
"""Number of commands from which on an option is described once for all of them."""


def commands_page() -> str:
    """Return the page of all commands with help text, options and examples; shared options come first, once."""
    options = {
        path: [record for one in command.params if (record := one.get_help_record(click.Context(command)))]
        for path, command in _commands(cli, "es-ttc")
    }
    counts = Counter(record for records in options.values() for record in records)
    shared = sorted(record for record, count in counts.items() if count >= _MIN_SHARED and record[1])
    parts = ["# Commands\n", NOTICE, "## Options of several commands\n", _options_table(shared)]
    for path, command in _commands(cli, "es-ttc"):
        usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=path)))
        parts += [f"## `{path}`\n", inspect.cleandoc(command.help or "") + "\n", f"```\n{path} {usage}\n```\n"]
        own = [record for record in options[path] if record[1] and record not in shared]
        if own:
            parts.append(_options_table(own))
        if also := [f"`{name}`" for name, _ in shared if any(name == record[0] for record in options[path])]:
            parts.append(f"Also {', '.join(also)}.\n")
        if lines := _examples(command):
            parts.append("```\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts)


def _options_table(records: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"| `{_cell(name)}` | {_cell(text)} |\n" for name, text in records)
    return f"| option | meaning |\n| --- | --- |\n{rows}"


def methods_page() -> str:
    """Return the page of all rescorers and strategies with their parameters and needs."""
    parts = [
        "# Methods of the `rescore` hook\n",
        NOTICE,
        "`reversed` is needed only with an encoder that distinguishes queries from documents: "
        "[documents as queries](../how-to/choose-a-program.md#documents-as-queries).\n",
    ]
    tables: dict[str, str] = {}
    for name in registry.names():
        rescorer = registry.load(name)
        doc = inspect.getdoc(type(rescorer)) or ""
        needs = ", ".join(f"`{need}`" for need in sorted(rescorer.needs(rescorer.Params())))
        parts += [f"## `{name}`\n", doc + "\n", f"Needs: {needs}. {_parameters(name, rescorer.Params, tables)}"]
    parts += [
        "# Methods that rerank under a budget\n",
        "They send a few documents at a time to a reranker. All but `rr` also consider documents outside the window, "
        "through the neighbour graph: see [how to](../how-to/rerank-with-a-budget.md).\n",
    ]
    for name, strategy in STRATEGIES.items():
        parts += [f"## `{name}`\n", strategy.about + "\n", _parameters(name, strategy.Params, tables)]
    return "\n".join(parts)


def _parameters(name: str, model: type[BaseModel], tables: dict[str, str]) -> str:
    """Return a method's parameters, or which method has the same ones; `tables` has the first method of each table."""
    if not model.model_fields:
        return "It has no parameters.\n"
    table = _fields_table(model)
    first = tables.setdefault(table, name)
    return f"Parameters:\n\n{table}" if first == name else f"Parameters: those of [`{first}`](#{first}).\n"


def retrievers_page() -> str:
    """Return the page of all retrievers with their parameters and the vectors they search."""
    parts = ["# Methods of the `knn` hook\n", NOTICE]
    for name in retrievers.names():
        retriever = retrievers.load(name)
        params = retriever.Params()
        doc = inspect.getdoc(type(retriever)) or ""
        searches = ", ".join(f"`{one}`" for one in sorted(retriever.searches(params)))
        needs = ", ".join(f"`{one}`" for one in sorted(retriever.needs(params))) or "nothing else"
        uses = f"Searches the vectors of {searches}; reads {needs}. Parameters:\n"
        parts += [f"## `{name}`\n", doc + "\n", uses, _fields_table(retriever.Params)]
    return "\n".join(parts)


_RIGHTS = """\
## Rights

| who | right on the cluster | rights on indices |
| --- | --- | --- |
| callers of the gateway | none; media types of newer clients are translated for those who may read the version \
(`cluster:monitor/main`) | `read`, `view_index_metadata`, also on `ttc-side-*` where features are attached (or \
`side_credentials: gateway`) |
| every command | `cluster:monitor/main` (in Elasticsearch's `monitor`) | |
| `index create`, `ingest` | | `create_index`, `write`, `read`, `view_index_metadata`, `maintenance` (refresh) |
| `attach`, `fill`, `graph build` | | the same and `monitor` (shard statistics), on the index; `all` on `ttc-*` |
| `attach --in-index`, `index pipeline` | `manage_ingest_pipelines` | `manage` |
| `evaluate --engine` | | `all` on `es-ttc-evaluate-*` |
| `jobs`, `worker` | | `write` on the index; `all` on `ttc-jobs*` |

The names are Elasticsearch's. A missing right ends a command with the engine's own sentence, which names the privilege.
Without the right to see them, the licence is `unknown`, sizes on disk are left out, one data node and a body of 100
MiB are assumed, and the gateway reads features in parts of a fixed size.
"""
_SERVERLESS = f"""\
## Elasticsearch Serverless

Serverless tells an old version number; it is recognised by `build_flavor`, and taken for newer than any version.
Elasticsearch's own code marks what Serverless offers (`ServerlessScope`, `ServerlessPublic`; read from 9.4.3):

| request | used for | Serverless | es-ttc there |
| --- | --- | --- | --- |
| `GET /` | product and version | yes | |
| `_search`, `_msearch`, `_count`, `_mget`, `_field_caps`, points in time, `_analyze` | searches | yes | |
| `_bulk`, `_doc`, `_refresh` | writes | yes | |
| creating and deleting indices, `_mapping`, `_settings`, `_aliases` | indices | yes | |
| `_ingest/pipeline` | `attach --in-index`, `index pipeline` | yes | |
| `_license` | whether `rank_vectors` may be used | yes | |
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
        for feature in versions.FEATURES
    ]
    return "\n".join(
        [
            "# Engines\n",
            NOTICE,
            "es-ttc works with these engines:\n",
            "| product | oldest version | maintained by its vendor (November 2026) |\n| --- | --- | --- |",
            *rows,
            "",
            "Every command refuses an older engine, and any other program, in one sentence. The gateway forwards "
            "requests to an older engine unchanged, and refuses searches with a section `ttc` (400, "
            "`ttc_unsupported_engine_exception`). `es-ttc doctor` warns where the vendor does not maintain the "
            "version. Which versions are tested: [engine versions](../results/engine-versions.md).\n",
            "## What depends on the version\n",
            "| feature | Elasticsearch | OpenSearch | without it |\n| --- | --- | --- | --- |",
            *features,
            "",
            "## What is detected\n",
            "What depends on the installation is detected at the first connection: OpenSearch's k-NN plugin on every "
            "data node (without it there are no vector fields), Elasticsearch's licence (`rank_vectors` needs "
            "Enterprise), and the greatest HTTP body. A user who may not see nodes or licence gets the usual limits.\n",
            "es-ttc speaks to Elasticsearch through elasticsearch-py 8.19 or newer, whatever the engine's version, and "
            "to OpenSearch through opensearch-py.\n",
            _RIGHTS,
            _SERVERLESS,
        ]
    )


def _since(feature: versions.VersionedFeature, product: versions.Product) -> str:
    since = feature.since.get(product)
    return "never" if since is None else f"{dotted(since)}"


def rewriters_page() -> str:
    """Return the page of all rewriters with their parameters."""
    parts = ["# Methods of the `query` hook\n", NOTICE]
    for name in rewriters.names():
        rewriter = rewriters.load(name)
        doc = inspect.getdoc(type(rewriter)) or ""
        model = "Uses a language model." if rewriter.asks_model else "Uses no language model."
        parts += [f"## `{name}`\n", doc + "\n", f"{model} Parameters:\n", _fields_table(rewriter.Params)]
    return "\n".join(parts)


def section_page() -> str:
    """Return the page of the keys of the `ttc` section."""
    example = '{"rescore": {"window_size": 100, "ttc": {"method": "blend", "timeout": "200ms", "detail": true}}}'
    beside = '{"retriever": {"rrf": {...}}, "ext": {"ttc": {"window_size": 100, "query_text": "heart attack"}}}'
    clause = '{"knn": {"field": "ttc.vector", "query_text": "heart attack", "k": 10, "ttc": {"method": "nnn"}}}'
    query = '{"query": {"ttc": {"method": "sira", "query_text": "heart attack"}}}'
    parts = [
        "# The `ttc` section\n",
        NOTICE,
        "The object by which a request opts in. Put it into `rescore`, alone or last in a list after native rescorers; "
        f"up to {MAX_ITEMS} items with it [run in order](../how-to/rerank-in-several-steps.md). "
        "`window_size` beside it is the number of first-pass documents that are rescored (default 100).\n",
        f"```json\n{example}\n```\n",
        "Beside Elasticsearch's `retriever`, which allows no `rescore`, it stands in `ext`, with `window_size` inside. "
        "The retriever's first hits are the window, totals and aggregations are the engine's, and no documents join. A "
        "window is at most the retriever's `rank_window_size` (10 if it names none). `collapse` is the engine's: it "
        "groups before the window is ranked.\n",
        f"```json\n{beside}\n```\n",
        "In a kNN clause it names the retrieval [method](retrievers.md). `score_mode` and the weights are only for "
        "`rescore`, and `on_error: first_pass` means the engine's own kNN.\n",
        f"```json\n{clause}\n```\n",
        "As a query it is rewritten to one native query by a [method](rewriters.md). It needs `query_text`, and "
        "`on_error: first_pass` means the plain query.\n",
        f"```json\n{query}\n```\n",
        _fields_table(Section),
        "An unknown key, a wrong type or a value out of range is a 400 in the engine's own error shape that names the "
        "key and the nearest valid one.\n",
        "Only a malformed section is a 400. Whatever else is missing or fails (features, an encoder, a text, a model, "
        "a method, time) leaves the engine's own ranking, with `ttc.applied: false`, the reason in `ttc.reason` and "
        "the header `x-ttc-applied: false`; `on_error: fail` makes it an error.\n",
        "The window has `window_size` documents whatever page is shown, so the first hits do not change with `size` "
        "and `from`. Scores are never negative and never rise down the page. Documents outside the window follow in "
        "the engine's order; `ttc.window` says where it ends. All other "
        "parts of a search (`aggs`, `highlight`, `fields`, `_source`, `post_filter`, `min_score`, `explain`, "
        "`profile`, points in time, aliases, routing) are the engine's, except `highlight` with "
        "[type `ttc`](../how-to/show-passages.md); [known limits](../known-limits.md) lists what does not work.\n",
        *DOCUMENTS_THAT_JOIN,
        "## Changes\n",
        "- 0.1.0: an index without features or of another encoder, a search without a text, a missing graph, numeric "
        "field or language model, and fields that an index lacks gave a 400 whatever `on_error` said. They now leave "
        "the engine's own ranking. With `on_error: fail` the error is as before, and a missing text has the type "
        "`ttc_missing_text_exception`.\n",
    ]
    return "\n".join(parts)


def endpoints_page() -> str:
    """Return the page of the gateway's own endpoints."""
    parts = [
        "# Endpoints below `/_ttc/`\n",
        NOTICE,
        "All other requests are the engine's. `GET /_ttc/openapi.json` describes these in OpenAPI 3.1, with the form "
        "of every body. Errors have the engines' form. `GET /_ttc/search.schema.json` is the JSON Schema of a search "
        "body with a [`ttc` section](section.md): an editor that knows it completes methods and parameters, and marks "
        "what the gateway would refuse ([how](../how-to/connect-a-client.md#check-a-search-body-in-an-editor)).\n",
        "A token is wanted only where it is set; `admin_open` names endpoints that need no `admin_token` "
        "([settings](settings.md)).\n",
        "| request | what it does | body | carries |\n| --- | --- | --- | --- |",
    ]
    carried = {
        "engine": "`admin_token`, the caller's credentials",
        "model_token": "`model_token` or `admin_token`",
        "sidecar_token": "`sidecar_token`",
    }
    for one in OPERATIONS:
        body = " or ".join(f"`{model.__name__}`" for model in one.body)
        carries = carried[one.security] if one.security else "`admin_token`"
        parts.append(f"| `{one.method.upper()} {one.path}` | {_cell(one.summary)} | {body} | {carries} |")
    for model in dict.fromkeys(model for one in OPERATIONS for model in one.body):
        parts += [
            f"\n## `{model.__name__}`\n",
            (inspect.getdoc(model) or "").split("\n", 1)[0] + "\n",
            _fields_table(model),
        ]
    return "\n".join(parts)


def rerankers_page() -> str:
    """Return the page of all kinds of rerankers with their settings."""
    parts = [
        "# Kinds of rerankers\n",
        NOTICE,
        "The settings of a table `[rerankers.NAME]` in `es-ttc.toml`, in addition to its `kind`.\n",
    ]
    for name in rerankers.kinds():
        found = rerankers.kind(name)
        parts += [f"## `{name}`\n", (inspect.getdoc(type(found)) or "") + "\n", _fields_table(found.Settings)]
    return "\n".join(parts)


def settings_page() -> str:
    """Return the page of all settings with type and default."""
    parts = [
        "# Settings\n",
        NOTICE,
        "A setting is read from, in this order: the command's flag, the `ES_TTC_*` variable, `es-ttc.toml` in the "
        "working folder (same names), the default. The variable of `request_timeout` is `ES_TTC_REQUEST_TIMEOUT`.\n",
        "## All commands\n",
        _fields_table(Settings),
        "## The gateway\n",
        _fields_table(GatewaySettings, skip=Settings.model_fields),
    ]
    return "\n".join(parts)


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
            "provisional": "Kind RerankerSettings PointwiseReranker ListwiseReranker Passage"
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
        "or notebook imports from these modules. All else in `es_ttc` is internal and may change with any version. The "
        "package is typed (`py.typed`); docstrings give shapes, units and errors.\n",
        "- **stable**: changes only with a new major version; before 1.0, only with a new minor version, after one "
        "minor version in which the changelog has announced it.",
        "- **provisional**: may change with any minor version; the changelog says how.\n",
        "Names of methods, their parameters, the `ttc` section, commands and settings are stable.\n",
    ]
    for section, modules in API.items():
        parts.append(f"## {section}\n")
        for module, names in modules.items():
            loaded = importlib.import_module(module)
            for stability, listed in names.items():
                parts.append(f"### `{module}` ({stability})\n")
                parts += [_documented(name, getattr(loaded, name)) for name in listed.split()]
    return "\n".join(parts)


def _documented(name: str, thing: Any) -> str:
    """Return the first line of a docstring, and the signatures without bodies."""
    summary = (inspect.getdoc(thing) or "").split("\n", 1)[0]
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    if inspect.ismethod(thing) and isinstance(definition, ast.FunctionDef):
        del definition.args.args[0]  # a registry's method under a name of the module
    return f"`{name}`: {summary}\n\n```python\n" + "\n".join(_signatures(definition)) + "\n```\n"


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


def _examples(command: click.Command) -> list[str]:
    """Return the command lines of a command's epilog, which begins with a line that keeps click from wrapping it."""
    lines = inspect.cleandoc((command.epilog or "").replace("\b", "")).splitlines()
    return [line.strip() for line in lines if line.strip() not in ("", "Examples:")]


def _fields_table(model: type[BaseModel], *, skip: Collection[str] = ()) -> str:
    fields = {field.alias or name: field for name, field in model.model_fields.items() if name not in skip}
    if not fields:
        return "None.\n"
    schema = model.model_json_schema()
    rows = "".join(
        f"| `{name}` | {_cell(_type(schema['properties'][name], schema.get('$defs', {})))} | {_default(field)} "
        f"| {_cell(field.description or '')} |\n"
        for name, field in fields.items()
    )
    return f"| name | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}"


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
        return "the user's cache folder"
    if field.annotation is int and field.default_factory is not None:
        return "the cores, at most 4"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value in (None, (), {}) or isinstance(value, BaseModel):
        return ""
    listed = (
        ", ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value)
        if isinstance(value, tuple)
        else value
    )
    return f"`{_cell(str(listed))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "api.md": api_page,
    "commands.md": commands_page,
    "endpoints.md": endpoints_page,
    "engines.md": engines_page,
    "methods.md": methods_page,
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
