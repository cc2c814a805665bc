"""Encoders: texts in; pooled vectors, token vectors and character offsets out."""
