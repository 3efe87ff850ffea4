"""Run a command and mail its output, through an SMTP server on this machine that accepts everything.

python examples/mail_report.py
"""

from __future__ import annotations

import os
import socketserver
import threading

import tidemill

FLOW = {
    "name": "report",
    "nodes": [
        {
            "id": "sum",
            "type": "shell",
            "config": {"argv": ["sort", "-n"], "stdin": "{{ inputs.numbers | join('\\n') }}", "parse": "lines"},
        },
        {
            "id": "mail",
            "type": "email",
            "dependencies": ["sum"],
            "config": {
                "from": "The Mill <mill@example.com>",
                "to": "ada@example.com",
                "subject": "{{ sum.output.value | length }} numbers",
                "text": "The largest is {{ sum.output.value | last }}.",
                "attachments": [{"name": "numbers.txt", "content": "{{ sum.output.value | join('\\n') }}"}],
            },
        },
    ],
}


class Post(socketserver.StreamRequestHandler):
    """Just enough of a mail server; it prints the lines that people read."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            if line == b"DATA\r\n":
                self.wfile.write(b"354 go on\r\n")
                for text in iter(self.rfile.readline, b".\r\n"):
                    if text.startswith((b"To:", b"Subject:", b"The ")):
                        print(text.decode().strip())
            self.wfile.write(b"250 fine\r\n")


def main() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Post) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # Commands are off unless an operator enables them, and the operator names the mail server.
        os.environ["TIDEMILL_SHELL"] = "on"
        os.environ["TIDEMILL_SMTP_URL"] = f"smtp://127.0.0.1:{server.server_address[1]}?tls=none"
        with tidemill.open("memory://") as mill:
            run = mill.run(FLOW, {"numbers": [17, 4, 42]}, timeout=20)
        server.shutdown()
    print(run.status, run.outputs and run.outputs["mail"]["recipients"])


if __name__ == "__main__":
    main()
