"""A real Elasticsearch that asks for credentials."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

from es_ttc.engine.node.distribution import NodeFolder
from tests.support.elasticsearch import ElasticsearchDistribution

SUPERUSER = "admin"
PASSWORD = "correct-horse-battery-staple"
_ITERATIONS = 1000  # the fewest that the engine reads
_SALT = b"one salt for a throw-away node!!"


class SecuredElasticsearch(ElasticsearchDistribution):
    """Elasticsearch with security on, one superuser in a file, and document-level security in its licence."""

    def settings(self) -> Mapping[str, str]:
        """Ask for credentials; who has none may see the cluster's health, by which a node is known to be up."""
        return {
            "xpack.security.enabled": "true",
            "xpack.security.http.ssl.enabled": "false",
            "xpack.security.transport.ssl.enabled": "false",
            "xpack.license.self_generated.type": "trial",
            "xpack.security.authc.anonymous.roles": "health",
            "xpack.security.authc.anonymous.authz_exception": "false",
        }

    def configure(self, home: Path, folder: NodeFolder) -> None:
        """Write the superuser and the role of those without credentials beside the JVM's options."""
        super().configure(home, folder)
        (folder.config / "users").write_text(f"{SUPERUSER}:{password_hash(PASSWORD)}\n")
        (folder.config / "users_roles").write_text(f"superuser:{SUPERUSER}\n")
        (folder.config / "roles.yml").write_text('health:\n  cluster: ["cluster:monitor/health"]\n')


def password_hash(password: str) -> str:
    """Return a password as the file realm reads it."""
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), _SALT, _ITERATIONS, dklen=32)
    return f"{{PBKDF2}}{_ITERATIONS}${base64.b64encode(_SALT).decode()}${base64.b64encode(derived).decode()}"


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header of basic authentication."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


ADMIN = basic(SUPERUSER, PASSWORD)
