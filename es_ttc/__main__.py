"""``python -m es_ttc`` is the ``es-ttc`` command."""

from es_ttc.cli import main

main()
