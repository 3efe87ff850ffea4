"""Which import paths, workflows and origins a grant covers, as a table; a grant that can match nothing is refused."""

from __future__ import annotations

import pytest

from tidemill.errors import Rejected
from tidemill.security.grants import ANY, ImportGrants, SecretGrant, is_import_path, read_secret_grants


@pytest.mark.parametrize(
    ("pattern", "granted", "refused"),
    [
        ("shop", ["shop:pay"], ["shop.tasks:pay", "shopping:pay", "shop2:pay", "ashop:pay"]),
        ("shop.tasks", ["shop.tasks:pay"], ["shop:pay", "shop.tasks.more:pay", "shop.tasksx:pay", "shop.billing:pay"]),
        ("shop.tasks:pay", ["shop.tasks:pay"], ["shop.tasks:repay", "shop.tasks:pay2", "shop:pay", "tasks:pay"]),
        ("shop.tasks:*", ["shop.tasks:pay"], ["shop.tasks.more:pay", "shop:pay"]),
        ("shop.*", ["shop:pay", "shop.tasks:pay", "shop.a.b:pay"], ["shopping:pay", "shop2.tasks:pay"]),
        ("shop.*:pay", ["shop:pay", "shop.a.b:pay"], ["shop.a:repay"]),
        ("*", ["os:system", "shop.a.b:pay"], []),
    ],
)
def test_what_a_pattern_of_imports_covers(pattern: str, granted: list[str], refused: list[str]) -> None:
    grants = ImportGrants.read([pattern])
    assert [path for path in granted if not grants.allow(path)] == []
    assert [path for path in refused if grants.allow(path)] == []


def test_patterns_add_up_and_none_grant_nothing() -> None:
    grants = ImportGrants.read(["a", "b:f", "a"])
    assert grants.patterns == ("a", "b:f")
    assert grants.allow("a:x") and grants.allow("b:f") and not grants.allow("b:g")
    assert not ImportGrants().allow("a:x")
    assert ANY.allow("subprocess:getoutput")


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        " ",
        "a b",
        "a:",
        ":f",
        "a.",
        ".a",
        "a..b",
        "*.a",
        "a*",
        "a.*.b",
        "a:f.g",
        "a:f:g",
        "a/b",
        "1a",
        "a-b",
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(Rejected) as refused:
        ImportGrants.read([pattern])
    assert refused.value.code == "import_pattern_invalid"
    assert "shop.tasks" in refused.value.problems[0].hint


@pytest.mark.parametrize("name", ["a:f", "a.b:f", "über.maß:f_1"])
def test_an_import_path_names_one_function_of_a_module(name: str) -> None:
    assert is_import_path(name)


@pytest.mark.parametrize("name", ["f", "a.b", "a:f.g", "a:", ":f", "a:f:g", "a:f()", "a b:f", "../a:f", "a:*", "a.*:f"])
def test_other_names_are_no_import_paths(name: str) -> None:
    assert not is_import_path(name)


@pytest.mark.parametrize(
    ("origin", "reached", "missed"),
    [
        (
            "https://api.example.com",
            [
                "https://api.example.com",
                "https://api.example.com:443",
                "https://API.example.com",
                "https://api.example.com.",
            ],
            [
                *("http://api.example.com", "https://api.example.com:8443", "https://example.com"),
                *("https://api.example.com.evil.example", "https://xapi.example.com", "https://a.api.example.com"),
                *("smtp://api.example.com:443", "database:api", "http://api.example.com:443"),
            ],
        ),
        ("https://api.example.com:8443", ["https://api.example.com:8443"], ["https://api.example.com"]),
        (
            "https://*.example.com",
            ["https://api.example.com", "https://a.b.example.com:443"],
            [
                "https://example.com",
                "https://badexample.com",
                "https://api.example.com:444",
                "https://example.com.evil",
            ],
        ),
        (
            "http://127.0.0.1:*",
            ["http://127.0.0.1", "http://127.0.0.1:8080", "http://127.0.0.1:1"],
            ["https://127.0.0.1:8080", "http://127.0.0.2:8080", "http://localhost:8080"],
        ),
        ("http://[::1]:*", ["http://[::1]", "http://[::1]:8080"], ["http://[::2]:8080"]),
        ("https://*.example.com:*", ["https://a.example.com:8443"], ["https://example.com:8443"]),
        ("smtp://mail.example.com", ["smtp://mail.example.com:587"], ["smtps://mail.example.com:587"]),
        ("smtps://mail.example.com", ["smtps://mail.example.com:465"], ["smtps://mail.example.com:587"]),
        ("shell", ["shell"], ["https://shell", "database:shell", "shell:x"]),
        ("database:crm", ["database:crm"], ["database:crm2", "database:cr", "https://crm", "http://database:80"]),
    ],
)
def test_what_an_origin_covers(origin: str, reached: list[str], missed: list[str]) -> None:
    grant = SecretGrant(origins=(origin,), workflows=("*",))
    assert [each for each in reached if not grant.reaches(each)] == []
    assert [each for each in missed if grant.reaches(each)] == []


def test_a_secret_without_origins_is_sent_nowhere() -> None:
    grant = SecretGrant(origins=(), workflows=("*",))
    assert not grant.reaches("https://a.example") and not grant.reaches("database:crm")


@pytest.mark.parametrize(
    "origin",
    [
        *("", "*", "https://", "https://*", "https://*:443", "a.example", "ftp://a.example", "https://a.example/path"),
        *("https://a.*.example", "https://a.example:x", "https://a.example:99999", "https://u:p@a.example"),
        *("https://a.example?x", "https://a.example#x", "https://a b", "database:", "database:a b", "database:*"),
        *("https://[::1", "http://[::1]]", "HTTPS:a.example", "Shell", "shell:x", "https://*example.com"),
    ],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin: write https://host"):
        SecretGrant(origins=(origin,), workflows=("*",))


@pytest.mark.parametrize(
    ("pattern", "served", "others"),
    [
        ("billing", ["billing"], ["billing2", "Billing", "my-billing", ""]),
        ("invoice-*", ["invoice-", "invoice-eu"], ["invoice", "an-invoice-eu"]),
        ("*", ["billing", ""], []),
    ],
)
def test_which_workflows_a_grant_serves(pattern: str, served: list[str], others: list[str]) -> None:
    grant = SecretGrant(origins=(), workflows=("nobody", pattern))
    assert [each for each in served if not grant.serves(each)] == []
    assert [each for each in others if grant.serves(each)] == []


def test_a_variable_holds_several_grants() -> None:
    found = read_secret_grants(
        " CRM = https://a.example, http://b.example:*@billing,invoice-* ;; MAIL=smtp://m:587@*; "
    )
    assert found == {
        "CRM": SecretGrant(origins=("https://a.example", "http://b.example:*"), workflows=("billing", "invoice-*")),
        "MAIL": SecretGrant(origins=("smtp://m:587",), workflows=("*",)),
    }
    assert read_secret_grants("") == {}


@pytest.mark.parametrize(
    "text", ["CRM", "CRM=https://a.example", "=https://a@b", "CRM=ftp://a@b", "CRM=https://a@", "@"]
)
def test_a_variable_that_grants_nothing_is_refused(text: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_secret_grants(text)
    assert refused.value.code == "secret_grant_invalid" and "CRM=https://" in refused.value.problems[0].hint


def test_a_grant_without_a_workflow_says_so() -> None:
    with pytest.raises(Rejected) as refused:
        read_secret_grants("CRM=https://a.example, https://b.example")
    (problem,) = refused.value.problems
    assert problem.message.endswith("is not a grant: the workflow is missing")
    assert problem.hint == "write CRM=https://a.example, https://b.example@WORKFLOW"
