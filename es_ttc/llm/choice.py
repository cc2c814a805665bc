"""Which language model does jobs: one in the worker's own process where that is set, else the endpoint."""

from es_ttc.llm.base import LanguageModel
from es_ttc.llm.client import LlmClient
from es_ttc.settings import LlmSettings


def model_for_jobs(settings: LlmSettings) -> LanguageModel:
    """Return what jobs ask; nothing is loaded or called yet.

    Raises:
        ConfigurationError: No model is set.
    """
    if settings.llm_offline is not None:
        from es_ttc.llm.offline import OfflineLlm

        return OfflineLlm(settings)
    return LlmClient(settings)
