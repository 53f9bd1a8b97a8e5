# The image of all four programs, the picker's hot path compiled: `docker build -t adsum .`, then `docker run adsum epp --help`.
# `docker build --target epp` makes one whose entry point is the picker, for a chart that gives the Go picker its arguments.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY adsum adsum
COPY discovery discovery
COPY registry registry
COPY epp epp
COPY dispatcher dispatcher
RUN python -m venv /opt/adsum \
    && HATCH_BUILD_HOOK_ENABLE_MYPYC=1 /opt/adsum/bin/pip install --no-cache-dir '.[epp,dispatcher,eds,etcd,kubernetes,kv,otel,tokenizers]' \
    && /opt/adsum/bin/pip uninstall --yes pip

FROM python:3.13-slim AS programs
COPY --from=build /opt/adsum /opt/adsum
ENV PATH=/opt/adsum/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# a number, so that Kubernetes can see that it is not root
USER 65532:65532

FROM programs AS epp
# ext_proc, health, metrics
EXPOSE 9002 9003 9090
ENTRYPOINT ["adsum", "epp"]

FROM programs AS adsum
ENTRYPOINT ["adsum"]
CMD ["--help"]
