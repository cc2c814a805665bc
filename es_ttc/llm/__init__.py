"""Calls to a language model behind any OpenAI-compatible endpoint: vLLM, llama.cpp, a hosted one."""

from es_ttc.llm.base import JsonSchema, LanguageModel, Message, Reply, Usage
from es_ttc.llm.choice import model_for_jobs
from es_ttc.llm.client import LlmClient
from es_ttc.llm.prompts import Prompt, first_json

__all__ = [
    "JsonSchema", "LanguageModel", "LlmClient", "Message", "Prompt", "Reply", "Usage", "first_json", "model_for_jobs",
]  # fmt: skip
