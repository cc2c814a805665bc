"""Token vectors as arrays and as bytes: quantisation, the packed container, ragged windows. Pure numpy."""
