"""Lines of a bulk: found the same however the body is cut, and the parts together are the body."""

import itertools

import orjson
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.serving.writes import bulk
from es_ttc.serving.writes.bulk import Action, BulkLines

_INDEX = st.none() | st.sampled_from(["one", "two", "中 文"])
_DOCUMENTS = st.binary(max_size=40).filter(lambda line: b"\n" not in line)


@st.composite
def items(draw: st.DrawFn) -> tuple[bytes, list[tuple[Action, bytes]]]:
    """A body, and what is in it by the literal rule of the engines."""
    lines: list[bytes] = []
    expected: list[tuple[Action, bytes]] = []
    for _ in range(draw(st.integers(0, 6))):
        lines += draw(st.lists(st.sampled_from([b"", b" ", b"\r"]), max_size=2))
        operation = draw(st.sampled_from(["index", "create", "update", "delete"]))
        meta = {"_index": draw(_INDEX), "pipeline": draw(st.none() | st.just("p")), "_id": draw(st.text(max_size=3))}
        meta = {name: value for name, value in meta.items() if value is not None}
        lines.append(orjson.dumps({operation: meta}) + draw(st.sampled_from([b"", b"\r", b"  "])))
        if operation != "delete":
            document = draw(_DOCUMENTS | st.just(b'{"index":{"_index":"a trap"}}') | st.just(b""))
            lines.append(document)
            expected.append((Action(operation, meta.get("_index"), meta.get("pipeline")), document + b"\n"))
    return b"".join(line + b"\n" for line in lines), expected


def found_in(body: bytes, cuts: list[int]) -> tuple[bytes, list[tuple[Action, bytes]], list[Action]]:
    """Feed a body in chunks that end at some places."""
    lines, edges = BulkLines(), sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    parts = [lines.feed(body[start:end]) for start, end in itertools.pairwise(edges)]
    parts.append(lines.end())
    documents = [(one.action, part.data[one.start : one.end]) for part in parts for one in part.documents]
    assert all(
        next(iter(orjson.loads(part.data[one.action_start : one.start]))) == one.action.operation
        for part in parts
        for one in part.documents
    )
    return b"".join(part.data for part in parts), documents, [action for part in parts for action in part.long]


CUTS = st.lists(st.integers(0, 2000), max_size=8)


@given(items(), CUTS)
def test_documents_are_found_however_the_body_is_cut(
    case: tuple[bytes, list[tuple[Action, bytes]]], cuts: list[int]
) -> None:
    body, expected = case
    assert found_in(body, cuts) == (body, expected, [])


@given(st.binary(max_size=300) | items().map(lambda case: case[0]), st.integers(0, 300), st.binary(max_size=5), CUTS)
def test_any_bytes_are_kept(body: bytes, servers: int, damage: bytes, cuts: list[int]) -> None:
    broken = body[:servers] + damage + body[servers + len(damage) :]
    joined, documents, _ = found_in(broken, cuts)
    assert joined == broken
    assert (joined, documents) == found_in(broken, [])[:2]


def test_after_a_line_that_is_no_action_nothing_is_found() -> None:
    good = b'{"index":{}}\n{"a":1}\n'
    for bad in (
        b"[]\n",
        b'{"index":1}\n',
        b'{"index":{},"x":1}\n',
        b'{"drop":{}}\n',
        b'{"index":{"_index":1}}\n',
        b"x\n",
    ):
        body = good + bad + good
        joined, documents, _ = found_in(body, [])
        assert joined == body
        assert [line for _, line in documents] == [b'{"a":1}\n']


def test_long_lines_are_passed_in_parts() -> None:
    lines, size = BulkLines(), bulk.MAX_DOCUMENT_BYTES
    first = lines.feed(b'{"create":{"_index":"i"}}\n{"text":"')
    assert (first.documents, first.long) == ([], [])
    held = sum(len(lines.feed(b"x" * 60_000).data) for _ in range(size // 60_000))
    assert held == 0
    long = lines.feed(b"x" * 60_000)
    assert len(long.data) > size
    assert [action.target for action in long.long] == ["i"]
    assert lines.feed(b"x" * 60_000).data == b"x" * 60_000
    last = lines.feed(b'"}\n{"index":{}}\n{}\n')
    assert [last.data[one.start : one.end] for one in last.documents] == [b"{}\n"]
    endless = BulkLines()
    assert endless.feed(b'{"index":{' + b" " * bulk.MAX_ACTION_BYTES).data
    assert endless.feed(b'}}\n{"index":{}}\n{}\n').documents == []


def test_a_document_without_a_newline_is_not_complete() -> None:
    lines = BulkLines()
    lines.feed(b'{"index":{"_index":"i"}}\n{"a":1}')
    rest = lines.end()
    assert rest.data == b'{"index":{"_index":"i"}}\n{"a":1}'
    assert [action.target for action in rest.long] == ["i"]
