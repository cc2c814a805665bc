"""Who writes programs: the grammar, a language model, or a recording."""
