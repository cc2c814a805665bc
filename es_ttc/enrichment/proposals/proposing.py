"""One document's request to the model, with one further attempt if the answer cannot be parsed."""

from dataclasses import dataclass

from es_ttc.enrichment.proposals.parsing import proposals
from es_ttc.enrichment.proposals.plan import SCHEMA, SCHEMA_OF_QUERIES, Plan
from es_ttc.llm import LanguageModel, Message, Usage

_REPAIR = (
    "That answer cannot be read. Answer again with nothing but a JSON object of the form "
    '{"phrases": ["...", "..."]}: short phrases, no explanation.'
)
_REPAIR_TEMPERATURE = 0.7
_STOPS = ("\n\n", "\nDocument:")
_MAX_EXCERPT = 200


@dataclass(frozen=True, slots=True)
class Proposals:
    """A model's proposals for one document."""

    phrases: tuple[str, ...]
    usage: Usage


class NoReadableProposal(Exception):
    """A model's answers contain no proposal, not even the second one."""

    def __init__(self, sample: str, usage: Usage) -> None:
        super().__init__(f"the model's answer holds no phrases: {sample!r}")
        self.sample = sample
        self.usage = usage


async def propose_phrases(llm: LanguageModel, plan: Plan, text: str) -> Proposals:
    """Request phrases, and once more if the answer contains none."""
    question = plan.question(text)
    schema = SCHEMA_OF_QUERIES if plan.whole else SCHEMA
    usage = Usage()
    answer = ""
    for attempt in range(2):
        temperature = plan.temperature if attempt == 0 else max(plan.temperature, _REPAIR_TEMPERATURE)
        if plan.api == "chat":
            turns = [Message("user", question)]
            if attempt:
                turns += [Message("assistant", answer[:_MAX_EXCERPT]), Message("user", _REPAIR)]
            reply = await llm.chat(turns, schema=schema, max_tokens=plan.answer_tokens, temperature=temperature)
        else:
            # A base model follows no instructions: the request is repeated with a higher temperature.
            reply = await llm.complete(
                question, max_tokens=plan.answer_tokens, temperature=temperature, stop=list(_STOPS)
            )
        usage += reply.usage
        answer = reply.text
        found = proposals(answer)
        if plan.api == "completions" and reply.finish == "length":
            found = found[:-1] or found  # the last one is truncated
        if found:
            return Proposals(tuple(found), usage)
    raise NoReadableProposal(" ".join(answer.split())[:_MAX_EXCERPT], usage)
