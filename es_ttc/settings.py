"""Settings: from flags, then ``ES_TTC_*`` variables, then ``es-ttc.toml`` in the working folder, then defaults."""

import os
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from es_ttc.common.configuration_files import read_toml
from es_ttc.common.processors import processor_count
from es_ttc.common.text_files import require_depth
from es_ttc.common.validation import problem_of
from es_ttc.errors import ConfigurationError

SideIndexAuth = Literal["caller", "gateway"]

_FILE = "es-ttc.toml"
_PREFIX = "ES_TTC_"
_NO_SETTING = re.compile(
    r"COMPILED|PURE|GOLDEN|(TEST|FUZZ)_.*"  # of es_ttc.rescorers.compiled, of the build and of the tests
    r"|(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_[A-Z]+(_.*)?)?)"  # Kubernetes sets these for services `es-ttc...`
)
"""Variables `ES_TTC_*` that are no settings, without the prefix."""
_MAX_WORKERS = 4


def header_secret(secret: SecretStr) -> SecretStr:
    """Return a secret without line breaks at its end; a ValueError for one that no header can hold."""
    text = secret.get_secret_value().rstrip("\r\n")
    if not text.isprintable():
        raise ValueError("must be one line, without control characters")
    return SecretStr(text)


HeaderSecret = Annotated[SecretStr, AfterValidator(header_secret)]


def default_workers() -> int:
    """Return the number of the gateway's processes: as many as it may use cores, at most 4; one on Windows."""
    if sys.platform == "win32":
        return 1
    return min(_MAX_WORKERS, processor_count())


class _Sources(BaseSettings):
    """The sources of settings, in order."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, toml_file=_FILE, extra="ignore")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources: flags (arguments of the constructor), the environment, the TOML file."""
        return init_settings, _Environment(settings_cls), _TomlFile(settings_cls)


class _Environment(EnvSettingsSource):
    """The variables ``ES_TTC_*``; one that is no setting is refused."""

    def __call__(self) -> dict[str, Any]:
        """Return the values of the settings that have a variable."""
        for name in os.environ:
            key = name.upper().removeprefix(_PREFIX)
            if name.upper() != key and not _NO_SETTING.fullmatch(key):
                _require_setting(key.lower(), "the environment", name, _variable)
        return super().__call__()

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Decode JSON; a ValueError for any that cannot be read."""
        try:
            found = super().decode_complex_value(field_name, field, value)
        except RecursionError as error:
            raise ValueError("too many levels") from error
        require_depth(found)
        return found


class _TomlFile(TomlConfigSettingsSource):
    """The file ``es-ttc.toml``; one that is no TOML, or has a key that is no setting, is refused."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        data, text = read_toml(Path(str(file_path)))
        for key in data:
            _require_setting(key, f"{file_path}, line {_line_of(key, text)}", key, str)
        return data


def _require_setting(key: str, where: str, shown: str, form: Callable[[str], str]) -> None:
    """Raise an error for a key that is no setting, with the nearest one in the form in which it is written there."""
    settings = {name for kind in _all_kinds(_Sources) for name in kind.model_fields}
    if key not in settings:
        near = get_close_matches(key, settings, n=1)
        fix = f"did you mean [{form(near[0])}]?" if near else "docs/reference/settings.md lists the settings"
        raise ConfigurationError(f"{where}: there is no setting [{shown}]; {fix}")


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def _line_of(key: str, text: str) -> int:
    """Return the number of the line of a TOML file on which a top-level key or its table begins."""
    start = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[.=\]]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if start.match(line)), 1)


def wrong_setting(error: ValidationError | SettingsError) -> str | None:
    """Return one sentence about a setting that is wrong; None for an error that is not about settings."""
    if isinstance(error, SettingsError):  # its words name the field alone
        name = next(iter(re.findall('field "([^"]+)"', str(error))), "")
        return f'[{name}] is wrong: {_variable(name)} must be JSON, such as ["a"] for a list'
    kinds = {kind.__name__: kind for kind in _all_kinds(_Sources)}
    if error.title not in kinds:
        return None
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    problem = problem_of(first)
    field = kinds[error.title].model_fields.get(name)
    secret = field is None or "Secret" in str(field.annotation) or not field.repr
    got = "" if secret else f", got [{first['input']}]"
    variable = _variable(name)
    if (line := _line_in_file(first["loc"], first["input"])) is not None and variable not in os.environ:
        return f"{_FILE}, line {line}: [{name}] is wrong{got}: {problem}; correct the file"
    return f"[{name}] is wrong{got}: {problem}; set it by a flag, by {variable}, or in {_FILE}"


def _line_in_file(location: tuple[int | str, ...], value: Any) -> int | None:
    """Return the line on which the file sets a value; None if the value comes from elsewhere."""
    try:
        found, text = read_toml(Path(_FILE))
        for key in location:
            found = found[key]  # type: ignore[index]
    except (ConfigurationError, LookupError, TypeError):
        return None
    return _line_of(str(location[0]), text) if location and found == value else None


def _all_kinds(kind: type[BaseSettings]) -> list[type[BaseSettings]]:
    return [kind, *(one for below in kind.__subclasses__() for one in _all_kinds(below))]


class EngineSettings(_Sources):
    """The engine's address and credentials, as the engines' own clients take them."""

    engine: str = Field(
        "http://127.0.0.1:9200",
        description="URL of the engine. It may contain user:password@, but the machine's process list shows flags. "
        "Several URLs of one cluster, separated by commas, are tried in turn. An Elastic cloud id may be "
        "given instead of a URL.",
    )
    username: str | None = Field(None, description="User name for basic authentication.")
    password: SecretStr | None = Field(None, description="Password for basic authentication.")
    password_file: Path | None = Field(None, description="File that contains the password.")
    api_key: HeaderSecret | None = Field(None, description="API key, encoded as the engine returned it.")
    api_key_file: Path | None = Field(None, description="File that contains the API key.")
    bearer_token: HeaderSecret | None = Field(None, description="Bearer token.")
    bearer_token_file: Path | None = Field(None, description="File that contains the bearer token.")
    aws_region: str | None = Field(
        None,
        pattern=r"^[a-z]+(-[a-z0-9]+)+$",
        description="Region of an Amazon OpenSearch domain, e.g. eu-central-1. Requests are then signed for IAM, with "
        "credentials that botocore finds (environment, profile, role).",
    )
    ca_certs: Path | None = Field(None, description="File with the CA certificates of the engine's certificate.")
    verify_certs: bool = Field(True, description="Whether the engine's certificate is checked.")
    request_timeout: float = Field(30.0, gt=0, description="Timeout of a request to the engine, in seconds.")


class LlmSettings(_Sources):
    """The language model, its endpoint, and limits of requests to it."""

    llm_url: str | None = Field(
        None,
        description="Base URL of an OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1.",
    )
    llm_model: str | None = Field(
        None, description="Name of the model at the endpoint; not needed if the endpoint serves one model."
    )
    llm_api_key: HeaderSecret | None = Field(None, description="Key of the endpoint, sent as a bearer token.")
    llm_ca_certs: Path | None = Field(None, description="File with the CA certificates of the endpoint's certificate.")
    llm_api: Literal["chat", "completions"] = Field(
        "chat", description="API of the endpoint: chat for an assistant, completions for a base model."
    )
    llm_offline: str | None = Field(
        None,
        description="For jobs, instead of an endpoint: folder or hub name of a model that each worker loads with vLLM "
        "and calls in batches.",
    )
    llm_offline_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of vLLM's LLM for that model, as a JSON object, e.g. "
        '{"max_model_len": 4096, "gpu_memory_utilization": 0.85}.',
    )
    llm_extra_body: dict[str, Any] = Field(
        default_factory=dict,
        description='Further keys of every request to the endpoint, as a JSON object, e.g. {"chat_template_kwargs": '
        '{"enable_thinking": false}}.',
    )
    llm_timeout: float = Field(60.0, gt=0, description="Timeout of one attempt, in seconds.")
    llm_attempts: int = Field(
        4, ge=1, le=20, description="Maximum number of attempts of a request, including the first."
    )
    llm_concurrency: int = Field(8, ge=1, le=1024, description="Maximum number of concurrent requests of one process.")


class JobSettings(_Sources):
    """The storage of jobs, and the workers that process them."""

    jobs_index: str = Field(
        "ttc-jobs",
        pattern="^[a-z0-9][a-z0-9-]*$",
        description="Index of the job records. Two more indices with this name as a prefix hold the outcomes of "
        "documents and the proposals of models.",
    )
    redis: SecretStr | None = Field(
        None,
        description="URL of the Redis that workers share, e.g. redis://127.0.0.1:6379/0. Without it a worker starts "
        "its own.",
    )
    jobs_turn_seconds: float = Field(
        30.0,
        ge=1,
        le=600,
        description="Maximum time that a worker spends on one partition per turn, and time after which another worker "
        "takes over from one that has died, in seconds.",
    )
    llm_requests_per_minute: int = Field(
        0,
        ge=0,
        description="Maximum number of requests to the endpoint per minute, of all workers of one Redis together; "
        "0 for no limit.",
    )


class Settings(EngineSettings, LlmSettings, JobSettings):
    """The settings of es-ttc, apart from the flags of a single command and those of the gateway."""

    @property
    def chosen_encoder(self) -> str | None:
        """The encoder that a flag, a variable or a file names; None for the default, which an index's own replaces."""
        return self.encoder if "encoder" in self.model_fields_set else None

    encoder: str = Field(
        "minilm",
        description="Short name (minilm, bge-small, e5-small, mpnet), model name or folder of the encoder; "
        "NAME@BACKEND for another backend (torch, onnx, vllm), NAME+ADAPTER for one with an adapter.",
    )
    encoders: tuple[str, ...] = Field(
        (),
        description="Further encoders that the gateway and workers may load for indices that were encoded with them.",
    )
    encoder_url: str | None = Field(
        None, description="Base URL of a vLLM server that runs the encoder, for encoders named NAME@vllm."
    )
    encoder_api_key: HeaderSecret | None = Field(None, description="Key of that server, sent as a bearer token.")
    ranking_models: Path | None = Field(
        None,
        description="Folder of models that `es-ttc train rank` wrote. The method `learned` serves them by name. The "
        "gateway reads it when it starts.",
    )
    cache_dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_cache_dir("es-ttc")),
        description="Folder for downloads and cached embeddings.",
    )


class GatewaySettings(Settings):
    """The gateway's settings."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(9280, ge=0, le=65535, description="Port to listen on; 0 for any free port.")
    workers: int = Field(
        default_factory=default_workers,
        ge=1,
        le=64,
        description="Number of processes that answer requests at the address. Each loads the encoders; limits of "
        "connections, requests and memory are divided among them.",
    )
    tls_cert: Path | None = Field(
        None,
        description="File with the certificate of the gateway's address and the intermediate ones, in PEM form: the "
        "gateway then speaks HTTPS. It is read again when it changes.",
    )
    tls_key: Path | None = Field(None, description="File with the certificate's key, in PEM form, not encrypted.")
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Names that the `Host` header of a request may have, without a port; `*.example.org` for all below "
        "one. Other requests are answered with 421. Default: all.",
    )
    allowed_origins: tuple[str, ...] = Field(
        (),
        description="Web pages whose requests are answered, by the `Origin` header that browsers send, e.g. "
        "`https://search.example.org`; others get a 403. Default: all, and below `/_ttc/` only pages of the gateway's "
        "own address.",
    )
    ui: bool = Field(
        False,
        description="Whether the gateway serves the playground at `/_ttc/ui`. The page is open to all; its requests "
        "carry the credentials of whoever uses it.",
    )
    traces: bool = Field(
        False,
        description="Whether OpenTelemetry's spans of requests, stages of searches and calls to the engine are sent "
        "(extra `otel`). Its own variables say where: `OTEL_EXPORTER_OTLP_ENDPOINT`...",
    )
    feature_cache_mb: int = Field(
        512,
        ge=0,
        description="Size of the cache of documents' features, in MiB; worker processes divide it.",
    )
    feature_reads_mb: int | None = Field(
        None,
        ge=1,
        description="Maximum size of documents' features that are read from the engine at the same time, in MiB. "
        "Default: a sixteenth of the smallest heap of the engine's nodes (4 to 512) if the gateway's own "
        "account may read `_nodes/stats`, else 32.",
    )
    scoring_timeout_ms: int = Field(1000, gt=0, description="Scoring timeout of a request that sets none, in ms.")
    rerank_timeout_ms: int = Field(
        10_000,
        gt=0,
        description="Timeout of a request to `/_ttc/rerank` or `/_ttc/v1/embeddings`, in ms.",
    )
    model_token: SecretStr | None = Field(
        None,
        description="Bearer token that requests to `/_ttc/rerank` and `/_ttc/v1/embeddings` must carry. Without it and "
        "`admin_token` anyone who reaches the gateway can have texts scored and encoded.",
    )
    admin_token: SecretStr | None = Field(
        None,
        description="Token that requests below `/_ttc/` must carry, as `Authorization: Bearer` or in the header "
        "`x-ttc-token`, for engines without security. Endpoints of `admin_public` and of the plugin do not need it; "
        "where `model_token` is required, either is accepted.",
    )
    admin_public: tuple[Literal["health", "ready", "metrics", "openapi.json", "search.schema.json"], ...] = Field(
        ("health", "ready"),
        description="Endpoints below `/_ttc/` that need no `admin_token`; add `metrics` for a Prometheus without it.",
    )
    model_names: dict[str, str] = Field(
        default_factory=dict,
        description="Model names that clients send to `/_ttc/rerank` and `/_ttc/v1/embeddings`, and the methods or "
        'encoders that they mean, e.g. `{"rerank-v3.5": "spectral", "text-embedding-3-small": "minilm"}`.',
    )
    query_adapters: dict[str, Path] = Field(
        default_factory=dict,
        description="Folders that `es-ttc learn` wrote, by the name that searches are sent to (index, alias or pattern "
        'with `*`), e.g. `{"shop": "/encoders/shop"}`. Queries are encoded with the adapter; documents keep their '
        "vectors.",
    )
    trial_log: Path | None = Field(
        None,
        description="File for a trial of `query_adapters`: they then serve a share of the queries only, whose hits are "
        "drawn in turn from the rankings with and without the adapter. The file gets the text of each such search, the "
        "ids of its hits and their rankings. `es-ttc trial` reads it.",
    )
    trial_share: float = Field(0.1, gt=0, le=1, description="Share of the distinct queries in the trial.")
    sidecar_token: SecretStr | None = Field(
        None,
        description="Bearer token that engines with the plugin send to `/_ttc/score`. Without it the endpoint refuses "
        "all requests.",
    )
    write_timeout_ms: int = Field(
        5000,
        gt=0,
        description="Maximum time that a write waits for the encoding of its documents, in ms, for indices with "
        "`es-ttc index pipeline --encode now`. Documents that are not encoded by then are written as pending.",
    )
    on_demand_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Share of the processors' time for encoding on demand (`es-ttc attach --on-demand`); worker "
        "processes divide it. 0 encodes nothing.",
    )
    on_demand_queue: int = Field(
        10_000,
        ge=1,
        description="Maximum number of documents that wait to be encoded on demand; worker processes divide it. Those "
        "that were in a window longest ago are dropped first.",
    )
    rewriter_prompts: Path | None = Field(
        None, description="Folder with your own prompts for the `query` hook, each in a file NAME.txt."
    )
    max_window: int = Field(1000, ge=1, le=10_000, description="Maximum window of a request.")
    max_concurrent_requests: int = Field(
        1024,
        ge=1,
        description="Maximum number of concurrent requests, which bounds their memory; further ones are answered with "
        "429. Worker processes divide it.",
    )
    max_caller_requests: int = Field(
        0,
        ge=0,
        description="Maximum number of concurrent requests of one caller (the same credentials, or without any the "
        "same address); further ones are answered with 429 and `Retry-After`. Each worker process counts its own "
        "connections. 0 for no limit.",
    )
    max_caller_windows_per_second: float = Field(
        0,
        ge=0,
        description="Maximum number of windows that are rescored for one caller per second (each `ttc` item is one); "
        "further searches are answered with 429 and `Retry-After`. Each worker process counts for itself. 0 for no "
        "limit.",
    )
    programs: Path | None = Field(
        None,
        description="Folder of programs that `es-ttc discover promote` wrote. The method `program` serves them by "
        "name. The gateway reads it when it starts.",
    )
    tuned: tuple[Path, ...] = Field(
        (),
        description="Files of `es-ttc tune` (parameters for requests that set none) and `es-ttc calibrate relevance`.",
    )
    max_buffered_mb: int = Field(
        512,
        ge=1,
        description="Memory for the bodies of all requests together, and for the engine's responses to searches with a "
        "`ttc` section, in MiB. If it is full, a request gets a 429; a longer body gets a 413, and a search with a "
        "longer response is answered without its section.",
    )
    max_answer_mb: int = Field(
        32,
        ge=1,
        description="Maximum size of one answer of the engine to searches with a `ttc` section, in MiB, counting "
        "64 bytes more for each object or array; a search with a larger one is answered without its section. While an "
        "answer is decoded, other requests of the process wait, and it takes several times its size in memory.",
    )
    max_target_kb: int = Field(
        4,
        ge=1,
        description="Maximum size of a request's path and query string, in KiB; the engines' "
        "`http.max_initial_line_length`.",
    )
    max_header_kb: int = Field(
        16, ge=1, description="Maximum size of a request's headers, in KiB; the engines' `http.max_header_size`."
    )
    max_connections: int = Field(4096, ge=1, description="Maximum number of open connections of clients.")
    idle_timeout: int = Field(
        75, gt=0, description="Time after which a connection without a request is closed, in seconds."
    )
    aws_sign_callers: bool = Field(
        False,
        description="Sign callers' requests with the gateway's own AWS credentials, in place of the callers' "
        "credentials. Whoever reaches the gateway then has the gateway's rights.",
    )
    side_index_auth: SideIndexAuth = Field(
        "caller",
        description="Credentials with which side indices are read: the caller's, or the gateway's own (`username`, "
        "`api_key`...). The gateway's are used only for ids that the engine has just returned to the "
        "caller.",
    )
    rerankers: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        repr=False,  # it may hold keys
        description="Rerankers that a request may name: for each name its `kind` and the settings of that kind, as "
        "tables `[rerankers.NAME]` of the file, or as JSON in the variable.",
    )
