"""A saga in Python: each booking names the task that undoes it, so a trip that cannot be paid leaves nothing behind.

python examples/trip.py
"""

from __future__ import annotations

import tidemill


# It gets the result of `book` in `booking`: the parameter that `book` does not have.
@tidemill.task(retries=3)
def cancel(booking: str) -> None:
    print(f"  {booking} is cancelled")


@tidemill.task(compensate=cancel)
def book(what: str) -> str:
    print(f"  {what} is booked")
    return what


# A `Fail` is final unless it is `retryable`; its code is what callers and `on_error` blocks can tell apart.
@tidemill.task
def pay(bookings: list[str], limit: int) -> str:
    if limit < 300 * len(bookings):
        raise tidemill.Fail("limit_exceeded", f"{300 * len(bookings)} EUR are above the limit of {limit}")
    return f"paid for {' and '.join(bookings)}"


# With `compensate` a run that fails is rolled back: what was done is undone, in reverse order.
@tidemill.workflow(compensate=True)
def trip(city: str, limit: int) -> str:
    flight = book(f"a flight to {city}")
    hotel = book.after(flight)(f"a hotel in {city}")
    return pay([flight, hotel], limit)


def main() -> None:
    with tidemill.open("memory://") as mill:
        for limit in (1000, 200):
            run = mill.run(trip, city="Rome", limit=limit, timeout=20)
            print(run.status, run.outputs if run.error is None else run.error["message"])


if __name__ == "__main__":
    main()
