# Targets: cpu (the default), cuda, and exporter, which writes artifacts. The servers run as user 10001, need neither
# a writable root nor a network of their own, and have no compiler, pip or PyTorch.
#   MODEL     what is exported into the image: default, or a Hub id
#   NO_MODEL  not empty: nothing is, and PyTorch is not installed to build it; an artifact is mounted at
#             /artifacts/model
#   OPENVINO  not empty: with the provider openvino (cpu only)
#   JOB       not empty: with what `seqenc job` needs to read and write files
# For builds that must repeat to the byte: --build-arg PYTHON_IMAGE=docker.io/library/python@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm
ARG NO_MODEL=

FROM ${PYTHON_IMAGE} AS sources
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt pyproject.toml seqenc_process.py README.md LICENSE ./
COPY deploy/image/cuda-requirements.txt deploy/image/
COPY client client
COPY model model
COPY service service

FROM sources AS exporter
# Where wheels of PyTorch without CUDA are, which is all that an export needs.
ARG PIP_EXTRA_INDEX_URL=
RUN python3 -m venv /opt/exporter \
 && /opt/exporter/bin/python -m pip install -c constraints.txt ./client '.[cpu,export]' \
 && install --directory --owner=10001 --group=10001 /artifacts
ENV PATH=/opt/exporter/bin:$PATH HOME=/tmp
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["seqenc-model"]

FROM exporter AS model
ARG MODEL=default
RUN case "$MODEL" in \
      default) seqenc-model export default --out /artifacts/model --name all-MiniLM-L6-v2 ;; \
      *) seqenc-model export "$MODEL" --out /artifacts/model --name "${MODEL##*/}" ;; \
    esac

FROM ${PYTHON_IMAGE} AS no-model
WORKDIR /artifacts/model

FROM ${NO_MODEL:+no-}model AS artifact
# buildah 1.28 leaves a container behind of a stage without an instruction.
USER 10001:10001

FROM sources AS packages-cpu
ARG OPENVINO=
ARG JOB=
RUN python3 -m venv --without-pip /opt/seqenc \
 && python3 -m pip --python /opt/seqenc install -c constraints.txt \
      ./client ".[cpu${OPENVINO:+,openvino}${JOB:+,job}]"

FROM sources AS packages-cuda
ARG JOB=
RUN python3 -m venv --without-pip /opt/seqenc \
 && python3 -m pip --python /opt/seqenc install -c constraints.txt \
      -r deploy/image/cuda-requirements.txt ./client ".[gpu${JOB:+,job}]"

FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="seqenc" \
      org.opencontainers.image.description="Serves Transformer encoders: contextual embeddings and attention maps over gRPC" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
ENV PATH=/opt/seqenc/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY --from=artifact /artifacts/model /artifacts/model
EXPOSE 50051 9090
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=120s --retries=3 CMD ["seqenc", "probe"]
ENTRYPOINT ["seqenc"]
CMD ["serve", "--artifact", "/artifacts/model"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV LD_LIBRARY_PATH=/opt/seqenc/lib/python3.11/site-packages/nvidia/cu13/lib:/opt/seqenc/lib/python3.11/site-packages/nvidia/cudnn/lib
COPY --from=packages-cuda /opt/seqenc /opt/seqenc

FROM runtime AS cpu
COPY --from=packages-cpu /opt/seqenc /opt/seqenc
