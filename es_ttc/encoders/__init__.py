"""Encoders: texts in; pooled vectors, token vectors and character offsets out."""

from es_ttc.encoders.base import Encoder, EncoderIdentity, Encodings
from es_ttc.encoders.cache import CachedEncoder
from es_ttc.encoders.registry import load_encoder

__all__ = ["CachedEncoder", "Encoder", "EncoderIdentity", "Encodings", "load_encoder"]
