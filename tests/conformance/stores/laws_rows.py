"""Laws of index rows: replacing, terms, order, pages that stay right while others write, counting."""

from __future__ import annotations

import random

import pytest

from tests.conformance.stores.harness import OTHER, RUN, StoreUnderTest, row, run
from tidemill.errors import Rejected
from tidemill.stores.contract import Page, Row, cursor_at


class RowLaws:
    async def test_a_row_comes_back_whole(self, sut: StoreUnderTest) -> None:
        written = Row(kind="approval", key="k", sort=-7, terms=("status:OPEN", "label:a=ü"), body=b"\x00\xff")
        await sut.committed(rows=(written,))
        assert await sut.store.find("acme", "approval") == Page(rows=(written,))

    async def test_newest_first_then_by_key(self, sut: StoreUnderTest) -> None:
        await sut.committed(rows=(row("b", 5), row("z", 1), row("c", 5)))
        await sut.committed(OTHER, rows=(row("a", 5), row("y", 9)))
        assert await sut.found() == ["y", "c", "b", "a", "z"]

    async def test_keys_are_ordered_by_code_point(self, sut: StoreUnderTest) -> None:
        names = ["A", "Z", "_", "a", "b:1", "ä", "中", "\U0001f30a"]
        await sut.committed(rows=tuple(row(name) for name in names))
        assert await sut.found() == names[::-1]

    async def test_terms_are_intersected(self, sut: StoreUnderTest) -> None:
        await sut.committed(rows=(row("a", 1, "x"), row("b", 2, "x", "y"), row("c", 3, "y"), row("d", 4, "y", "x")))
        assert await sut.found("x") == ["d", "b", "a"]
        assert await sut.found("x", "y") == ["d", "b"]
        assert await sut.found("y", "x", "y") == ["d", "b"]
        assert await sut.found("x", "none") == []
        assert await sut.found() == ["d", "c", "b", "a"]

    async def test_terms_are_a_set_and_any_text(self, sut: StoreUnderTest) -> None:
        await sut.committed(rows=(row("a", 1, "x", "x", ""), row("b", 2, "x%", "x y")))
        assert await sut.found("x") == ["a"]
        assert await sut.found("") == ["a"]
        assert await sut.found("x%") == ["b"]
        assert await sut.store.count("acme", "run", ["x"]) == 1
        await sut.committed(rows=(row("a", 1, "x"),))
        assert await sut.found("x") == ["a"]

    async def test_a_row_is_replaced_with_all_its_terms(self, sut: StoreUnderTest) -> None:
        await sut.committed(rows=(row("a", 1, "RUNNING", "w"), row("b", 2, "RUNNING", "w")))
        await sut.committed(rows=(row("a", 1, "DONE", "w", body=b"new"),))
        assert await sut.found("RUNNING") == ["b"]
        assert await sut.found("DONE") == ["a"]
        assert await sut.found("w") == ["b", "a"]
        assert (await sut.store.find("acme", "run", ["DONE"])).rows[0].body == b"new"
        await sut.committed(rows=(row("a", 1, "RUNNING", "w"),))
        assert await sut.found("RUNNING") == ["b", "a"]
        assert await sut.found("DONE") == []

    async def test_a_row_moves_with_its_sort(self, sut: StoreUnderTest) -> None:
        await sut.committed(rows=(row("a", 1, "x"), row("b", 2, "x")))
        await sut.committed(rows=(row("a", 3, "x"),))
        assert await sut.found("x") == ["a", "b"]
        await sut.committed(rows=(row("a", 1, "x"),))
        assert await sut.found() == ["b", "a"]
        assert await sut.found("x") == ["b", "a"]

    async def test_any_stream_of_the_tenant_may_replace_a_row(self, sut: StoreUnderTest) -> None:
        await sut.committed(RUN, rows=(row("a", body=b"1"),))
        await sut.committed(OTHER, rows=(row("a", body=b"2"),))
        assert [found.body for found in (await sut.store.find("acme", "run")).rows] == [b"2"]

    async def test_a_row_can_be_removed_and_written_again(self, sut: StoreUnderTest) -> None:
        await sut.committed(rows=(row("a", 1, "x"), row("b", 2, "x")))
        await sut.committed(rows=(row("a", 0, deleted=True), row("never", deleted=True)))
        assert await sut.found() == ["b"]
        assert await sut.found("x") == ["b"]
        assert await sut.store.count("acme", "run") == 1
        await sut.committed(rows=(row("a", 1, "x"),))
        assert await sut.found("x") == ["b", "a"]

    async def test_in_one_commit_the_last_writing_of_a_row_counts(self, sut: StoreUnderTest) -> None:
        await sut.committed(rows=(row("a", 1, "x"), row("a", 2, "y"), row("b"), row("b", deleted=True)))
        assert await sut.found() == ["a"]
        assert await sut.found("x") == []
        assert await sut.found("y") == ["a"]

    async def test_rows_are_apart_by_tenant_and_kind(self, sut: StoreUnderTest) -> None:
        await sut.committed(run("r", "acme"), rows=(row("a", 1, "x"), row("a", 1, "x", kind="approval", body=b"2")))
        await sut.committed(run("r", "zeta"), rows=(row("a", 1, "x", body=b"3"), row("b", 2)))
        await sut.committed(run("r", "zeta"), rows=(row("a", 1, "y", body=b"4"),))
        assert [found.body for found in (await sut.store.find("acme", "run", ["x"])).rows] == [b"a"]
        assert [found.body for found in (await sut.store.find("acme", "approval", ["x"])).rows] == [b"2"]
        assert await sut.found(tenant="zeta") == ["b", "a"]
        assert await sut.found("x", tenant="zeta") == []
        assert await sut.found(tenant="nobody") == []
        assert await sut.store.count("acme", "run") == 1

    @pytest.mark.parametrize("terms", [(), ("even",), ("even", "all")])
    @pytest.mark.parametrize("limit", [1, 3, 5, 10])
    async def test_pages_are_the_whole_in_order(self, sut: StoreUnderTest, limit: int, terms: tuple[str, ...]) -> None:
        await sut.committed(rows=tuple(row(f"k:{n}", n // 3, "all", "odd" if n % 2 else "even") for n in range(10)))
        pages = await self._pages(sut, limit, terms)
        assert [found for page in pages for found in page] == await sut.found(*terms)
        assert all(len(page) == limit for page in pages[:-1])
        assert 0 < len(pages[-1]) <= limit, "there is no cursor behind the last row"

    @staticmethod
    async def _pages(sut: StoreUnderTest, limit: int, terms: tuple[str, ...] = ()) -> list[list[str]]:
        pages: list[list[str]] = []
        after: str | None = None
        for _ in range(20):
            page = await sut.store.find("acme", "run", terms, after=after, limit=limit)
            pages.append([found.key for found in page.rows])
            after = page.after
            if after is None:
                break
        return pages

    async def test_the_rarer_of_two_frequent_terms_fills_a_page(self, sut: StoreUnderTest) -> None:
        """Its rows are the oldest: who walks along the other term passes thousands of entries before the first."""
        rows = [row(f"{n:05}", n, "large", *(["small"] if n < 250 else [])) for n in range(6_000)]
        for start in range(0, len(rows), 1_000):
            await sut.committed(run("many"), rows=tuple(rows[start : start + 1_000]))
        page = await sut.store.find("acme", "run", ("large", "small"), limit=250)
        assert [each.sort for each in page.rows] == list(reversed(range(250)))

    @pytest.mark.parametrize("terms", [(), ("x",), ("x", "y")])
    async def test_a_cursor_without_a_key_begins_below_a_sort(
        self, sut: StoreUnderTest, terms: tuple[str, ...]
    ) -> None:
        """Bounds on the sort are asked for like this, whether or not there is a row at the bound."""
        await sut.committed(rows=tuple(row(f"k{sort}", sort, "x", "y") for sort in (-3, 0, 5, 7)))
        for sort, below in [(8, ["k7", "k5", "k0", "k-3"]), (7, ["k5", "k0", "k-3"]), (6, ["k5", "k0", "k-3"])]:
            page = await sut.store.find("acme", "run", terms, after=cursor_at((sort, "")))
            assert [each.key for each in page.rows] == below
        assert (await sut.store.find("acme", "run", terms, after=cursor_at((-3, "")))).rows == ()

    async def test_a_cursor_right_above_a_row_begins_with_it(self, sut: StoreUnderTest) -> None:
        """A row is looked up by its place like this; others may have its sort, or a key that begins with its key."""
        await sut.committed(rows=(row("k", 9, kind="x"), *(row(key, 5) for key in ("k", "k.1", "k0", "ka", "j"))))
        for key, found in [("k", "k"), ("k.1", "k.1"), ("kX", "k0"), ("j", "j"), ("a", None)]:
            page = await sut.store.find("acme", "run", after=cursor_at((5, f"{key}\1")), limit=1)
            assert [each.key for each in page.rows] == ([] if found is None else [found])

    async def test_an_empty_page_has_no_cursor(self, sut: StoreUnderTest) -> None:
        assert await sut.store.find("acme", "run", limit=1) == Page(rows=())

    async def test_a_cursor_is_stable_while_rows_come_and_go(self, sut: StoreUnderTest) -> None:
        await sut.committed(rows=tuple(row(f"{n}", n) for n in range(6)))
        first = await sut.store.find("acme", "run", limit=2)
        assert [found.key for found in first.rows] == ["5", "4"]
        await sut.committed(rows=(row("newer", 9), row("between", 2), row("4", deleted=True), row("3", deleted=True)))
        rest = await sut.store.find("acme", "run", after=first.after, limit=9)
        assert [found.key for found in rest.rows] == ["between", "2", "1", "0"]

    async def test_rows_that_stay_are_on_exactly_one_page(self, sut: StoreUnderTest) -> None:
        dice = random.Random(7)
        stable = [f"stable{n}" for n in range(40)]
        await sut.committed(rows=tuple(row(name, dice.randrange(50), "x") for name in stable))
        seen: list[str] = []
        after: str | None = None
        for _ in range(200):
            restless = [row(f"restless{dice.randrange(30)}", dice.randrange(50), "x", deleted=dice.random() < 0.3)]
            await sut.committed(OTHER, rows=tuple(restless))
            page = await sut.store.find("acme", "run", ["x"], after=after, limit=3)
            seen += [found.key for found in page.rows if found.key.startswith("stable")]
            after = page.after
            if after is None:
                break
        assert sorted(seen) == sorted(stable)

    @pytest.mark.parametrize("cursor", ["", "nonsense", "1.5:a"])
    async def test_a_cursor_of_ones_own_making_is_refused(self, sut: StoreUnderTest, cursor: str) -> None:
        await sut.committed(rows=(row("a"),))
        with pytest.raises(Rejected) as refusal:
            await sut.store.find("acme", "run", after=cursor)
        assert refusal.value.code == "bad_cursor"

    async def test_counting_stops_at_the_bound(self, sut: StoreUnderTest) -> None:
        names = range(30)
        await sut.committed(rows=tuple(row(f"{n}", n, "all", "odd" if n % 2 else "even", f"n{n}") for n in names))
        count = sut.store.count
        assert await count("acme", "run") == 30
        assert await count("acme", "run", ["even"]) == 15
        assert await count("acme", "run", ["all", "even"]) == 15
        assert await count("acme", "run", ["n3", "even"]) == 0
        assert await count("acme", "run", ["n4", "even"]) == 1
        assert await count("acme", "run", ["none"]) == 0
        assert await count("acme", "run", at_most=10) == 10
        assert await count("acme", "run", ["even"], at_most=10) == 10
        assert await count("acme", "run", ["all", "even"], at_most=10) == 10
        assert await count("acme", "approval") == 0

    async def test_counting_follows_every_change(self, sut: StoreUnderTest) -> None:
        dice = random.Random(11)
        model: dict[str, tuple[str, ...]] = {}
        for _ in range(300):
            name, gone = f"{dice.randrange(20)}", dice.random() < 0.3
            terms = tuple(dice.sample(["x", "y", "z"], dice.randrange(4)))
            await sut.committed(rows=(row(name, dice.randrange(5), *terms, deleted=gone),))
            model.pop(name, None)
            if not gone:
                model[name] = terms
            asked = dice.sample(["x", "y", "z"], dice.randrange(3))
            expected = sum(1 for has in model.values() if set(asked) <= set(has))
            assert await sut.store.count("acme", "run", asked) == expected
