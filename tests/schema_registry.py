"""A stand-in for a schema registry, which speaks HTTP."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandIn:
    """Answers by path, and remembers what it was asked: path and authorization."""

    def __init__(self, port):
        self.answers = {"/schemas/types": ["AVRO", "JSON", "PROTOBUF"]}
        self.asked = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                stand_in.asked.append((self.path, self.headers["Authorization"]))
                status, told = stand_in.answer(self.path)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", told)
                body = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *of):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path):
        """Status and body: of what is told without a status it is 200."""
        found = self.answers.get(path, (404, {"error_code": 40403, "message": "Schema not found"}))
        return found if isinstance(found, tuple) else (200, found)

    def has(self, number, kind, schema, references=()):
        told = {"schema": schema if isinstance(schema, str) else json.dumps(schema), "references": list(references)}
        self.answers[f"/schemas/ids/{number}"] = told if kind == "AVRO" else {**told, "schemaType": kind}


@contextmanager
def serving(port=0):
    stand_in = StandIn(port)
    thread = threading.Thread(target=stand_in.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.server.shutdown()
        stand_in.server.server_close()
        thread.join()
