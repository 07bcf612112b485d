# An image with Python, the module `weightloom` and its command.
#
#   docker build --tag weightloom .
#   docker run --rm --volume "$PWD:/work" weightloom inspect model.safetensors

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv unzip \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# The wheel contains the command: nothing else is compiled.
RUN scripts/wheel

FROM python:3.13-slim-bookworm
COPY --from=build /source/dist /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels weightloom && rm -rf /wheels \
    && useradd --create-home weightloom \
    && install --directory --owner weightloom /work
USER weightloom
WORKDIR /work
ENTRYPOINT ["weightloom"]
CMD ["--help"]
