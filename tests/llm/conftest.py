import os

from tests.support.vllm import VARIABLE

collect_ignore = [] if os.environ.get(VARIABLE) else ["vllm"]  # `make test-vllm` has an environment with vLLM
