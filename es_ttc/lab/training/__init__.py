"""Training from labels: NNN-Tr, COLT, the dense baseline, learned heads. Only this package and backends import torch.

``losses``, ``heads`` (maps over frozen vectors), ``sides``, ``data`` (a collection as arrays), ``measures``, figures,
``recipes`` (one for each kind of training), ``loop`` (epochs, early stopping, checkpoints), ``artefact`` (the
result's folder), ``session`` (all of it). The result is served by :mod:`es_ttc.encoders.trained` without torch.
"""
