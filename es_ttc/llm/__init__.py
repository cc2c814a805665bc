"""Asking a language model behind any OpenAI-compatible endpoint: vLLM, llama.cpp, a hosted one."""

from es_ttc.llm.base import JsonSchema, Message, Reply, Usage
from es_ttc.llm.client import LlmClient
from es_ttc.llm.json_text import first_json
from es_ttc.llm.prompts import Prompt

__all__ = ["JsonSchema", "LlmClient", "Message", "Prompt", "Reply", "Usage", "first_json"]
