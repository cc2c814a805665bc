"""Late-interaction models of ONNX files, without torch: the graph with its projection, or with the folder's."""

from collections.abc import Sequence
from pathlib import Path

from es_ttc.encoders.base import Role
from es_ttc.encoders.graphs import TokenGraph
from es_ttc.encoders.kind import read_json_object
from es_ttc.encoders.late import late_encoder, require_vocabulary
from es_ttc.encoders.late_files import Projection, read_late
from es_ttc.encoders.onnx import graph_of
from es_ttc.encoders.options import LoadOptions
from es_ttc.encoders.packages import ModelFiles
from es_ttc.encoders.text_encoder import TextEncoder
from es_ttc.encoders.windows import InputWindow
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

_NOT_PROJECTED = "last_hidden_state"  # how exporters name a graph's output of token vectors before a projection


def load_late_onnx(files: ModelFiles, options: LoadOptions) -> TextEncoder:
    """Load a late-interaction model's ONNX file; see :func:`es_ttc.encoders.load_encoder`."""
    if files.onnx is None:
        raise ConfigurationError(f"encoder [{files.model}] has no ONNX model: take @torch")
    found = read_late(files.folder)
    embeddings = read_json_object(files.folder / "config.json").get("vocab_size")
    if embeddings:
        require_vocabulary(found.tokenizer.get_vocab().values(), embeddings, str(files.folder))
    graph = graph_of(files.onnx, options)
    model = OnnxTokens(graph, _left(files.onnx, graph, found.projections))
    return late_encoder(files, options, found.tokenizer, found.late, model, f"{graph.runtime}, {files.arithmetic}, cpu")


class OnnxTokens:
    """A graph's projected token vectors; see :class:`es_ttc.encoders.late.TokenModel`.

    Args:
        graph: The graph.
        projections: Those that the graph does not carry.
    """

    def __init__(self, graph: TokenGraph, projections: Sequence[Projection]) -> None:
        self._graph = graph
        self._projections = projections
        self.dims: int = projections[-1].matrix.shape[0] if projections else graph.dims

    def rows(self, windows: Sequence[InputWindow], *, role: Role) -> list[Float32]:  # noqa: ARG002
        """Run every window separately."""
        return [self._projected(rows) for rows in self._graph.rows(windows)]

    def _projected(self, rows: Float32) -> Float32:
        for projection in self._projections:
            rows = projection(rows)
        return rows


def _left(path: Path, graph: TokenGraph, projections: Sequence[Projection]) -> Sequence[Projection]:
    """Return the projections that a graph does not carry: all of them, or none."""
    if not projections:
        return ()
    inner, outer = projections[0].matrix.shape[1], projections[-1].matrix.shape[0]
    plain = graph.output == _NOT_PROJECTED
    if graph.dims == outer and (inner != outer or not plain):
        if inner == outer:
            raise ConfigurationError(
                f"ONNX model [{path}] gives vectors of {outer} components under the name [{graph.output}], with or "
                "without the projection: take @torch"
            )
        return ()
    if graph.dims != inner:
        raise ConfigurationError(
            f"ONNX model [{path}] gives vectors of {graph.dims} components, and the model's projection takes {inner} "
            f"and gives {outer}: it is of another model"
        )
    if not all(projection.linear for projection in projections):
        raise ConfigurationError(
            f"ONNX model [{path}] is without the model's projection, which is more than a matrix: take @torch"
        )
    return projections
