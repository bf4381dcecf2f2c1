"""A stand-in for the Hugging Face hub on this machine: repositories are made, committed to, and read as there."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import yaml


class Hub(BaseHTTPRequestHandler):
    """Answers what the hub's own client asks for; anything else is 404."""

    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    private: ClassVar[dict[str, bool]] = {}
    tokens: ClassVar[set[str | None]] = set()
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def answer(self, body: Any, code: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self) -> None:
        Hub.tokens.add(self.headers.get("authorization"))
        content = self.body
        if self.path == "/api/repos/create":
            wanted = json.loads(content)
            name = f"{wanted['organization']}/{wanted['name']}"
            Hub.repositories.setdefault(name, {})
            Hub.private[name] = wanted.get("visibility") == "private" or bool(wanted.get("private"))
            self.answer({"url": f"{self.here}/{name}", "name": name})
        elif self.path == "/api/validate-yaml":  # of a README that is about to be committed
            head = yaml.safe_load(json.loads(content)["content"].split("---")[1])
            self.answer({"errors": [] if head["library_name"] == "fedstill" else ["no library"], "warnings": []})
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(content)["files"]
            ]
            self.answer({"files": files})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", self.path.partition("?")[0]):
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "file":
                    data = base64.b64decode(line["value"]["content"])
                    Hub.repositories[found[1]][line["value"]["path"]] = data
            self.answer({"success": True, "commitOid": SHA, "commitUrl": f"{self.here}/{found[1]}/commit/{SHA}"})
        else:
            self.answer({"error": "not here"}, 404)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            files = Hub.repositories.get(found[1])
            if files is None:
                self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
                return
            siblings = [{"rfilename": name} for name in files]
            self.answer(
                {"id": found[1], "sha": SHA, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
            )
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
            files = Hub.repositories[found[1]]
            self.answer(
                [
                    {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                    for n, d in files.items()
                ]
            )
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            data = Hub.repositories[found[1]][found[2]]
            self.answer(data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', X_Repo_Commit=SHA)
        else:
            self.answer({"error": "not here"}, 404)

    do_HEAD = do_GET  # noqa: N815 (the name that the server looks for)

    @property
    def here(self) -> str:
        return f"http://{self.headers['Host']}"


SHA = "0" * 40


@contextmanager
def local_hub() -> Iterator[str]:
    """The address of an empty hub, until the end."""
    Hub.repositories.clear()
    Hub.tokens.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
