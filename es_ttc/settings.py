"""Settings: flags, then ``ES_TTC_*`` variables, then ``es-ttc.toml`` in the working folder, then these defaults."""

from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

SideCredentials = Literal["caller", "gateway"]


class EngineSettings(BaseSettings):
    """Where the engine is and how to sign in, as the engines' own clients take it."""

    model_config = SettingsConfigDict(env_prefix="ES_TTC_", toml_file="es-ttc.toml", extra="ignore")

    engine: str = Field("http://127.0.0.1:9200", description="The engine's URL; may hold user:password@.")
    username: str | None = Field(None, description="User name for basic authentication.")
    password: SecretStr | None = Field(None, description="Password for basic authentication.")
    api_key: SecretStr | None = Field(None, description="API key, encoded as the engine gave it.")
    bearer_token: SecretStr | None = Field(None, description="Bearer token.")
    ca_certs: Path | None = Field(None, description="File with the certificates that sign the engine's own.")
    verify_certs: bool = Field(True, description="Whether the engine's certificate is checked.")
    request_timeout: float = Field(30.0, gt=0, description="Seconds until a call to the engine is given up.")

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


class Settings(EngineSettings):
    """Everything that es-ttc can be told beside a command's own flags."""

    encoder: str = Field(
        "minilm", description="Short name, model name or folder of the encoder; NAME+ADAPTER for one with an adapter."
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
    default_timeout_ms: int = Field(1000, gt=0, description="Scoring budget where a request names none, in ms.")
    rerank_timeout_ms: int = Field(
        10_000, gt=0, description="What a request to `/_ttc/rerank` may take, in ms: its texts are encoded on the fly."
    )
    max_window: int = Field(1000, ge=1, le=10_000, description="Greatest window that a request may ask for.")
    scoring_threads: int = Field(2, ge=1, description="Windows scored at the same time.")
    max_concurrent_requests: int = Field(256, ge=1, description="Requests in flight before 429 is answered.")
    tuned: tuple[Path, ...] = Field(
        (), description="Files of `es-ttc tune`: parameters for requests that give none of their own."
    )
    max_body_mb: int = Field(100, ge=1, description="Greatest `_search` body that is read for our section, in MiB.")
    side_credentials: SideCredentials = Field(
        "caller",
        description="In whose name side indices of attached indices are read: the caller's, or the gateway's own "
        "(`username`, `api_key`...), and that only for ids that the engine has just returned to the caller.",
    )
    log_format: str = Field("auto", pattern="^(auto|json|console)$", description="console on a terminal, else json.")
