"""The es-ttc plugin in a node: its archive, its sidecar, its token."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import SecretStr

from es_ttc.common.files import link_or_copy, make_folder, publish, remove, sha256, staging_folder
from es_ttc.engine.node.archives import unpack_archive
from es_ttc.errors import ConfigurationError

PLUGIN_FOLDER = "plugins/es-ttc"
TOKEN_FILE = "ttc-sidecar-token"

_BUILT = Path(__file__).parents[3] / "plugin"
_BUILD = "build it in a checkout with `mvn -f plugin package`, or name its zip"


@dataclass(frozen=True, slots=True)
class Plugin:
    """The plugin in one node."""

    archive: Path
    sidecar: str
    token: SecretStr
    more: Mapping[str, str]

    @classmethod
    def of(cls, archive: Path | None, product: str, sidecar: str, token: SecretStr | None, **more: str) -> Self:
        """Return the plugin."""
        if archive is None:
            built = sorted((_BUILT / product / "target").glob(f"es-ttc-{product}-*.zip"))
            if not built:
                raise ConfigurationError(f"the plugin for {product} is not built here: {_BUILD}")
            archive = built[-1]
        if not archive.is_file():
            raise ConfigurationError(f"there is no plugin [{archive}]: {_BUILD}")
        if token is None:
            raise ConfigurationError(
                "the plugin needs the gateway's token: give both the same ES_TTC_SIDECAR_TOKEN (or sidecar_token in "
                "es-ttc.toml)"
            )
        return cls(archive, sidecar, token, more)

    @property
    def digest(self) -> str:
        """A short digest of the archive, which identifies the build."""
        return sha256(self.archive)[:12]

    @property
    def settings(self) -> dict[str, str]:
        """The node's settings, which allow the sidecar's host."""
        host = urlsplit(self.sidecar).netloc.rpartition("@")[2]
        host = host if host.endswith("]") else re.sub(r":\d+$", "", host)
        own = {"url": self.sidecar, "allowed_hosts": host, "token_file": TOKEN_FILE, **self.more}
        return {f"ttc.sidecar.{name}": value for name, value in own.items()}

    def install(self, product: Path, home: Path) -> Path:
        """Create a home for one node: hard links to the product's files, and this plugin."""
        remove([home])
        with staging_folder(home) as staging:
            shutil.copytree(product, staging, copy_function=link_or_copy, dirs_exist_ok=True)
            unpack_archive(self.archive, make_folder(staging / PLUGIN_FOLDER))
            publish(staging, home)
        return home

    def write_token(self, config: Path) -> Path:
        """Write the token next to the node's settings; return the file, which only the node's user can read."""
        path = config / TOKEN_FILE
        path.touch(mode=0o600)
        path.write_text(self.token.get_secret_value() + "\n")
        return path
