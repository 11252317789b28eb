"""A model hub on localhost, as far as huggingface_hub asks it: one repository, faults to order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

REPOSITORY = "owner/tiny"
SHA = "a" * 40


@dataclass
class Hub:
    """cut: file name -> bytes after which the connection is dropped, once for each entry; short:
    names of files of which a GET gives, and announces, less than there is."""

    files: dict[str, bytes]
    cut: dict[str, list[int]] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def gets(self, name: str) -> list[str]:
        """The Range of each GET of a file; empty text where there was none."""
        found = [line.split() for line in self.requests if line.startswith("GET ")]
        return [parts[2] for parts in found if parts[1].endswith(f"/{name}")]


def git_oid(data: bytes) -> str:
    """The id that git, and so the hub, gives a file's content."""
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


@contextmanager
def serve(directory: Path) -> Iterator[Hub]:
    """Serve a checkpoint directory until the block ends."""
    files = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    hub = Hub(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            wanted = self.headers.get("Range", "")
            hub.requests.append(f"{self.command} {self.path} {wanted or '-'}")
            name = self.path.partition(f"/{REPOSITORY}/resolve/{SHA}/")[2]
            if self.path.startswith(f"/api/models/{REPOSITORY}/tree/"):
                self.send_json(self.tree(), body)
            elif self.path.startswith(f"/api/models/{REPOSITORY}"):
                self.send_json(self.listing(), body)
            elif name in files:
                self.send_file(name, wanted, body)
            else:
                self.send_json({"error": "Repository not found"}, body, status=404)

        def listing(self) -> dict[str, object]:
            siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
            return {"id": REPOSITORY, "modelId": REPOSITORY, "sha": SHA, "siblings": siblings}

        def tree(self) -> list[dict[str, object]]:
            return [
                {"type": "file", "path": name, "size": len(data), "oid": git_oid(data)}
                for name, data in files.items()
            ]

        def send_json(self, value: object, body: bool, status: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def send_file(self, name: str, wanted: str, body: bool) -> None:
            data = files[name]
            if body and name in hub.short:
                data = data[:-100]
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first or 0)
            total = len(data)
            data = data[: int(last) + 1] if last else data
            self.send_response(206 if wanted else 200)
            self.send_header("ETag", f'"{git_oid(files[name])}"')
            self.send_header("X-Repo-Commit", SHA)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(data) - start))
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{total}")
            self.end_headers()
            if not body:
                return
            cuts = hub.cut.get(name)
            if cuts:
                self.wfile.write(data[start : start + cuts.pop(0)])
                self.close_connection = True
                return
            self.wfile.write(data[start:])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
