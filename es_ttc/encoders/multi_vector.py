"""Late-interaction models on sentence-transformers and torch.

The library reads its own form, PyLate's and Stanford's; what it has read is checked here and taken over: lengths,
markers, query expansion, skipped tokens, projection. Texts are cut into windows as for every encoder, for characters.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from transformers.utils import logging as transformers_logging

from es_ttc.encoders.base import Role
from es_ttc.encoders.batches import fixed_batches
from es_ttc.encoders.devices import device_of
from es_ttc.encoders.hashing import PROJECTION
from es_ttc.encoders.kind import MODULES_FILE, STANFORD_ARCHITECTURE, module_classes, read_json_object
from es_ttc.encoders.late import (
    LateInteraction,
    MaskExpansion,
    described,
    late_encoder,
    require_vocabulary,
    skipped_ids,
)
from es_ttc.encoders.options import LoadOptions
from es_ttc.encoders.packages import ModelFiles
from es_ttc.encoders.sentence_transformers import (
    ARITHMETIC,
    DEFAULT_MAX_LENGTH,
    batch_sizes,
    choose_dtype,
    float32_of,
    halve_products,
    no_progress_bars,
    padded_features,
)
from es_ttc.encoders.text_encoder import TextEncoder
from es_ttc.encoders.windows import InputWindow, copied, role_prompts
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

_TOKENS = "token_embeddings"


def load_multi_vector(files: ModelFiles, options: LoadOptions) -> TextEncoder:
    """Load a late-interaction model; see :func:`es_ttc.encoders.load_encoder`."""
    place = device_of(options.device, mps=True)
    name = choose_dtype(place) if options.dtype == "auto" else options.dtype
    _require_projection(files.folder)
    loaded = _load(files.folder, place)
    model = TorchTokens(loaded, source=str(files.folder), bfloat16=name == "bfloat16")
    late = settings_of(loaded, source=str(files.folder))
    backend = f"sentence-transformers, {ARITHMETIC[name]}, {place.type}"
    encoder = late_encoder(files, options, copied(loaded.tokenizer.backend_tokenizer), late, model, backend)
    model.max_length = max(late.query_length, encoder.identity.max_length)
    _try(encoder, files)
    return encoder


def settings_of(model: MultiVectorEncoder, *, source: str) -> LateInteraction:
    """Return what a loaded model adds to an encoder."""
    modules = list(model.children())
    transformer: Any = modules[0]
    mask: Any = next((module for module in modules if isinstance(module, MultiVectorMask)), None)
    tokenizer = model.tokenizer
    limit = model.max_seq_length or tokenizer.model_max_length
    longest = limit if limit < 1_000_000 else DEFAULT_MAX_LENGTH
    expansion = _expansion(transformer, tokenizer, source)
    if expansion is not None and mask is None:
        raise ConfigurationError(
            f"model [{source}] expands queries and has no MultiVectorMask, which alone scores the added tokens: save "
            "it with one"
        )
    words = () if mask is None else mask.skiplist_words
    return LateInteraction.of(
        transformer.query_length,
        transformer.document_length,
        longest,
        role_prompts(model.prompts, model.default_prompt_name),
        expansion,
        skipped_ids(words, tokenizer.convert_tokens_to_ids, tokenizer.unk_token),
        () if mask is None else mask.skiplist_tasks,
        None if mask is None else mask.keep_only_token_ids,
        [_description(module) for module in modules if isinstance(module, Dense)],
        positions=getattr(transformer.config, "max_position_embeddings", None),
        source=source,
    )


class TorchTokens:
    """A model's projected token vectors; see :class:`es_ttc.encoders.late.TokenModel`."""

    def __init__(self, model: MultiVectorEncoder, *, source: str, bfloat16: bool) -> None:
        modules = list(model.children())
        _require_modules(modules, source)
        tokenizer = model.tokenizer
        transformer: Any = modules[0]
        if "message" in transformer.modality_config or not getattr(tokenizer, "is_fast", False):
            raise ConfigurationError(f"model [{source}] has no fast tokenizer for plain text, which offsets need")
        embeddings = transformer.auto_model.get_input_embeddings().num_embeddings
        require_vocabulary(tokenizer.get_vocab().values(), embeddings, source)
        self._transformer = transformer
        self._projections = [module for module in modules if isinstance(module, Dense)]
        self._device = model.device
        self._batches = batch_sizes(self._device)
        self._bfloat16 = bfloat16
        if bfloat16:
            halve_products(model)
        self._pad = int(tokenizer.pad_token_id or 0)
        self._typed = "token_type_ids" in tokenizer.model_input_names
        width = transformer.get_embedding_dimension()
        for projection in self._projections:
            if projection.in_features != width:
                raise ConfigurationError(
                    f"model [{source}] gives token vectors of {width} components, and its projection takes "
                    f"{projection.in_features}: its parts are of different models"
                )
            width = projection.out_features
        self.dims: int = width
        self.max_length = DEFAULT_MAX_LENGTH

    @torch.inference_mode()
    def rows(self, windows: Sequence[InputWindow], *, role: Role) -> list[Float32]:
        """Run the windows in batches of fixed shapes."""
        budget, spare = self._batches[role]
        lengths = [len(window.ids) for window in windows]
        results: dict[int, Float32] = {}
        for batch in fixed_batches(lengths, max_length=self.max_length, tokens=budget, spare=spare):
            features = padded_features(
                [windows[index] for index in batch.members],
                batch,
                pad=self._pad,
                typed=self._typed,
                device=self._device,
            )
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
                features = self._transformer(features)
                for projection in self._projections:
                    features = projection(features)
            matrix = float32_of(features[_TOKENS])
            for row, index in enumerate(batch.members):
                results[index] = matrix[row, : lengths[index]]
        return [results[index] for index in range(len(windows))]


def _require_modules(modules: Sequence[torch.nn.Module], source: str) -> None:
    kinds = [type(module).__name__ for module in modules]
    others = sorted({type(module).__name__ for module in modules[1:]} - {"Dense", "MultiVectorMask", "Normalize"})
    if not modules or not isinstance(modules[0], Transformer) or others:
        raise ConfigurationError(
            f"late-interaction model [{source}] is made of {kinds}: what is served is Transformer, Dense, "
            "MultiVectorMask and Normalize"
        )
    if getattr(modules[0], "transformer_task", "") == "retrieval":
        raise ConfigurationError(
            f"late-interaction model [{source}] reads pictures of documents: take one that reads text"
        )
    beside = [module for module in modules if isinstance(module, (Dense, Normalize))]
    if any(module.module_input_name != _TOKENS or module.module_output_name != _TOKENS for module in beside):
        raise ConfigurationError(
            f"late-interaction model [{source}] has modules that do not map token vectors to token vectors: {kinds}"
        )
    if not beside or not isinstance(beside[-1], Normalize):
        raise ConfigurationError(
            f"late-interaction model [{source}] does not normalise its token vectors, and what is stored has unit "
            "length: save it with Normalize(module_input_name='token_embeddings') as its last module if it was trained "
            "with it"
        )


def _require_projection(folder: Path) -> None:
    """Refuse what the library would give a projection of random weights, with no more than a line in its log."""
    architectures = read_json_object(folder / "config.json").get("architectures") or []
    if (folder / MODULES_FILE).is_file():
        names = [reference.rpartition(".")[2] for reference in module_classes(folder)]
        if "Dense" not in names and "MultiVectorMask" not in names:
            raise ConfigurationError(
                f"late-interaction model [{folder}] has no projection (Dense) in {MODULES_FILE}: it is not whole"
            )
    elif STANFORD_ARCHITECTURE not in architectures and not any(
        name.endswith("ForRetrieval") for name in architectures
    ):
        raise ConfigurationError(
            f"late-interaction model [{folder}] has no {MODULES_FILE}, and its config.json does not say that its "
            f'projection is in its weights: set "architectures" to ["{STANFORD_ARCHITECTURE}"] there if it is '
            "(linear.weight)"
        )


def _expansion(transformer: Any, tokenizer: Any, source: str) -> MaskExpansion | None:
    stated = transformer.query_expansion
    if stated is None:
        return None
    # The library's order: the named token, else the mask token, else the end of the sequence.
    token = tokenizer.convert_tokens_to_ids(stated["token"]) if stated["token"] else tokenizer.mask_token_id
    token = tokenizer.eos_token_id if token is None else token
    if token is None:
        raise ConfigurationError(f"model [{source}] expands queries and its tokenizer has no mask token to do it with")
    return MaskExpansion(stated["strategy"], stated["length"], int(token), stated["attend"])


def _description(projection: Dense) -> str:
    function = type(projection.activation_function).__name__
    return described(projection.in_features, projection.out_features, function, residual=projection.use_residual)


def _load(folder: Path, device: torch.device) -> MultiVectorEncoder:
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        with no_progress_bars():
            model = MultiVectorEncoder(
                str(folder), device=str(device), local_files_only=True, model_kwargs={"dtype": torch.float32}
            )
    except Exception as error:  # the library may raise any exception for a model's files
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"late-interaction model [{folder}] could not be loaded: {reason}") from error
    finally:
        transformers_logging.set_verbosity(level)
    _require_weights(folder, model)
    return model.eval()


def _require_weights(folder: Path, model: MultiVectorEncoder) -> None:
    """Refuse a backbone most of whose weights were not in the file: the library makes up those that it does not find.

    Names may differ by a prefix, and in a few parts between releases, so half of them do.
    """
    transformer: Any = model[0]
    stored: set[str] = set()
    for path in (path for path in folder.rglob("*.safetensors") if not path.parent.name.endswith(PROJECTION)):
        with safe_open(path, "np") as weights:
            stored |= set(weights.keys())
    names = list(transformer.auto_model.state_dict())
    found = sum(any(name == one or one.endswith(f".{name}") for one in stored) for name in names)
    if stored and 2 * found < len(names):
        raise ConfigurationError(
            f"late-interaction model [{folder}] has weights for {found} of the {len(names)} parts of its backbone "
            f"({type(transformer.auto_model).__name__}): config.json is of another model"
        )


def _try(encoder: TextEncoder, files: ModelFiles) -> None:
    """Encode one text, so that a model whose parts do not fit is refused before anything is written."""
    try:
        encoder.encode(["a"], role="query")
        encoder.encode(["a"], role="document")
    except Exception as error:  # torch may raise any exception
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(
            f"late-interaction model [{files.folder}] could not encode a text, so its parts do not fit: {reason}"
        ) from error
