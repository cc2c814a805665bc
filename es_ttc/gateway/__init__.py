"""The gateway: an ASGI application in front of an engine.

In reading order: :mod:`~es_ttc.gateway.app` puts the parts together; :mod:`~es_ttc.gateway.entrance` takes every
request; :mod:`~es_ttc.gateway.proxy` passes on what is the engine's alone; :mod:`~es_ttc.gateway.search` is the
pipeline of `_search` and `_msearch`, whose stages are :mod:`~es_ttc.gateway.query`, :mod:`~es_ttc.gateway.knn` and
:mod:`~es_ttc.gateway.rescore` (with :mod:`~es_ttc.gateway.walks` for methods that look beyond the window);
:mod:`~es_ttc.gateway.scoring` gets features, query vectors and scores. :mod:`~es_ttc.gateway.own_pages` answers what
stands below `/_ttc/`.
"""
