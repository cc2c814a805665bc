"""The proposals of models for texts, kept so that nothing is paid twice."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from es_ttc.enrichment.jobs.documents import DocumentText
from es_ttc.enrichment.jobs.indices import JobIndices
from es_ttc.enrichment.jobs.record import Job, now
from es_ttc.enrichment.proposals.proposing import propose_phrases
from es_ttc.llm import LanguageModel


@dataclass(frozen=True, slots=True)
class StoredProposal:
    """A model's proposals for a text."""

    phrases: tuple[str, ...]
    read: int
    written: int
    job: str
    document: str

    def was_paid_by(self, job: str, document: str) -> bool:
        """Return whether a job has paid them for a document."""
        return (self.job, self.document) == (job, document)


class StoredProposals:
    """Stored proposals, by the key of the request and the hash of the text."""

    def __init__(self, indices: JobIndices) -> None:
        self._indices = indices

    async def get(self, asked: str, texts: Sequence[str]) -> list[StoredProposal | None]:
        """Return stored proposals of a model for some texts."""
        sources = await self._indices.get_many(self._indices.proposals, [f"{asked}-{text}" for text in texts])
        return [None if source is None else _read(source) for source in sources]

    async def propose(self, llm: LanguageModel, job: Job, document: DocumentText) -> StoredProposal:
        """Call the model for a document, and store its proposals before anything else is done with them."""
        proposed = await propose_phrases(llm, job.plan, document.text)
        read, written = proposed.usage.prompt_tokens, proposed.usage.completion_tokens
        proposal = StoredProposal(proposed.phrases, read, written, job.id, document.key[0])
        await self.put(job.plan.asked, job.index, document.hash, proposal)
        return proposal

    async def put(self, asked: str, index: str, text: str, proposal: StoredProposal) -> None:
        """Store a model's proposals for a text."""
        source = {"asked": asked, "index": index, **asdict(proposal), "at": now()}
        await self._indices.put_many(self._indices.proposals, {f"{asked}-{text}": source})


def _read(source: dict[str, Any]) -> StoredProposal:
    return StoredProposal(
        tuple(source["phrases"]), source["read"], source["written"], source["job"], source["document"]
    )
