"""What runs in the environment of the retrieval frameworks (``make .venv/.frameworks``), apart from the gateway's own.

``python -m tests.serving.frameworks`` takes calls, one a line of standard input: ``[function, arguments]`` as JSON.
What a call returns is a line of standard output, ``[result]``; of one that fails it is ``[null, traceback]``. A
framework takes seconds to import, so all calls of one go to one process.
"""

import json
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

Texts = dict[str, str]


def topic(text: str) -> dict[str, str]:
    """Return the metadata of a text."""
    return {"topic": "cats" if "cat" in text else "others"}


LUCENE = {"name": "hnsw", "space_type": "l2", "engine": "lucene"}
"""How OpenSearch is to index their vectors: their own choice, faiss, kills a node without native libraries."""


def write_langchain(url: str, index: str, product: str, texts: Texts) -> None:
    """Write an index as LangChain's store does."""
    from langchain_elasticsearch import BM25Strategy, ElasticsearchStore

    store = ElasticsearchStore(index, es_url=url, strategy=BM25Strategy())
    store.add_texts(list(texts.values()), metadatas=[*map(topic, texts.values())], ids=list(texts))


def write_llama_index(url: str, index: str, product: str, texts: Texts) -> None:
    """Write an index as LlamaIndex's store for the product does."""
    from llama_index.core.schema import TextNode
    from llama_index.vector_stores.elasticsearch import ElasticsearchStore
    from llama_index.vector_stores.opensearch import OpensearchVectorClient, OpensearchVectorStore

    nodes = [TextNode(id_=key, text=text, embedding=[0.6, 0.8], metadata=topic(text)) for key, text in texts.items()]
    if product == "opensearch":
        OpensearchVectorStore(OpensearchVectorClient(url, index, dim=2, method=LUCENE)).add(nodes)
    else:
        ElasticsearchStore(index, es_url=url).add(nodes)


def write_haystack(url: str, index: str, product: str, texts: Texts) -> None:
    """Write an index as Haystack's store for the product does."""
    from haystack import Document
    from haystack_integrations.document_stores.elasticsearch import ElasticsearchDocumentStore
    from haystack_integrations.document_stores.opensearch import OpenSearchDocumentStore

    documents = [Document(id=key, content=text, meta=topic(text)) for key, text in texts.items()]
    if product == "opensearch":
        OpenSearchDocumentStore(hosts=url, index=index, method=LUCENE).write_documents(documents)
    else:
        ElasticsearchDocumentStore(hosts=url, index=index).write_documents(documents)


def embed_openai(url: str, model: str, texts: list[str]) -> list[list[float]]:
    """Return what OpenAI's own client takes from an endpoint for embeddings."""
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
    return [one.embedding for one in client.embeddings.create(model=model, input=texts).data]


def rerank_cohere(url: str, version: int, model: str, query: str, texts: list[str]) -> list[tuple[int, float]]:
    """Return what one of Cohere's own clients takes from an endpoint for reranking: places and scores, best first."""
    import cohere

    kind = {1: cohere.Client, 2: cohere.ClientV2}[version]
    client = kind(api_key="none", base_url=url, timeout=60)
    found = client.rerank(model=model, query=query, documents=texts, top_n=len(texts))
    return [(one.index, one.relevance_score) for one in found.results]


def run_page(page: str, module: str, blocks: list[str], result: str) -> dict[str, Any]:
    """Run the blocks of a page, which import a module, and show what each found, and what the page measured."""
    sys.modules["retrieval"] = ModuleType("retrieval")
    exec(compile(module, "retrieval.py", "exec"), vars(sys.modules["retrieval"]))
    namespace: dict[str, Any] = {"__name__": Path(page).stem}
    found = []
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)
        found.append([_shown(document) for document in namespace.pop(result, ())])
    return {"found": found, "measures": namespace["measures"]}


def _shown(document: Any) -> dict[str, Any]:
    """Return the id, the text, the score and the metadata of any framework's document."""
    if hasattr(document, "page_content"):
        metadata = document.metadata
        return {"id": document.id, "text": document.page_content, "score": metadata["score"], "metadata": metadata}
    if hasattr(document, "node"):
        node = document.node
        shown = node.get_content(metadata_mode="llm")
        assert "ttc" not in shown, shown
        return {"id": node.node_id, "text": node.text, "score": document.score, "metadata": node.metadata}
    return {"id": document.id, "text": document.content, "score": document.score, "metadata": document.meta}


if __name__ == "__main__":
    callable_here = (write_langchain, write_llama_index, write_haystack, embed_openai, rerank_cohere, run_page)
    functions = {one.__name__: one for one in callable_here}
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer: list[Any] = [functions[name](**arguments)]
        except Exception:  # noqa: BLE001 - the caller fails with it
            answer = [None, traceback.format_exc()]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
