# crammed in a container, for CPUs and for NVIDIA GPUs. Nobody has built this image yet.
#
#   docker build --tag crammed .
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" --volume "$PWD:/work" \
#       crammed run --data my-text.jsonl.zst --budget 1h
#
# Leave out --gpus all on a machine without a GPU. PyTorch's wheel brings the libraries of CUDA, so
# the machine needs no more than a driver and the NVIDIA Container Toolkit. Where pip finds PyTorch
# for CPUs alone, which is smaller, say so: --build-arg PIP_EXTRA_INDEX_URL=ADDRESS.
FROM python:3.12-slim

# torch.compile needs a compiler. Debian keeps no older versions, so none is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/crammed
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint constraints.txt '.[hf,data,linear,web]'

# A user without an entry in /etc/passwd has no home for caches.
ENV HOME=/tmp NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
ENTRYPOINT ["crammed"]
CMD ["--help"]
