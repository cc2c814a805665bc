"""One document's question to the model, with one try to mend an answer that cannot be read."""

from dataclasses import dataclass

from es_ttc.enrichment.proposals.parsing import proposals
from es_ttc.enrichment.proposals.plan import SCHEMA, Plan
from es_ttc.llm import LanguageModel, Message, Usage

_REPAIR = (
    "That answer cannot be read. Answer again with nothing but a JSON object of the form "
    '{"phrases": ["...", "..."]}: short phrases, no explanation.'
)
_REPAIR_TEMPERATURE = 0.7
_STOPS = ("\n\n", "\nDocument:")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Proposals:
    """What a model proposed for one document.

    Attributes:
        phrases: As it wrote them.
        usage: Tokens of all its answers.
        calls: Answers.
    """

    phrases: tuple[str, ...]
    usage: Usage
    calls: int


class NoReadableProposal(Exception):
    """A model's answers hold no proposal, the mended one neither.

    Args:
        sample: The beginning of the last answer.
        usage: Tokens of the answers.
    """

    def __init__(self, sample: str, usage: Usage) -> None:
        super().__init__(f"the model's answer holds no phrases: {sample!r}")
        self.usage = usage


async def propose(llm: LanguageModel, plan: Plan, text: str) -> Proposals:
    """Ask for phrases, and once more where the answer holds none.

    Raises:
        LlmError: No answer.
        Unreadable: Two answers, and no phrases in them.
    """
    question = plan.question(text)
    usage = Usage()
    answer = ""
    for attempt in range(2):
        temperature = plan.temperature if attempt == 0 else max(plan.temperature, _REPAIR_TEMPERATURE)
        if plan.api == "chat":
            turns = [Message("user", question)]
            if attempt:
                turns += [Message("assistant", answer[:_SHOWN]), Message("user", _REPAIR)]
            reply = await llm.chat(turns, schema=SCHEMA, max_tokens=plan.answer_tokens, temperature=temperature)
        else:
            # A base model continues texts and understands no complaint: it is asked once more, less stubbornly.
            reply = await llm.complete(
                question, max_tokens=plan.answer_tokens, temperature=temperature, stop=list(_STOPS)
            )
        usage += reply.usage
        answer = reply.text
        found = proposals(answer)
        if plan.api == "completions" and reply.finish == "length":
            found = found[:-1] or found  # the last one breaks off
        if found:
            return Proposals(tuple(found), usage, attempt + 1)
    raise NoReadableProposal(" ".join(answer.split())[:_SHOWN], usage)
