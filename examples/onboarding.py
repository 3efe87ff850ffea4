"""Child workflows: onboarding an employee runs the workflow `account` once per system, each as a run of its own.

A child has its own log, its own retries and an id that is derived from its parent's, so it is started once.

python examples/onboarding.py
"""

from __future__ import annotations

import tidemill

ACCOUNT = """
name: account
inputs:
  type: object
  required: [system, person]
  properties: {system: {type: string}, person: {type: string}}
nodes:
  - {id: create, type: value, config: "{{ inputs.person | lower }}@{{ inputs.system }}"}
  - id: verify
    type: fail                      # the directory needs a moment: the first attempt fails
    dependencies: [create]
    retry: {max_attempts: 3, backoff_seconds: 0.1}
    config: {attempts: 1, retryable: true, message: "not replicated yet", value: "{{ create.output }}"}
outputs: "{{ verify.output }}"
"""

ONBOARDING = """
name: onboarding
inputs:
  type: object
  required: [person]
  properties: {person: {type: string}}
nodes:
  - id: accounts
    type: workflow
    map: {over: [mail, wiki, payroll]}
    config: {workflow: account, inputs: {system: "{{ item }}", person: "{{ inputs.person }}"}}
  - {id: welcome, type: value, dependencies: [accounts], config: "Welcome! {{ accounts.output | join(', ') }}"}
"""


def main() -> None:
    with tidemill.open("memory://") as mill:
        # A child is looked up when it is started, so it has to be published too.
        mill.publish(ACCOUNT)
        mill.publish(ONBOARDING)
        run = mill.start("onboarding", {"person": "Ada"}, key="ada-1")
        print(mill.result(run, timeout=20).outputs["welcome"])
        children, _ = mill.find([f"parent:{run}"])
        for child in sorted(children, key=lambda each: each.run_id):
            print(child.run_id, child.status)


if __name__ == "__main__":
    main()
