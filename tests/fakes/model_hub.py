"""A model hub on this machine: it serves the files of one repository and counts what it is asked for."""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class ModelHub:
    address: str
    asked: list[str] = field(default_factory=list)  # "HEAD /path", in order


@contextmanager
def model_hub(files: Mapping[str, bytes], *, drops: bool = False) -> Iterator[ModelHub]:
    """Serve ``files`` by their names.

    Args:
        files: Content by file name, in any repository.
        drops: Close every connection without an answer.
    """

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            if drops:
                self.close_connection = True
                return
            content = files.get(self.path.rpartition("/")[2])
            if content is None:
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD  # noqa: N815  # the name is given

        def log_message(self, *given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    hub = ModelHub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
