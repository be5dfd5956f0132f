# Images that stand in for the official ones where no image registry can be reached: scripts/compose/local_images.sh
# builds them in a folder with the programs, deploy/compose/local-images.yml names them.
ARG BASE_IMAGE

FROM ${BASE_IMAGE} AS nats
COPY nats-server /usr/local/bin/
ENTRYPOINT ["nats-server"]

FROM ${BASE_IMAGE} AS redis
# Whatever Debian has: there is no other to choose from.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o redis -g redis /data

FROM ${BASE_IMAGE} AS prometheus
COPY prometheus /bin/
RUN install -d -o nobody -g nogroup /prometheus
USER 65534
ENTRYPOINT ["/bin/prometheus"]

FROM ${BASE_IMAGE} AS alertmanager
COPY alertmanager /bin/
COPY templates/ /usr/share/prometheus/alertmanager/
RUN install -d -o nobody -g nogroup /alertmanager
USER 65534
ENTRYPOINT ["/bin/alertmanager"]
