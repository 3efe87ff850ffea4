"""Fix a failed run and go on: ask why, see what a patch would do, apply it, compare with a fork.

python examples/fix_failed_run.py
"""

from __future__ import annotations

import tidemill

FLOW = """
name: nightly
nodes:
  - {id: fetch, type: python, config: {function: fetch}}
  - id: load
    type: python
    dependencies: [fetch]
    config: {function: load, args: {rows: "{{ fetch.output }}", table: salse}}
  - {id: mail, type: value, dependencies: [load], config: "{{ load.output }} rows loaded"}
"""

FIX = [{"op": "replace", "path": "/nodes/load/config/args/table", "value": "sales"}]
HALF = [{"op": "replace", "path": "/nodes/load/config/args/rows", "value": "{{ fetch.output[:2] }}"}]


def fetch() -> list[int]:
    print("  fetch is called")
    return [1, 2, 3, 4]


def load(rows: list[int], table: str) -> int:
    print(f"  load is called with {len(rows)} rows for {table}")
    if table != "sales":
        raise tidemill.Fail("no_table", f"there is no table {table}")
    return len(rows)


def main() -> None:
    with tidemill.open("memory://", functions={"fetch": fetch, "load": load}) as mill:
        run = mill.run(FLOW).run_id
        print(mill.why(run).headline)

        seen = mill.patch(run, FIX, retry=True, dry_run=True)
        print("the patch changes", *seen.changed, "| runs again", *seen.rerun, "| keeps", *seen.kept)
        mill.patch(run, FIX, retry=True, message="a typo", actor="ada")
        view = mill.result(run, timeout=10)
        print(f"{view.workflow}@{view.version}+{view.revision}", view.status, view.outputs)

        fork = mill.fork(run, node="load", patch=HALF, reason="what if?", actor="ada")
        mill.result(fork, timeout=10)
        print("first difference:", mill.compare(run, fork).first_divergence)


if __name__ == "__main__":
    main()
