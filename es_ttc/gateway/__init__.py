"""The gateway: an ASGI application in front of an engine.

In reading order: :mod:`~es_ttc.gateway.app` puts the parts together; :mod:`~es_ttc.gateway.entrance` takes every
request; :mod:`~es_ttc.gateway.proxy` passes through what is not ours; :mod:`~es_ttc.gateway.search` answers `_search`
and `_msearch`, whose bodies :mod:`~es_ttc.gateway.search_body`, :mod:`~es_ttc.gateway.section` and
:mod:`~es_ttc.gateway.split` take apart; :mod:`~es_ttc.gateway.scoring` gets features, query vectors and scores inside a
deadline; :mod:`~es_ttc.gateway.rescoring`, :mod:`~es_ttc.gateway.page` and :mod:`~es_ttc.gateway.collapse` put the
answer together. :mod:`~es_ttc.gateway.rerank` scores texts that are sent along, without an engine.
"""
