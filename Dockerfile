# One image for the picker (epp), its hot path compiled, the sidecar (registry) and the command line (discovery).
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY adsum adsum
COPY runtime runtime
COPY discovery discovery
COPY registry registry
COPY epp epp
RUN python -m venv /opt/adsum \
    && HATCH_BUILD_HOOK_ENABLE_MYPYC=1 /opt/adsum/bin/pip install --no-cache-dir '.[epp,kubernetes]'

FROM python:3.13-slim
COPY --from=build /opt/adsum /opt/adsum
ENV PATH=/opt/adsum/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# a number, so that Kubernetes can see that it is not root
USER 65532:65532
ENTRYPOINT ["python", "-m"]
CMD ["discovery", "--help"]
