"""The operations that programs are composed of: small pure functions on arrays.

Shapes: q queries, n documents, d components. All take and return float32; rows of vectors are unit or zero. Every
function is defined for n = 0 and n = 1, and no result holds a value that is not finite as long as no input does.
"""
