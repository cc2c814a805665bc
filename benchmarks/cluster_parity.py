"""One node with one shard against three nodes with 3 shards and a replica of each: the same documents and searches.

    python -m benchmarks.cluster_parity [--product opensearch elasticsearch] [--queries 100]

Each search is sent through a gateway in front of the one node and through one in front of all three, as it is and with
`search_type=dfs_query_then_fetch`. `apart` is the greatest difference of a document's scores in the two; `same` counts
the searches whose ten hits have the same documents with the same scores to 1e-4, ties in any order; `shared` is the
mean share of the ten hits that are in both. `copies` counts the searches that three values of `preference`, which
choose other copies of the shards, answer alike. The run starts its own nodes; a scripted model proposes the vocabulary
of `sira`.
"""

import argparse
import asyncio
import http.client
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster import DATA, DFS, SEARCHES, Body, cached_encoder, collection, indexed, proposals
from benchmarks.common import heading, table
from benchmarks.served import gateway
from es_ttc.lab.evaluation.datasets import Collection
from tests.serving.client import call
from tests.support.llm import scripted_model_beside
from tests.support.own_node import OwnNode
from tests.support.rankings import Ranking
from tests.support.three_nodes import PRODUCTS, distribution_of, three_nodes

INDEX = "benchmark-cluster"
SIZE = 10
COPIES = ("a", "b", "c")
"""Values of `preference`."""


@dataclass
class Row:
    """What was found of one kind of search, sent one way.

    Attributes:
        apart: Greatest difference of a document's scores.
        same: Searches with the same ranking.
        shared: Documents of all pages that are in both.
        copies: Searches that other copies of the shards answer alike.
        searches: All.
    """

    apart: float = 0.0
    same: int = 0
    shared: int = 0
    copies: int = 0
    searches: int = 0


@dataclass
class Report:
    """The rows by kind of search and way, and what was not answered as it should be."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def main() -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--product", nargs="+", choices=PRODUCTS, default=list(PRODUCTS))
    parser.add_argument("--data", type=Path, default=DATA / "cranfield")
    parser.add_argument("--documents", type=int, help="the first ones only")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--methods", nargs="+", choices=list(SEARCHES), default=list(SEARCHES))
    parser.add_argument("--port", type=int, default=19841, help="of the first of three nodes")
    arguments = parser.parse_args()
    documents = collection(arguments.data, arguments.documents)
    texts = list(documents.queries.values())[: arguments.queries]
    faults: list[str] = []
    for product in arguments.product:
        with both(product, documents, arguments.port) as (one, three):
            report = compared(one, three, {name: SEARCHES[name] for name in arguments.methods}, texts)
        data = f"{documents.name}, {len(documents.documents):,} documents, {len(texts)} queries, all-MiniLM-L6-v2"
        print(heading(f"One node and three, {product}", data=data, packages=("numpy",)))
        columns = ("search", "search_type", "apart", "same", "shared", "copies")
        print(table(columns, [(*name, *cells(row)) for name, row in report.rows.items()]), flush=True)
        faults += report.faults
    for fault in faults[:10]:
        print(fault, file=sys.stderr)
    sys.exit(bool(faults))


def cells(row: Row) -> tuple[str, ...]:
    """Return a row's figures as they are printed."""
    shared = row.shared / (SIZE * row.searches)
    return f"{row.apart:.1e}", f"{row.same}/{row.searches}", f"{shared:.3f}", f"{row.copies}/{row.searches}"


@contextmanager
def both(product: str, documents: Collection, port: int) -> Iterator[Sequence[str]]:
    """Run one node and three with a collection in each; give the addresses of the gateways in front of them."""
    with ExitStack() as stack:
        one = OwnNode("one", distribution_of(product))
        stack.callback(one.stop)
        three = stack.enter_context(three_nodes(product, heap="512m", port=port))
        encoder = cached_encoder()
        asyncio.run(indexed(one.url, INDEX, documents, encoder, shards=1, replicas=0))
        asyncio.run(indexed(three.engine, INDEX, documents, encoder, shards=3, replicas=1))
        three.await_status()
        model = stack.enter_context(scripted_model_beside(proposals))
        yield [
            stack.enter_context(gateway(url, llm_url=model.url, llm_api="completions")).url
            for url in (one.url, three.engine)
        ]


def compared(one: str, three: str, searches: Mapping[str, Any], texts: list[str]) -> Report:
    """Send each search both ways through both gateways."""
    report = Report()
    for name, body_of in searches.items():
        for way, query in (("query_then_fetch", ""), ("dfs_query_then_fetch", DFS)):
            row = report.rows[name, way] = Row()
            for text in texts:
                try:
                    expected = answered(one, body_of(text), query)
                    actual, *others = (answered(three, body_of(text), f"{query}&preference={copy}") for copy in COPIES)
                except AssertionError as error:
                    report.faults.append(f"{name}, {way}: {error}")
                    continue
                row.searches += 1
                row.apart = max(row.apart, expected.apart(actual))
                row.same += expected.same(actual)
                row.shared += expected.shared(actual)
                row.copies += all(map(actual.same, others))
            print(name, way, cells(row), file=sys.stderr, flush=True)
    return report


def answered(url: str, body: Body, query: str) -> Ranking:
    """Return the ranking of a search, which must be answered in whole and by the method."""
    reply = call(url, "POST", f"/{INDEX}/_search?{query}", body)
    assert reply.status == http.client.OK, f"{reply.status} {reply.body[:300]!r}"
    answer = reply.json()
    assert not answer["_shards"]["failed"], f"{answer['_shards']}"
    assert answer.get("ttc", {"applied": True})["applied"], f"{answer['ttc']}"
    assert len(answer["hits"]["hits"]) == SIZE, f"{len(answer['hits']['hits'])} hits"
    return Ranking.of(answer)


if __name__ == "__main__":
    main()
