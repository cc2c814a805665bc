"""From a search to the gateway."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from es_ttc.cli.app import run
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.discovery.evaluator import Limits
from es_ttc.lab.discovery.evaluator import run as sandboxed
from es_ttc.lab.discovery.promotion import is_calibrated
from es_ttc.lab.discovery.records import ProgramRecord, ProposedProgram, read_memory
from es_ttc.lab.discovery.tasks import DiscoveryTask
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.programs import promoted
from es_ttc.serving.app import create_app
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.process import OnlyProcess
from es_ttc.settings import GatewaySettings
from es_ttc.vectors.chunks import GRANULARITIES, DocumentChunks
from es_ttc.vectors.tokens import TokenVectors

WORDS = """import numpy as np
from es_ttc.rescorers.programs.primitives.fusion import reciprocal_rank_fusion
def program(Q, D, S, ctx):
    return reciprocal_rank_fusion([S, ctx.lexicon().overlap(ctx.query_texts)])
"""

CALIBRATED = """from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.rescorers.programs.primitives.standardise import along_queries
def program(Q, D, S, ctx):
    return along_queries(S, D, ctx.calibration or Moments.of(Q))
"""

BEGIN = [
    "--generated",
    "limit-style",
    "--max-documents",
    "12",
    "--max-queries",
    "6",
    "--seeds",
    "none",
    "--generations",
    "2",
]
BEGIN += ["--encoder", "minilm@onnx"]


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_TTC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("ES_TTC_PROGRAMS", raising=False)
        yield


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of two recorded programs, one of which is refused."""
    home = tmp_path_factory.mktemp("found")
    recording = home / "recording.jsonl"
    lines = [{"source": WORDS, "origin": "replay", "novelty": "words"}, {"source": "import os", "origin": "replay"}]
    recording.write_text("\n".join(json.dumps(line) for line in lines))
    folder = home / "search"
    assert run(["discover", "run", str(folder), *BEGIN, "--proposer", str(recording)]) == 0
    return folder


def test_from_a_search_to_a_request(
    found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], bees: DiscoveryTask
) -> None:
    programs = tmp_path / "programs"
    assert run(["discover", "promote", str(found), "g001", "--as", "words-first", "--to", str(programs), "--yes"]) == 0
    told = capsys.readouterr().out
    assert "limit-style" in told
    assert f"es-ttc serve --programs {programs}" in told
    manifest = json.loads((programs / "words-first.json").read_bytes())
    assert manifest["readings"] == ["texts"]
    (report,) = manifest["report"]["held_out"]
    assert report["interval"][0] <= report["delta"] <= report["interval"][1]
    assert report["queries"] == 6

    choice = registry.load("program")
    with pytest.raises(InvalidRequest, match="unknown program"):
        registry.parse_params(choice, {"name": "words-first"})
    params = registry.parse_params(choice, {"name": "words-first"}, promoted.read_programs(programs))
    assert choice.needs(params) == {Feature.POOLED, Feature.CHUNKS}
    (ran,) = sandboxed(WORDS, [bees], Limits())
    for row, text in enumerate(bees.query_texts):
        scores = choice.score(Query(text, bees.queries[row : row + 1]), _window(bees), params)
        np.testing.assert_allclose(scores, ran.scores[row], rtol=1e-6)
    assert choice.detail(Query("x", bees.queries[:1]), _window(bees), params)[0]["program"] == "words-first"


def test_a_program_whose_scores_depend_on_other_queries_is_not_calibrated(tasks: list[DiscoveryTask]) -> None:
    def record(source: str) -> ProgramRecord:
        return ProgramRecord(
            generation=1, name="g001", proposal=ProposedProgram(source=source, origin="t"), verdict="measured"
        )

    by_batch = "def program(Q, D, S, ctx):\n    return S - S.mean(axis=0, keepdims=True)\n"
    for task in tasks:
        sample = task.queries[:-1]
        assert not is_calibrated(record(WORDS), task, sample, Limits())
        assert is_calibrated(record(CALIBRATED), task, sample, Limits())
        with pytest.raises(InvalidRequest, match="one at a time"):
            is_calibrated(record(by_batch), task, sample, Limits())


def test_a_file_that_was_changed_is_not_served(found: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    assert run(["discover", "promote", str(found), "g001", "--to", str(programs), "--yes", "--json"]) == 0
    gateways = [Gateway(GatewaySettings(programs=folder), None, OnlyProcess()) for folder in (programs, None)]
    assert [list(gateway.served["programs"]) for gateway in gateways] == [["g001"], []]
    path = programs / "g001.py"
    path.write_text(WORDS.replace("overlap", "bigrams"))
    with pytest.raises(ConfigurationError, match=r"g001\.py\]"):
        create_app(GatewaySettings(programs=programs))
    manifest = json.loads((programs / "g001.json").read_bytes())
    path.write_text("import os\n")
    (programs / "g001.json").write_text(json.dumps({**manifest, "sha256": promoted.program_digest("import os\n")}))
    with pytest.raises(ConfigurationError, match="forbidden"):
        promoted.read_programs(programs)
    (programs / "g001.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="no file of `es-ttc discover promote`"):
        promoted.read_programs(programs)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["promote", "SEARCH", "g001", "--to", "X"], "a person promotes a program"),
        (["promote", "SEARCH", "g002", "--to", "X", "--yes"], "[g002] was rejected (forbidden"),
        (["promote", "SEARCH", "g01", "--to", "X", "--yes"], "has no program [g01]: did you mean [g001]?"),
        (["promote", "SEARCH", "g001", "--yes"], "--to FOLDER, or ES_TTC_PROGRAMS"),
        (["promote", "SEARCH", "g001", "--to", "X", "--as", "../x", "--yes"], "cannot be a program's name"),
        (["promote", "SEARCH", "g001", "--to", "X", "--as", "covtriple", "--yes"], "one of the paper's programs"),
        (["run", "SEARCH", "data"], "leave DATA out to go on with it"),
        (["run", "NEW"], "holds no search yet"),
        (["run", "NEW", "--generated", "nothing"], "no generated task [nothing]"),
        (["run", "SEARCH", "--proposer", "lm"], "there is no file [lm]"),
        (["status", "NEW"], "holds no search"),
        (["export", "SEARCH", "x.txt"], "an export is .jsonl"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    places = {"SEARCH": str(found), "NEW": str(tmp_path / "new"), "X": str(tmp_path / "x")}
    assert run(["discover", *(places.get(one, one) for one in arguments)]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_status_show_and_export_of_a_search(found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["discover", "run", str(found), "--generations", "2", "--proposer", "grammar"]) == 0
    told = capsys.readouterr().out
    assert ".jsonl: 2, valid 1" in told
    assert "rejected: 1 forbidden" in told
    assert run(["discover", "status", str(found), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proposals"]["rejected"] == {"forbidden": 1}
    assert run(["discover", "show", str(found), "g001"]) == 0
    assert "reciprocal_rank_fusion" in capsys.readouterr().out
    assert run(["discover", "export", str(found), str(tmp_path / "all.jsonl")]) == 0
    assert run(["discover", "export", str(found), str(tmp_path / "all.csv")]) == 1
    recorded = ["--proposer", str(tmp_path / "all.jsonl")]
    assert run(["discover", "run", str(tmp_path / "again"), *BEGIN, *recorded]) == 0
    one, other = read_memory(found)[1], read_memory(tmp_path / "again")[1]
    assert [(record.mean, record.cost, record.reason) for record in one] == [
        (record.mean, record.cost, record.reason) for record in other
    ]


def _window(task: DiscoveryTask) -> Window:
    """The task's documents as the gateway has them."""
    texts = list(_texts(task))
    nothing = TokenVectors(np.zeros((0, task.documents.shape[1]), np.float32))
    spans = dict.fromkeys(GRANULARITIES, np.zeros((0, 2), np.int32))
    topic = TokenVectors(np.zeros((1, task.documents.shape[1]), np.float32))
    return Window(
        ids=list(task.document_ids),
        first_pass=np.zeros(len(texts), np.float32),
        pooled=task.documents,
        chunks=[DocumentChunks(text, spans, dict.fromkeys(GRANULARITIES, nothing), topic) for text in texts],
    )


def _texts(task: DiscoveryTask) -> list[str]:
    shared = task.document_texts
    ends = np.frombuffer(shared.ends.read(), np.int64)
    blob = shared.blob.read()
    return [blob[start:end].decode() for start, end in zip([0, *ends[:-1]], ends, strict=True)]
