"""Runs the engines' own YAML search tests directly and through the gateway, and compares the answers.

Every search gets a section that changes nothing: no candidates, and no weight. The indices get features beside them.
The assertions of the tests are not read: an answer of the engine is the model of the gateway's. A search that a native
rescorer changes (a `sort`, a scroll, an early end) may be answered as beside one that matches nothing::

    python -m tests.support.yaml_suites opensearch
"""

import asyncio
import json
import logging
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode

import click
import orjson
import yaml

from benchmarks.common import table
from es_ttc.common import maven
from es_ttc.common.maven import Artifact, Pinned
from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.errors import EsTtcError
from es_ttc.index.attach import attach_beside, detach, traces_of
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.rescore.page import without_guard
from es_ttc.settings import EngineSettings, Settings
from tests.serving.client import Reply, call
from tests.support.gateway import gateway_to
from tests.support.shared_nodes import PRODUCTS, started

SUITES: Mapping[str, Pinned] = {
    "opensearch": Pinned(
        Artifact("org.opensearch", "rest-api-spec", "3.0.0"),
        "5364e283cd33a76e1724639201f91a900462fbd726f1f1aa56540dfb964a6cdd",
        427_032,
    ),
    "elasticsearch": Pinned(
        Artifact("org.elasticsearch", "rest-api-spec", "7.10.2"),
        "142f3c90c1dba2e206476e7775bfbac387dce07e3edc822b2b2b82d2ee541249",
        403_132,
    ),
}
"""The newest releases of the tests that package registries carry."""
FOLDERS = ("mlt", "msearch", "range", "scroll", "search", "suggest")
WEIGHTLESS = {"candidates": {"knn": 0}, "score_mode": "total", "rescore_query_weight": 0}
ITEM = {"window_size": 50, "ttc": {"query_text": "any text", **WEIGHTLESS}}
NATIVE = {"window_size": 50, "query": {"rescore_query": {"match_none": {}}}}
EXCEPTIONS: Mapping[str, str] = {
    "search/110_field_collapsing: field collapsing and rescore": "a native rescorer beside `collapse` is answered, "
    "where the engine refuses it",
    "search/190_index_prefix_search: search with index prefixes": "the explanation contains an address in memory",
}
"""Sections with searches that differ, and why."""


class Suite:
    """The tests of one product."""

    def __init__(self, product: str) -> None:
        pin = SUITES[product]
        self._archive = zipfile.ZipFile(maven.fetch([pin], Settings().cache_dir / "suites")[pin.artifact])
        paths = [one for one in self._archive.namelist() if re.fullmatch(r"rest-api-spec/api/[^_].*\.json", one)]
        self.apis = {name: api for path in paths for name, api in orjson.loads(self._archive.read(path)).items()}

    def sections(self, only: str = "") -> Iterator[tuple[str, list[Any]]]:
        """Yield the name of each section and its steps, with those of the file's set-up."""
        for path in sorted(self._archive.namelist()):
            _, _, name = path.partition("/test/")
            if name.partition("/")[0].partition(".")[0] not in FOLDERS or not name.endswith(".yml") or only not in name:
                continue
            parts: dict[str, Any] = {}
            for part in yaml.safe_load_all(self._archive.read(path)):
                parts |= part or {}
            before, after = parts.pop("setup", []), parts.pop("teardown", [])
            for title, steps in parts.items():
                yield f"{name.removesuffix('.yml')}: {title}", [*before, *steps, *after]

    def request(self, name: str, params: Mapping[str, Any]) -> tuple[str, str, Any, str]:
        """Return a call's method, path, body and URL parameters."""
        paths = [one for one in self.apis[name]["url"]["paths"] if one.get("parts", {}).keys() <= params.keys()]
        best = max(paths, key=lambda one: len(one.get("parts", {})))
        values = {key: _text(value) for key, value in params.items() if key not in ("body", "ignore")}
        target = best["path"]
        for part in best.get("parts", {}):
            target = target.replace(f"{{{part}}}", quote(values.pop(part), safe=",*"))
        methods = best["methods"]
        method = "POST" if "POST" in methods and "PUT" not in methods else methods[0]
        return method, target, params.get("body"), f"?{urlencode(values)}" if values else ""


class Section:
    """One section of a suite, run against an engine and the gateway before it.

    Attributes:
        counts: Searches by how they were answered.
        different: Searches whose answers differ, with both answers.
    """

    def __init__(self, suite: Suite, engine: str, gateway: str, encoder: Encoder) -> None:
        self._suite, self._engine, self._gateway, self._encoder = suite, engine, gateway, encoder
        self._written: set[str] = set()
        self._changed = False
        self.counts: Counter[str] = Counter()
        self.different: list[tuple[Any, Any, Any]] = []

    def run(self, steps: list[Any]) -> Self:
        """Run the section, then delete its indices."""
        try:
            for step in steps:
                if "do" in step:
                    self._do(dict(step["do"]))
        finally:
            asyncio.run(self._features(remove=True))
            for name in self._written:
                call(self._engine, "DELETE", f"/{quote(name)}?ignore_unavailable=true")
        return self

    def _do(self, step: dict[str, Any]) -> None:
        headers = {str(key): str(value) for key, value in step.pop("headers", {}).items()}
        [(name, given)] = [(key, value) for key, value in step.items() if key in self._suite.apis]
        params = given or {}
        method, target, body, url = self._suite.request(name, params)
        if name in ("search", "msearch"):
            if self._changed:
                asyncio.run(self._features())
                self._changed = False
            self._compare(name, method, target + url, body, headers)
            return
        if name not in ("indices.refresh", "scroll", "clear_scroll", "count"):
            self._changed = True
            self._written |= set(re.findall(r'"_index":\s*"([^"]+)"', _lines(body).decode()))
            if "index" in params and name in ("index", "create", "bulk", "indices.create"):
                self._written.add(str(params["index"]))
        sent = None if body is None else _lines(body)
        call(self._engine, method, target + url, sent, _types(sent, name) | headers)

    def _compare(self, name: str, method: str, target: str, body: Any, headers: Mapping[str, str]) -> None:
        """Send a search directly and through the gateway, and note how the answers compare."""
        plain, ours, native = (_with(name, body, item) for item in (None, ITEM, NATIVE))
        headers = {**_types(ours, name), **headers}
        through = call(self._gateway, method, target, ours, headers)
        direct = call(self._engine, method, target, plain, headers if plain else {})
        if (seen := comparable(through)) == (model := comparable(direct)):
            how = "the same"
        elif seen == comparable(call(self._engine, method, target, native, headers)):
            how = "as beside a native rescorer"
        else:
            how = "different"
            self.different.append((body, model, seen))
        self.counts[how] += 1
        if direct.status != 200:
            self.counts["(errors)"] += 1
        if b'"applied":true' in through.body:
            self.counts["(applied)"] += 1

    async def _features(self, *, remove: bool = False) -> None:
        """Give the section's indices features of their strings, or remove them."""
        engine = await connect(EngineSettings(engine=self._engine))
        try:
            for name in self._written:
                if remove:
                    for traces in await traces_of(engine, name):
                        await detach(engine, traces)
                    continue
                for source in await Index.behind(engine, name):
                    fields = source.mapping.get("properties", {}).items()
                    texts = tuple(field for field, one in fields if one.get("type") in ("text", "keyword"))
                    if texts:
                        spec = IndexSpec(self._encoder.identity, text_fields=texts)
                        await attach_beside(engine, source, spec, self._encoder)
        except EsTtcError:
            self.counts["(no features)"] += 1
        finally:
            await engine.close()


def comparable(reply: Reply) -> Any:
    """Return an answer without what may differ between two runs of one search, and without our marks."""
    answer = reply.json()
    if reply.status != 200:
        return answer["error"]["type"]
    for one in answer.get("responses", [answer]):
        if "error" in one:
            one["error"] = one["error"]["type"]
        for key in ("took", "ttc", "_scroll_id"):
            one.pop(key, None)
        profile = one.pop("profile", {})
        one["profiled"] = len(profile.get("shards", ()))
        for hit in one.get("hits", {}).get("hits", ()):
            explanation = hit.get("_explanation", {})
            if "ttc" in explanation.get("description", ""):
                assert explanation["value"] == hit["_score"]
                hit["_explanation"] = explanation["details"][-1]
            elif explanation:
                hit["_explanation"] = without_guard(explanation)
    answer.pop("took", None)
    return answer


def _with(name: str, body: Any, item: Any) -> bytes | None:
    """Return the bytes of a search, or of several, with one more rescorer."""
    if isinstance(body, str) and name == "search":
        body = orjson.loads(body) if body.strip() else None
    if item is None:
        return None if body is None else _lines(body)
    if name == "search":
        return _dumps(_rescored(body or {}, item))
    lines = [orjson.loads(one) for one in _lines(body).splitlines() if one.strip()]
    return b"".join(_dumps(_rescored(one, item) if place % 2 else one) + b"\n" for place, one in enumerate(lines))


def _dumps(value: Any) -> bytes:
    """Return JSON; YAML has numbers beyond 64 bits, keys that are numbers, and dates."""
    return json.dumps(value, default=lambda date: date.isoformat()).encode()


def _rescored(body: dict[str, Any], item: Any) -> dict[str, Any]:
    given = body.get("rescore", [])
    return {**body, "rescore": [*(given if isinstance(given, list) else [given]), item]}


def _lines(body: Any) -> bytes:
    if isinstance(body, list):
        return b"".join((one.strip().encode() if isinstance(one, str) else _dumps(one)) + b"\n" for one in body)
    return body.encode() if isinstance(body, str) else b"" if body is None else _dumps(body)


def _types(sent: bytes | None, name: str) -> dict[str, str]:
    kind = "x-ndjson" if name in ("bulk", "msearch") else "json"
    return {} if sent is None else {"content-type": f"application/{kind}"}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@click.command()
@click.argument("product", type=click.Choice([*SUITES]))
@click.option("--only", default="", help="A part of the name of the files that are run.")
def main(product: str, only: str) -> None:
    """Run a product's suite on a node of its own; fail where a section differs that is no exception."""
    configure_logs(logging.ERROR)
    encoder = load_encoder("minilm", cache_dir=Settings().cache_dir)
    suite, counts, unexpected = Suite(product), Counter[str](), 0
    with (
        started(PRODUCTS[product](), name=f"yaml-{product}") as node,
        gateway_to(node.url, encoder, scoring_timeout_ms=60_000) as gateway,
    ):
        for name, steps in suite.sections(only):
            section = Section(suite, node.url, gateway, encoder).run(steps)
            counts += section.counts
            for body, model, seen in section.different:
                unexpected += name not in EXCEPTIONS
                click.echo(f"{name}: {EXCEPTIONS.get(name, 'DIFFERENT')}: {body}")
                if name not in EXCEPTIONS:
                    click.echo(f"  directly {model}\n  through  {seen}")
    click.echo(table(("searches", "number"), sorted(counts.items())))
    sys.exit(1 if unexpected else 0)


if __name__ == "__main__":
    main()
