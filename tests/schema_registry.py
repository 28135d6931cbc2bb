"""A fake schema registry, which answers over HTTP."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeSchemaRegistry:
    """Answers by path, and records the path and authorization of each request."""

    def __init__(self, port):
        self.answers = {"/schemas/types": ["AVRO", "JSON", "PROTOBUF"]}
        self.requests = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                registry.requests.append((self.path, self.headers["Authorization"]))
                status, answer = registry.answer(self.path)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", answer)
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path):
        """Return status and body. An answer without a status has status 200."""
        answer = self.answers.get(path, (404, {"error_code": 40403, "message": "Schema not found"}))
        return answer if isinstance(answer, tuple) else (200, answer)

    def add_schema(self, number, kind, schema, references=()):
        """Answer requests for the schema of that number."""
        answer = {"schema": schema if isinstance(schema, str) else json.dumps(schema), "references": list(references)}
        self.answers[f"/schemas/ids/{number}"] = answer if kind == "AVRO" else {**answer, "schemaType": kind}


@contextmanager
def run_registry(port=0):
    """Run a registry in a thread."""
    registry = FakeSchemaRegistry(port)
    thread = threading.Thread(target=registry.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        registry.server.shutdown()
        registry.server.server_close()
        thread.join()
