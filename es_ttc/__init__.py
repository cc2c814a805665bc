"""es-ttc: better ranking for an Elasticsearch or OpenSearch index, by test-time compute on a frozen encoder."""

import os

for _name in (
    "DO_NOT_TRACK",
    "HF_HUB_DISABLE_TELEMETRY",
    "ORT_DISABLE_TELEMETRY",
    "VLLM_DO_NOT_TRACK",
    "VLLM_NO_USAGE_STATS",
):
    os.environ.setdefault(_name, "1")  # libraries read these when they are imported: nothing is reported to anyone


def __getattr__(name: str) -> str:
    """Return the version when it is asked for: to read it takes more memory than the first process of a gateway has."""
    if name != "__version__":
        raise AttributeError(f"module [es_ttc] has no attribute [{name}]")
    from importlib.metadata import version

    return version("es-ttc")
