"""The gateway: an ASGI application in front of an engine.

In reading order: :mod:`~es_ttc.serving.app` creates the application; :mod:`~es_ttc.serving.entrance` lets requests in
and answers those to the engine; :mod:`~es_ttc.serving.http.upstream` passes requests without a `ttc` section through;
:mod:`~es_ttc.serving.search` is the way of `_search` and `_msearch`, over :mod:`~es_ttc.serving.rewriting`,
:mod:`~es_ttc.serving.knn` and :mod:`~es_ttc.serving.rescore` (with :mod:`~es_ttc.serving.strategies` for strategies);
:mod:`~es_ttc.serving.candidates` finds nearest documents; :mod:`~es_ttc.serving.features` reads features, encodes
queries and computes scores. :mod:`~es_ttc.serving.admin` answers requests below `/_ttc/`.
"""
