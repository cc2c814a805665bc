"""Choose the language model for jobs: the one in the worker's process if it is configured, else the endpoint."""

from es_ttc.llm.base import LanguageModel
from es_ttc.llm.client import LlmClient
from es_ttc.settings import LlmSettings


def model_for_jobs(settings: LlmSettings) -> LanguageModel:
    """Return the model for jobs; nothing is loaded or called yet."""
    if settings.llm_offline is not None:
        from es_ttc.llm.offline import OfflineLlm

        return OfflineLlm(settings)
    return LlmClient(settings)
