"""OpenSearch with its Java agent, as the official archive starts it: it refuses what policies do not grant.

The agent has no release of our node's version; the nearest one runs, as with other parts of the node. Of connections it
asks nothing that Java's own HTTP client makes, for that connects on threads where no plugin's code stands: a plugin
without its policy connects just as well (seen by hand), while a plain socket is refused.
"""

import dataclasses
from pathlib import Path

from es_ttc.engine.node import account, artifacts, parts
from es_ttc.engine.node.distribution import Command, NodeFolder
from es_ttc.engine.node.files import link_or_copy, make_folder
from es_ttc.engine.node.java import Java
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.parts import Artifact, Pinned
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.settings import Settings

AGENT = Pinned(
    Artifact("org.opensearch", "opensearch-agent", "3.6.0"),
    "b5f40ea6f7750eb9e88278b2ad1d4b108c157249868562c0914ec1fd4220af32",
    21_479,
)
BYTE_BUDDY = Pinned(
    Artifact("net.bytebuddy", "byte-buddy", "1.17.7"),
    "3575dcb8a98faf943d3c1595c47a16047c4fce8a83ebbb26262f1a2f67546357",
    9_015_334,
)
BOOTSTRAP = Artifact("org.opensearch", "opensearch-agent-bootstrap", "3.6.0")


class GuardedOpenSearch(OpenSearchDistribution):
    """OpenSearch whose code is held to its policies."""

    def command(self, home: Path, folder: NodeFolder, java: Java, spec: NodeSpec) -> Command:
        """Return the command, with the agent and the jars that it wants beside it."""
        cache = account.base_folder(Settings().cache_dir, account.run_as()) / "artifacts"
        files = artifacts.fetch([AGENT, BYTE_BUDDY, parts.read_lock()[BOOTSTRAP]], cache)
        beside = make_folder(folder.path / "agent")
        for file in files.values():
            if not (beside / file.name).exists():
                link_or_copy(file, beside / file.name)
        command = super().command(home, folder, java, spec)
        program, *arguments = command.arguments
        agent = f"-javaagent:{beside / AGENT.artifact.filename}"
        return dataclasses.replace(command, arguments=(program, agent, *arguments))
