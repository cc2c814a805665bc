# Either engine with the es-ttc plugin, built from this checkout; the compose files for the plugin name the target.
FROM maven:3.9.11-eclipse-temurin-21 AS opensearch-plugin
WORKDIR /build
COPY plugin .
RUN mvn -B -q -DskipTests package

FROM opensearchproject/opensearch:3.5.0 AS opensearch
COPY --from=opensearch-plugin /build/opensearch/target/es-ttc-opensearch-3.5.0-0.1.0.zip /tmp/es-ttc.zip
RUN bin/opensearch-plugin install --batch file:///tmp/es-ttc.zip

FROM elasticsearch:9.4.3 AS elasticsearch-home

# The plugin for Elasticsearch is compiled with the jars of the release that it is for.
FROM maven:3.9.11-eclipse-temurin-21 AS elasticsearch-plugin
WORKDIR /build
COPY --from=elasticsearch-home /usr/share/elasticsearch/lib /usr/share/elasticsearch/lib
COPY plugin .
RUN mvn -B -q -DskipTests -Delasticsearch.home=/usr/share/elasticsearch package

FROM elasticsearch:9.4.3 AS elasticsearch
COPY --from=elasticsearch-plugin /build/elasticsearch/target/es-ttc-elasticsearch-9.4.3-0.1.0.zip /tmp/es-ttc.zip
RUN bin/elasticsearch-plugin install --batch file:///tmp/es-ttc.zip
