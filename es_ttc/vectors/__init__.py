"""Token vectors as arrays and as bytes: quantisation, the packed container. Pure numpy."""
