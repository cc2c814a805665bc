"""The two sides of a bi-encoder in training, frozen or fine-tuned: the vectors of queries and of documents."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from es_ttc.encoders.base import Role
from es_ttc.encoders.heads import Head
from es_ttc.encoders.sentence_transformers import load_model
from es_ttc.encoders.windows import role_prompts
from es_ttc.lab.training.data import Places, TrainingTask
from es_ttc.lab.training.loop import Recipe
from es_ttc.vectors.tokens import Float32

DOCUMENTS, TRAIN, VALID = "documents", "train", "valid"


class FrozenSide(nn.Module):
    """Frozen vectors, ``(n, d)`` by name, mapped by a trainable head; without one they stay as they are."""

    def __init__(self, vectors: Mapping[str, Float32], head: Any = None) -> None:
        super().__init__()
        self.head = head
        for name, rows in vectors.items():
            self.register_buffer(f"_{name}", torch.from_numpy(rows), persistent=False)

    def rows(self, what: str, places: Places | None = None) -> Tensor:
        """Return unit rows, ``(b, d)``: of ``documents``, ``train`` or ``valid``, at some positions or all."""
        rows: Tensor = getattr(self, f"_{what}")
        rows = rows if places is None else rows[torch.from_numpy(places)]
        return rows if self.head is None else self.head(rows)

    def served(self) -> Head:
        """Return the head for serving."""
        return Head() if self.head is None else Head((self.head.layer(),))


def frozen_queries(task: TrainingTask, head: nn.Module) -> FrozenSide:
    """Return the side of a task's query vectors."""
    return FrozenSide({TRAIN: task.train.vectors, VALID: task.valid.vectors}, head)


def frozen_documents(task: TrainingTask, head: nn.Module) -> FrozenSide:
    """Return the side of a task's document vectors."""
    return FrozenSide({DOCUMENTS: task.documents}, head)


_AT_ONCE = 64  # number of texts per batch without gradients


class TunedSide(nn.Module):
    """Texts encoded by a trainable model: truncated, pooled and normalised as by its own library."""

    def __init__(self, folder: Path, role: Role, texts: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.model: SentenceTransformer = load_model(folder, torch.device("cpu"))
        prompts = role_prompts(self.model.prompts, self.model.default_prompt_name)
        self._texts = {name: [prompts[role] + text for text in found] for name, found in texts.items()}

    def rows(self, what: str, places: Places | None = None) -> Tensor:
        """Return unit rows; see :class:`es_ttc.lab.training.sides.FrozenSide`."""
        texts = self._texts[what]
        chosen = texts if places is None else [texts[place] for place in places]
        if torch.is_grad_enabled():
            return self._encoded(chosen)
        return torch.cat([self._encoded(chosen[at : at + _AT_ONCE]) for at in range(0, len(chosen), _AT_ONCE)])

    def served(self) -> Head:
        """Return no head."""
        return Head()

    def write(self, folder: Path) -> None:
        """Write the model in its library's format: safetensors, no pickle."""
        self.model.save(str(folder), create_model_card=False, safe_serialization=True)

    def _encoded(self, texts: Sequence[str]) -> Tensor:
        tokenizer: Any = self.model.tokenizer
        features = tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.model.max_seq_length, return_tensors="pt"
        )
        device = next(self.model.parameters()).device
        found = self.model({name: tensor.to(device) for name, tensor in features.items()})
        return F.normalize(found["sentence_embedding"], dim=1)


def rows_of(side: FrozenSide | TunedSide, what: str, places: Places) -> Tensor:
    """Return unit rows at positions that may repeat; each is mapped or encoded once."""
    distinct, where = np.unique(places, return_inverse=True)
    return side.rows(what, distinct)[torch.from_numpy(where)]


class Trainable(Recipe):
    """A recipe whose result can be served."""

    @abstractmethod
    def heads(self) -> dict[Role, Head]:
        """Return the present heads of both roles."""

    @property
    def tuned(self) -> dict[Role, TunedSide]:
        """The sides with a fine-tuned encoder."""
        return {}

    def params(self) -> dict[str, float] | None:
        """Return the parameters of the method `nnn` to use with it; None if it is for another method."""
        return None


class TwoSided(Trainable):
    """A recipe with a side of its own for each role."""

    def __init__(self, queries: FrozenSide | TunedSide, documents: FrozenSide | TunedSide) -> None:
        self.queries, self.documents = queries, documents
        self.learned: nn.Module = nn.ModuleList([queries, documents])

    def heads(self) -> dict[Role, Head]:
        """Return the heads for serving."""
        return {"query": self.queries.served(), "document": self.documents.served()}

    @property
    def tuned(self) -> dict[Role, TunedSide]:
        """The sides with a fine-tuned encoder."""
        sides: dict[Role, FrozenSide | TunedSide] = {"query": self.queries, "document": self.documents}
        return {role: side for role, side in sides.items() if isinstance(side, TunedSide)}
