# One image for hub, site and deploy: docker build -t fedstill . && docker run --rm fedstill --help
FROM python:3.11-slim
RUN useradd --create-home --uid 10001 fedstill && install -d -o fedstill -m 0700 /state
WORKDIR /opt/fedstill
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY results results
RUN pip install --no-cache-dir -c constraints.txt "torch==$(sed -n 's/^torch==//p' constraints.txt)" \
 && pip install --no-cache-dir -c constraints.txt ".[flower,privacy]"
USER fedstill
ENV OMP_NUM_THREADS=1
ENTRYPOINT ["fedstill"]
