# An engine on NVIDIA GPUs: torch with CUDA and triton, and the gateway's command beside them.
#   docker build -f helm/containers/engine.Dockerfile -t metergate/engine:0.1.0 .
# Pin the base by digest: --build-arg BASE=python:3.13-slim-bookworm@sha256:…
# torch's wheels bring CUDA's libraries; the driver comes from the node. Triton compiles its launchers with gcc.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008  # the compiler of whatever Debian the base has
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin metergate
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
COPY billing billing
COPY local_engine local_engine
COPY kernels kernels
COPY migrations migrations
RUN python -m venv /opt/metergate \
    && /opt/metergate/bin/pip install --no-cache-dir ".[engine]" \
    && rm -rf /src
WORKDIR /home/metergate
ENV PATH=/opt/metergate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    METERGATE_HOME=/tmp/metergate
USER 10001:10001
EXPOSE 8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30m \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8001/health', timeout=2)"]
ENTRYPOINT ["metergate"]
CMD ["engine", "serve", "/models", "--host", "0.0.0.0", "--port", "8001"]
