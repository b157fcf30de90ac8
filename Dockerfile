# One image for every role; the extras decide what is inside.
#   docker build --target web .        web, worker, beat: no torch
#   docker build --target serving .    a replica: no Django, no database driver
#   docker build --target fleet .      a node of a fleet on Ray Serve
#   docker build --target serving-gpu .    the same for an NVIDIA GPU; fails where torch came without CUDA
FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 10001 intarsia
WORKDIR /app

FROM base AS web
COPY pyproject.toml README.md ./
COPY billing billing
COPY capacity capacity
COPY creator_cli creator_cli
COPY peft_bridge peft_bridge
COPY lora_kernels lora_kernels
COPY marketplace marketplace
COPY protocol protocol
COPY routing routing
COPY sealed_weights sealed_weights
COPY serving serving
RUN pip install ".[web,guards,s3,search,telemetry,capacity]"
COPY manage.py ./
COPY templates templates
COPY docs docs
RUN install -d -o intarsia -g intarsia /var/lib/intarsia /var/lib/credentials
USER intarsia
VOLUME /var/lib/intarsia
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
CMD ["uvicorn", "marketplace.config.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--lifespan", "on", "--http", "protocol.http1:EdgeProtocol", "--no-access-log", "--no-proxy-headers", "--timeout-graceful-shutdown", "30"]

FROM base AS serving
# The C kernels are compiled at first start, as Triton compiles its launcher.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md ./
COPY creator_cli creator_cli
COPY peft_bridge peft_bridge
COPY lora_kernels lora_kernels
COPY protocol protocol
COPY routing routing
COPY sealed_weights sealed_weights
COPY serving serving
RUN pip install torch==2.13.0 && pip install ".[serving,telemetry]"
RUN install -d -o intarsia -g intarsia /var/lib/intarsia /var/lib/credentials
USER intarsia
VOLUME /var/lib/intarsia
EXPOSE 8100
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8100/healthz', timeout=2)"]
ENTRYPOINT ["python", "-m", "serving", "--host", "0.0.0.0", "--port", "8100", "--state-dir", "/var/lib/intarsia"]

# One node of a fleet on Ray Serve (docs/scale.md): a replica's image and Ray, which starts the replicas.
FROM serving AS fleet
USER root
RUN pip install ".[fleet]"
USER intarsia
# As on every node, before Ray starts (serving/fleet/environment.py).
ENV RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0 PYTHONPATH=/app
HEALTHCHECK NONE
ENTRYPOINT []
CMD ["ray", "--help"]

FROM serving AS serving-gpu
# A torch for CPUs would start and serve, slowly, or refuse --device cuda only on the machine with the GPU.
RUN python -c "import torch, triton; assert torch.version.cuda, 'this torch was built without CUDA'"
# Compiled kernels outlive the container; without them a start takes minutes longer.
ENV TRITON_CACHE_DIR=/var/lib/intarsia/triton NVIDIA_DRIVER_CAPABILITIES=compute,utility
