"""Training for those who have labels: NNN-Tr, COLT, the dense baseline, learned heads. torch lives here.

``fista`` (the solver, unrolled), ``losses``, ``heads`` (what is learned on frozen vectors), ``sides``, ``data`` (a
collection as arrays), ``measures``, ``recipes`` (one a kind of training), ``loop`` (epochs, early stopping),
``checkpoint``, ``figures``, ``artefact`` (the folder that is written), ``session`` (all of it). What is written is
served by :mod:`es_ttc.encoders.trained` without torch.
"""
