"""Calls to a language model behind any OpenAI-compatible endpoint: vLLM, llama.cpp, a hosted one."""

from es_ttc.llm.base import JsonSchema, LanguageModel, Message, Reply, Usage
from es_ttc.llm.client import LlmClient
from es_ttc.llm.prompts import Prompt, first_json
from es_ttc.settings import LlmSettings

__all__ = [
    "JsonSchema", "LanguageModel", "LlmClient", "Message", "Prompt", "Reply", "Usage", "first_json", "model_for_jobs",
]  # fmt: skip


def model_for_jobs(settings: LlmSettings) -> LanguageModel:
    """Return the model for jobs: in the worker's process if it is configured, else the endpoint; nothing is loaded."""
    if settings.llm_offline is not None:
        from es_ttc.llm.offline import OfflineLlm

        return OfflineLlm(settings)
    return LlmClient(settings)
