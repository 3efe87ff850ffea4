"""What compiling a large document costs: from JSON, from YAML, and in memory.

Each language runs in a process of its own, so that peaks do not mix.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benches.figures import Figure
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.document.reader import Format, read_document
from tidemill.kernel.model import NodeType

NODES = 100_000
SECONDS_MAX: dict[Format, float] = {"json": 6.0, "yaml": 25.0}
MIB_MAX = 1024
TYPES = {
    "value": [NodeType(name="value")],
    "python": [
        NodeType(
            name="python",
            config_schema={
                "type": "object",
                "required": ["function"],
                "properties": {"function": {"type": "string"}, "args": {"type": "object"}},
                "additionalProperties": False,
            },
        )
    ],
}


def large_document(count: int) -> dict[str, Any]:
    """Chains and fans in turn; every other node reads its parent, every tenth is routed by a condition."""
    nodes: list[dict[str, Any]] = []
    for number in range(count):
        parents = [f"node_{number - 1}"] if number else []
        if number % 50 == 49:
            parents = [f"node_{earlier}" for earlier in range(number - 10, number)]
        node: dict[str, Any] = {
            "id": f"node_{number}",
            "type": "python",
            "config": {"function": "shop.orders:charge", "args": {"order": number, "tags": ["a", "b"]}},
            "dependencies": parents,
            "retry": {"max_attempts": 5},
            "timeout_seconds": 30,
        }
        if number % 2:
            node["config"]["args"]["total"] = f"{{{{ {parents[0]}.output.total }}}}"
        if number % 10 == 5:
            node["when"] = "inputs.express || iteration == 0"
        nodes.append(node)
    return {"name": "large", "inputs": {"type": "object"}, "nodes": nodes}


def peak_mib() -> float:
    """The most memory this process has had; the kernel's own count, because `ru_maxrss` begins with the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(language: Format, path: Path, count: int) -> dict[str, float]:
    """Processor time of the way from the text of a document to its digest."""
    text = path.read_bytes()
    begun = time.process_time()
    raw = read_document(text, format=language)
    read = time.process_time()
    compiled = compile_document(raw, TYPES)
    compiled_at = time.process_time()
    assert compiled.workflow.digest
    ended = time.process_time()
    return {
        "read_s": read - begun,
        "compile_s": compiled_at - read,
        "digest_s": ended - compiled_at,
        "total_s": ended - begun,
        "us_per_node": (ended - begun) / count * 1e6,
        "peak_mib": peak_mib(),
        "text_mib": len(text) / 2**20,
    }


def measured_apart(language: Format, count: int) -> dict[str, float]:
    """The same in a process of its own, which has not written the document, so that the peak is the compiler's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"large.{language}"
        with path.open("w") as file:
            if language == "json":
                json.dump(large_document(count), file)
            else:
                yaml.dump(large_document(count), file, Dumper=yaml.CSafeDumper, sort_keys=False)
        command = [sys.executable, "-m", "benches.bench_compile", str(count), language, str(path)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(answer)
    return result


def figures(count: int = NODES) -> list[Figure]:
    """Measure both languages."""
    found: list[Figure] = []
    for language, seconds_max in SECONDS_MAX.items():
        result = measured_apart(language, count)
        name = f"compile {count:,} nodes from {language}"
        found.append(Figure(name, result["total_s"], "s", seconds_max))
        found.append(Figure(f"{name}: reading alone", result["read_s"], "s"))
        found.append(Figure(f"{name}: peak memory", result["peak_mib"], "MiB", MIB_MAX))
    return found


if __name__ == "__main__":
    # One measurement in a process of its own: nodes, language, file.
    nodes_asked, language_asked, file_asked = sys.argv[1:4]
    print(json.dumps(measure("json" if language_asked == "json" else "yaml", Path(file_asked), int(nodes_asked))))
