"""Call an API that is paginated and busy at first, then send a signed webhook with the result.

python examples/call_http.py
"""

from __future__ import annotations

import base64
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import tidemill

FLOW = {
    "name": "orders",
    "nodes": [
        {
            "id": "orders",
            "type": "http",
            "config": {
                "url": "{{ inputs.api }}/orders",
                "query": {"status": "open"},
                "auth": {"bearer": "{{ secrets.SHOP_TOKEN }}"},
                "pagination": {"next": "$.next", "items": "$.orders[*]"},
            },
        },
        {
            "id": "tell",
            "type": "webhook",
            "dependencies": ["orders"],
            "config": {
                "url": "{{ inputs.api }}/hook",
                "type": "orders.counted",
                "data": {"open": "{{ orders.output.body | length }}"},
                "secret": "{{ secrets.HOOK_KEY }}",
            },
        },
    ],
}
PAGES = {
    "/orders?status=open": {"orders": [{"id": 1}, {"id": 2}], "next": "/orders?page=2"},
    "/orders?page=2": {"orders": [{"id": 3}], "next": None},
}


class Shop(BaseHTTPRequestHandler):
    """Busy when it is called for the first time."""

    calls = 0

    def do_GET(self) -> None:
        Shop.calls += 1
        self.answer(503, {"error": "busy"}) if Shop.calls == 1 else self.answer(200, PAGES[self.path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        print("received", body["type"], body["data"], "signed" if self.headers["webhook-signature"] else "unsigned")
        self.answer(200, {})

    def answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # Loopback is closed to nodes unless an operator opens it, and a secret is sent only where the operator says.
        origin = f"http://127.0.0.1:{server.server_port}"
        os.environ["TIDEMILL_EGRESS_ALLOW"] = origin
        os.environ["TIDEMILL_SECRET_GRANTS"] = f"SHOP_TOKEN={origin}@orders; HOOK_KEY={origin}@orders"
        os.environ["TIDEMILL_SECRET_SHOP_TOKEN"] = "a token"
        os.environ["TIDEMILL_SECRET_HOOK_KEY"] = "whsec_" + base64.b64encode(os.urandom(32)).decode()
        with tidemill.open("memory://") as mill:
            run = mill.run(FLOW, {"api": origin}, timeout=20)
        server.shutdown()
    print(run.status, "after", Shop.calls, "calls:", run.outputs)


if __name__ == "__main__":
    main()
