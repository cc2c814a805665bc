"""The gateway: an ASGI application in front of an engine.

In reading order: :mod:`~es_ttc.serving.app` puts the parts together; :mod:`~es_ttc.serving.engine_app` takes every
request; :mod:`~es_ttc.serving.http.proxy` passes on what is the engine's alone; :mod:`~es_ttc.serving.search` is the
pipeline of `_search` and `_msearch`, whose stages are :mod:`~es_ttc.serving.query`, :mod:`~es_ttc.serving.knn` and
:mod:`~es_ttc.serving.rescore` (with :mod:`~es_ttc.serving.adaptive` for methods that look beyond the window);
:mod:`~es_ttc.serving.features` gets features, query vectors and scores. :mod:`~es_ttc.serving.endpoints` answers what
stands below `/_ttc/`, with :mod:`~es_ttc.serving.admin`.
"""
