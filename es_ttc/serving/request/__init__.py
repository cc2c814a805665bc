"""The pipeline of `_search`, `_msearch` and the templates of both, for requests with a `ttc` section.

In reading order: ``request`` (a request, decoded into searches), ``section`` (the `ttc` section), ``templates``
(rendered by the engine), ``stage`` (the interface of stages), ``pipeline`` (stages, engine, response), ``engine``
(requests with the caller's credentials), ``response`` (the caller's response), ``fallback`` (timeouts, and failures of
a method).
"""
