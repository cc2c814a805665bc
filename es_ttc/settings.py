"""Settings: flags, then ``ES_TTC_*`` variables, then ``es-ttc.toml`` in the working folder, then these defaults."""

from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

SideCredentials = Literal["caller", "gateway"]


class _Sources(BaseSettings):
    """Where settings are read, and in which order."""

    model_config = SettingsConfigDict(env_prefix="ES_TTC_", toml_file="es-ttc.toml", extra="ignore")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags (given to the constructor), then the environment, then the TOML file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


class EngineSettings(_Sources):
    """Where the engine is and how to sign in, as the engines' own clients take it."""

    engine: str = Field(
        "http://127.0.0.1:9200",
        description="The engine's URL; may hold user:password@, which the machine's process list shows where it is "
        "given as a flag. Several URLs of one cluster, separated by commas, are tried in turn; a cloud id of Elastic's "
        "stands for its URL.",
    )
    username: str | None = Field(None, description="User name for basic authentication.")
    password: SecretStr | None = Field(None, description="Password for basic authentication.")
    password_file: Path | None = Field(None, description="File with the password, in place of it.")
    api_key: SecretStr | None = Field(None, description="API key, encoded as the engine gave it.")
    api_key_file: Path | None = Field(None, description="File with the API key, in place of it.")
    bearer_token: SecretStr | None = Field(None, description="Bearer token.")
    bearer_token_file: Path | None = Field(None, description="File with the bearer token, in place of it.")
    ca_certs: Path | None = Field(None, description="File with the certificates that sign the engine's own.")
    verify_certs: bool = Field(True, description="Whether the engine's certificate is checked.")
    request_timeout: float = Field(30.0, gt=0, description="Seconds until a call to the engine is given up.")
    write_retry_seconds: float = Field(
        150.0,
        ge=0,
        description="Seconds for which documents that the engine cannot take for now (busy, its disk full, a node "
        "gone) are sent again before a command gives up.",
    )


class LlmSettings(_Sources):
    """Which language model is asked, and how its endpoint is treated."""

    llm_url: str | None = Field(
        None,
        description="Base URL of an OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1.",
    )
    llm_model: str | None = Field(
        None, description="The model's name there; may be left out where the endpoint serves one model."
    )
    llm_api_key: SecretStr | None = Field(None, description="Key of the endpoint, sent as a bearer token.")
    llm_ca_certs: Path | None = Field(None, description="File with the certificates that sign the endpoint's own.")
    llm_api: Literal["chat", "completions"] = Field(
        "chat", description="How the model is asked: as an assistant, or to continue a text (for base models)."
    )
    llm_offline: str | None = Field(
        None,
        description="For jobs, in place of an endpoint: folder or hub name of a model that each worker loads by vLLM "
        "and asks in batches.",
    )
    llm_offline_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of vLLM's LLM for it as a JSON object, e.g. "
        '{"max_model_len": 4096, "gpu_memory_utilization": 0.85}.',
    )
    llm_json_schema: bool = Field(
        True, description="Whether the endpoint is asked to hold answers to a JSON schema where one is wanted."
    )
    llm_extra_body: dict[str, Any] = Field(
        default_factory=dict,
        description="Further keys of every question as a JSON object, "
        'e.g. {"chat_template_kwargs": {"enable_thinking": false}}.',
    )
    llm_timeout: float = Field(60.0, gt=0, description="Seconds that one attempt at an answer may take.")
    llm_attempts: int = Field(4, ge=1, le=20, description="Attempts at one answer, the first included.")
    llm_concurrency: int = Field(8, ge=1, le=1024, description="Questions in flight at once, from one process.")
    llm_breaker_failures: int = Field(
        5, ge=1, description="Failures in a row until the endpoint is left alone for a while."
    )
    llm_breaker_seconds: float = Field(
        10.0, gt=0, description="Seconds that it is left alone at first; doubled after each trial that fails."
    )


class JobSettings(_Sources):
    """Where jobs are kept, and how workers go about them."""

    jobs_index: str = Field(
        "ttc-jobs",
        pattern="^[a-z0-9][a-z0-9-]*$",
        description="Index with the records of jobs; two more with this name as a prefix hold what became of documents "
        "and what models proposed.",
    )
    redis: SecretStr | None = Field(
        None,
        description="URL of the Redis that workers share, e.g. redis://127.0.0.1:6379/0; a worker without one runs its "
        "own.",
    )
    jobs_turn_seconds: float = Field(
        30.0, gt=0, le=600, description="Seconds that a worker stays with one part of a job before others have a turn."
    )
    jobs_lease_seconds: float = Field(
        30.0, ge=1, le=3600, description="Seconds after which a worker that shows no sign of life is taken for dead."
    )
    jobs_sweep_seconds: float = Field(
        2.0, gt=0, le=3600, description="Seconds between two looks at what jobs there are to work on."
    )
    llm_requests_per_minute: int = Field(
        0, ge=0, description="Questions to the endpoint a minute, from all workers of one Redis together; 0: no limit."
    )
    llm_total_concurrency: int = Field(
        64, ge=1, description="Questions in flight at once, from all workers of one Redis together."
    )


class Settings(EngineSettings, LlmSettings, JobSettings):
    """Everything that es-ttc can be told beside a command's own flags."""

    encoder: str = Field(
        "minilm", description="Short name, model name or folder of the encoder; NAME+ADAPTER for one with an adapter."
    )
    encoder_url: str | None = Field(
        None, description="Base URL of a vLLM server that runs the encoder, for encoders named NAME@vllm."
    )
    encoder_model: str | None = Field(None, description="The encoder's name there; the model's own where left out.")
    encoder_api_key: SecretStr | None = Field(None, description="Key of that server, sent as a bearer token.")
    encoder_timeout: float = Field(60.0, gt=0, description="Seconds that one attempt at a batch of texts may take.")
    ranking_models: Path | None = Field(
        None,
        description="Folder of models that `es-ttc train rank` wrote: the method `learned` serves them by name. Read "
        "once, when the gateway starts.",
    )
    cache_dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_cache_dir("es-ttc")),
        description="Where downloads and embeddings are kept between runs.",
    )


class GatewaySettings(Settings):
    """The gateway's settings."""

    host: str = Field("127.0.0.1", description="Address to listen on; loopback unless told otherwise.")
    port: int = Field(9280, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    encoders: tuple[str, ...] = Field(
        (), description="Further encoders that the gateway may load for indices written with them."
    )
    feature_cache_mb: int = Field(512, ge=0, description="Memory for documents' features, in MiB.")
    feature_reads_mb: int | None = Field(
        None,
        ge=1,
        description="Features of documents that may be on their way from the engine at a time, in MiB. Where left out "
        "it is a sixteenth of the smallest heap among the engine's nodes (4 to 512), if the gateway's own account may "
        "read `_nodes/stats`, else 32.",
    )
    default_timeout_ms: int = Field(1000, gt=0, description="Scoring budget where a request names none, in ms.")
    rerank_timeout_ms: int = Field(
        10_000, gt=0, description="What a request to `/_ttc/rerank` may take, in ms: its texts are encoded on the fly."
    )
    sidecar_token: SecretStr | None = Field(
        None,
        description="What engines with our plugin send to `/_ttc/score` as a bearer token; without one nobody is "
        "answered there.",
    )
    rewrite_timeout_ms: int = Field(
        3000,
        gt=0,
        description="What rewriting a query may take where a request names no timeout, in ms; then the plain query "
        "answers. The model's answer is kept when it comes, for the next request.",
    )
    sketch_prompts: Path | None = Field(
        None, description="Folder with prompts of your own for the `query` hook, one NAME.txt each."
    )
    max_window: int = Field(1000, ge=1, le=10_000, description="Greatest window that a request may ask for.")
    compiled: bool = Field(
        True, description="Use loops compiled by numba where it is installed (`es-ttc[fast]`); scores are the same."
    )
    scoring_threads: int = Field(2, ge=1, description="Windows scored at the same time.")
    max_concurrent_requests: int = Field(256, ge=1, description="Requests in flight before 429 is answered.")
    programs: Path | None = Field(
        None,
        description="Folder of programs that `es-ttc discover promote` wrote: the method `program` serves them by "
        "name. Read once, when the gateway starts.",
    )
    programs_seconds: float = Field(
        10.0,
        gt=0,
        description="Longest time of a promoted program on one window, in seconds; its process is killed then, and at "
        "the request's own deadline.",
    )
    programs_memory_mb: int = Field(
        512, ge=64, description="Memory of a promoted program's process, beside what Python and numpy take, in MiB."
    )
    programs_processes: int = Field(
        4, ge=0, description="Processes of promoted programs that are kept while they have nothing to do."
    )
    programs_unfiltered: bool = Field(
        False,
        description="Serve promoted programs without the filter of system calls, on a Linux that has no libseccomp. "
        "What keeps them from files and networks is then the check of their text alone.",
    )
    tuned: tuple[Path, ...] = Field(
        (), description="Files of `es-ttc tune`: parameters for requests that give none of their own."
    )
    max_body_mb: int = Field(100, ge=1, description="Greatest `_search` body that is read for our section, in MiB.")
    max_bodies_mb: int = Field(
        512, ge=1, description="Memory for bodies of requests that are being read, in MiB; then 429 is answered."
    )
    max_ttc_body_mb: int = Field(10, ge=1, description="Greatest body of a search with a `ttc` section, in MiB.")
    max_request_values: int = Field(500_000, ge=100, description="Values in a search with a `ttc` section.")
    max_request_objects: int = Field(
        50_000, ge=100, description="Keys, objects and arrays in a search with a `ttc` section."
    )
    max_request_depth: int = Field(100, ge=10, description="How deep a search with a `ttc` section may be nested.")
    max_msearch_items: int = Field(1000, ge=1, description="Searches in an `_msearch` with a `ttc` section.")
    max_ttc_clauses: int = Field(64, ge=1, description="Clauses of the `knn` or of the `query` hook in one search.")
    max_query_chars: int = Field(32_768, ge=1, description="Characters of a query's text that is to be encoded.")
    max_section_values: int = Field(5000, ge=10, description="Values in a `ttc` section, those of lists included.")
    max_target_kb: int = Field(
        4,
        ge=1,
        description="Greatest path and query string of a request, in KiB: the engine's own "
        "`http.max_initial_line_length`.",
    )
    max_header_kb: int = Field(
        16, ge=1, description="All headers of a request together, in KiB: the engine's own `http.max_header_size`."
    )
    max_connections: int = Field(4096, ge=1, description="Connections of clients that are open at a time.")
    header_timeout: float = Field(
        20.0, gt=0, description="Seconds from the first byte of a request to the end of its headers."
    )
    idle_timeout: int = Field(75, gt=0, description="Seconds that a connection may stay open without a request.")
    body_timeout: float = Field(
        600.0, gt=0, description="Seconds that a client may take to send a body, those apart when the engine is slow."
    )
    min_body_rate: int = Field(
        500, ge=0, description="Bytes a second that a client must send of a body, seen over 5 seconds at a time."
    )
    send_timeout: float = Field(60.0, gt=0, description="Seconds that a client may take nothing of its answer.")
    translate_media_types: bool = Field(
        True,
        description="Let Elasticsearch's clients of a newer version speak to an older Elasticsearch: the media types "
        "`compatible-with=9` become `compatible-with=8` where the engine is version 8, which refuses them. The header "
        "`x-ttc-compatible-with` of the response says so.",
    )
    side_credentials: SideCredentials = Field(
        "caller",
        description="In whose name side indices of attached indices are read: the caller's, or the gateway's own "
        "(`username`, `api_key`...), and that only for ids that the engine has just returned to the caller.",
    )
    rerankers: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        repr=False,  # it may hold keys
        description="Rerankers that a request may name: for each name its `kind` and what that kind takes, as tables "
        "`[rerankers.NAME]` of the file, or as JSON in the variable.",
    )
    log_format: str = Field("auto", pattern="^(auto|json|console)$", description="console on a terminal, else json.")
