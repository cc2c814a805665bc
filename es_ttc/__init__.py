"""es-ttc: better ranking for an Elasticsearch or OpenSearch index, by test-time compute on a frozen encoder."""

import os
from importlib.metadata import version

__version__ = version("es-ttc")

for _name in (
    "DO_NOT_TRACK",
    "HF_HUB_DISABLE_TELEMETRY",
    "ORT_DISABLE_TELEMETRY",
    "VLLM_DO_NOT_TRACK",
    "VLLM_NO_USAGE_STATS",
):
    os.environ.setdefault(_name, "1")  # libraries read these when they are imported: nothing is reported to anyone
