# The gateway alone, its request path compiled: no torch, no compiler, no shell needed to run it.
#   docker build -f helm/containers/gateway.Dockerfile -t metergate/gateway:0.1.0 .
# Pin the base by digest: --build-arg BASE=python:3.13-slim-bookworm@sha256:…
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
COPY billing billing
COPY local_engine local_engine
COPY kernels kernels
COPY migrations migrations
# hadolint ignore=DL3008  # the compiler of whatever Debian the base has
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# What a request runs through is compiled here; what compiles it stays behind.
RUN python -m venv /opt/metergate \
    && /opt/metergate/bin/pip install --no-cache-dir --constraint constraints.txt ".[compile,postgres,redis]" \
    && /opt/metergate/bin/metergate compile \
    && /opt/metergate/bin/pip uninstall --yes mypy librt pathspec setuptools

FROM ${BASE}
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin metergate \
    && install -d -o metergate -g metergate /var/lib/metergate
COPY --from=build /opt/metergate /opt/metergate
ENV PATH=/opt/metergate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    METERGATE_HOME=/var/lib/metergate
USER 10001:10001
VOLUME /var/lib/metergate
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/live', timeout=2)"]
ENTRYPOINT ["metergate"]
CMD ["serve", "--host", "0.0.0.0"]
