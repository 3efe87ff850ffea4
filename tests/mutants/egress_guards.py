"""The guards over everything that leaves the process, and over what comes back."""

from __future__ import annotations

from tests.mutants.guard import Guard

ADDRESSES = "security/addresses.py"
EGRESS_FILE = "security/egress.py"
WIRE = "security/wire.py"
FETCHER = "security/fetcher.py"
BODIES = "security/bodies.py"
SIGNING = "security/signing.py"

IN_EGRESS = "tests/security/test_egress.py::"
IN_CANARY = "tests/security/test_canary.py::"
IN_FETCHER = "tests/security/test_fetcher.py::"
IN_KEPT = "tests/security/test_kept.py::"
IN_SIGNING = "tests/security/test_signing.py::"
IN_HTTP = "tests/handlers/test_http.py::"
IN_WEBHOOK = "tests/handlers/test_webhook.py::"

EGRESS: tuple[Guard, ...] = (
    Guard(
        name="egress-addresses-checked",
        why="A document could call whatever listens inside the network of a worker.",
        file=WIRE,
        snippet="self._egress.check_addresses(host, port, found)",
        sabotage="pass",
        test=IN_CANARY + "test_no_spelling_reaches_the_canary",
    ),
    Guard(
        name="egress-address-pinned",
        why="A name could have a good address while it is checked and a bad one when it is called.",
        file=WIRE,
        snippet="return await self._connected(found, port,",
        sabotage="return await self._connected(await self._resolved(host, port), port,",
        test=IN_CANARY + "test_a_name_that_changes_its_mind_is_resolved_once",
    ),
    Guard(
        name="egress-every-address",
        why="A name with one good and one bad address would be called at the bad one.",
        file=EGRESS_FILE,
        snippet="for address in found:",
        sabotage="for address in found[:1]:",
        test=IN_EGRESS + "test_one_closed_address_among_many_closes_the_name",
    ),
    Guard(
        name="egress-ports",
        why="A document could talk to the mail, database and shell ports of the whole internet.",
        file=EGRESS_FILE,
        snippet="if port not in PORTS:",
        sabotage="if False:",
        test=IN_EGRESS + "test_only_two_ports_are_open[8080-egress_refused]",
    ),
    Guard(
        name="egress-no-name-opens-metadata",
        why="The owner of a name on the allow-list could point it to where a cloud hands out credentials.",
        file=EGRESS_FILE,
        snippet="return self.name == name and not addresses.is_metadata(address)",
        sabotage="return self.name == name",
        test=IN_EGRESS
        + "test_an_entry_opens_what_it_says_and_nothing_else[db.internal:*-db.internal-80-169.254.169.254-False]",
    ),
    Guard(
        name="egress-local-names",
        why="A resolver that answers wrongly would lead to the metadata of a cloud under its own name.",
        file=EGRESS_FILE,
        snippet="if addresses.is_local_name(name) and",
        sabotage="if False and",
        test=IN_EGRESS + "test_names_of_this_machine_and_its_cloud_are_closed_wherever_they_lead[metadata]",
    ),
    Guard(
        name="egress-schemes",
        why="A document could read files of the worker, or speak other protocols.",
        file=EGRESS_FILE,
        snippet="if scheme not in SCHEMES:\n            message",
        sabotage="if False:\n            message",
        test=IN_CANARY + "test_no_spelling_reaches_the_canary",
    ),
    Guard(
        name="egress-usual-spelling",
        why="An address in disguise would be left to whatever the resolver makes of it.",
        file=ADDRESSES,
        snippet='return "the host is an address in an unusual spelling"',
        sabotage='return ""',
        test=IN_EGRESS + "test_an_unusual_one_is[a.0x1]",
    ),
    Guard(
        name="egress-only-global-unicast",
        why="An address of a range that nobody has thought of would be open.",
        file=ADDRESSES,
        snippet='return "" if address.version == 4 or address in _OPEN_V6 else "reserved"',
        sabotage='return ""',
        test=IN_EGRESS + "test_everything_else_is_closed[4000::1-reserved]",
    ),
    Guard(
        name="fetcher-credentials-bound",
        why="A redirect would carry tokens to a host that they were not meant for.",
        file=FETCHER,
        snippet="if not same:",
        sabotage="if False:",
        test=IN_FETCHER + "test_credentials_stay_with_their_origin",
    ),
    Guard(
        name="fetcher-body-bound",
        why="A redirect would carry what is posted to a host that it was not meant for.",
        file=FETCHER,
        snippet="if self.body and not same:",
        sabotage="if False:",
        test=IN_FETCHER + "test_a_body_stays_with_its_origin[307]",
    ),
    Guard(
        name="fetcher-redirects-bounded",
        why="Two servers could send a worker back and forth.",
        file=FETCHER,
        snippet="for _ in range(redirects_max + 1):",
        sabotage="for _ in range(99):",
        test=IN_FETCHER + "test_three_redirects_are_followed[4-too_many_redirects]",
    ),
    Guard(
        name="fetcher-one-reading",
        why="A URL that two programs read differently would be checked as one host and called as another.",
        file=FETCHER,
        snippet="if _NO_URL.search(text):",
        sabotage="if False:",
        test=IN_FETCHER + "test_a_url_that_could_be_read_in_two_ways_is_not_called[a b]",
    ),
    Guard(
        name="fetcher-no-credentials-in-urls",
        why="Passwords would stand in documents, logs and the list of calls.",
        file=FETCHER,
        snippet="if url.userinfo:",
        sabotage="if False:",
        test=IN_FETCHER + "test_a_url_with_credentials_is_not_called",
    ),
    Guard(
        name="fetcher-own-headers",
        why="A document could name another host than the one that was checked, or smuggle a second request.",
        file=FETCHER,
        snippet="if small in OWN:",
        sabotage="if False:",
        test=IN_FETCHER + "test_headers_that_cannot_be_set[headers-headers5]",
    ),
    Guard(
        name="fetcher-call-bytes",
        why="A node that asks for little would get as much as the deployment allows.",
        file=FETCHER,
        snippet="if size > self._bytes_max:",
        sabotage="if False:",
        test=IN_FETCHER + "test_an_answer_that_is_too_long_is_cut_off[plain]",
    ),
    Guard(
        name="body-bytes-bounded",
        why="An endless answer would fill the memory of a worker.",
        file=BODIES,
        snippet="if produced > limits.bytes_max:",
        sabotage="if False:",
        test=IN_FETCHER + "test_a_client_of_another_library_keeps_the_rules",
    ),
    Guard(
        name="body-ratio-bounded",
        why="A few kilobytes would keep a worker busy with unpacking.",
        file=BODIES,
        snippet="if produced > max(_RATIO_FROM_BYTES, received * limits.ratio_max):",
        sabotage="if False:",
        test=IN_FETCHER + "test_a_bomb_is_not_unpacked[9]",
    ),
    Guard(
        name="body-head-bounded",
        why="A server could send headers instead of a body, which nobody counts.",
        file=WIRE,
        snippet="> limits.header_bytes_max:",
        sabotage="> 10**9:",
        test=IN_FETCHER + "test_long_and_endless_heads_are_refused",
    ),
    Guard(
        name="stream-idle-says-nothing",
        why="What a server sends unasked would be taken for the answer to somebody else's call.",
        file="security/streams.py",
        snippet="return self._line.ended or bool(self._line.data)",
        sabotage="return self._line.ended",
        test=IN_FETCHER + "test_a_connection_that_says_too_much_is_not_used_again",
    ),
    Guard(
        name="pool-no-surplus",
        why="What a server sends behind an answer would be taken for the answer to somebody else's call.",
        file="security/pool.py",
        snippet="return self.is_available() and not self.unread and",
        sabotage="return self.is_available() and",
        test=IN_KEPT + "test_what_comes_after_an_answer_is_nobodys_answer[head]",
    ),
    Guard(
        name="stale-call-repeated",
        why="Every server that closes idle connections would make calls fail for no reason.",
        file=WIRE,
        snippet="if not _was_stale(connection, error) or",
        sabotage="if True or",
        test=IN_KEPT + "test_what_may_be_repeated_survives_a_connection_that_was_closed[GET-None]",
    ),
    Guard(
        name="stale-effect-not-repeated",
        why="A charge that arrived before its connection broke would be made twice.",
        file=WIRE,
        snippet="or not (repeatable or connection.unsent):",
        sabotage="or False:",
        test=IN_KEPT + "test_what_may_not_be_repeated_fails_with_a_connection_that_was_closed[POST-None]",
    ),
    Guard(
        name="answered-call-not-repeated",
        why="A call that was being answered when its connection broke would be made again.",
        file=WIRE,
        snippet="return died and connection.used and connection.unanswered",
        sabotage="return died and connection.used",
        test=IN_KEPT + "test_a_call_is_repeated_once_and_only_if_nothing_came_back[half a line]",
    ),
    Guard(
        name="body-that-is-gone-not-repeated",
        why="A request whose body was read once would be sent again without it.",
        file=WIRE,
        snippet="isinstance(request.stream, httpx2.ByteStream) and _may_be_repeated(request)",
        sabotage="_may_be_repeated(request)",
        test=IN_KEPT + "test_a_body_that_is_gone_is_not_sent_again",
    ),
    Guard(
        name="pool-bounded",
        why="Connections to every host that was ever called would stay open.",
        file="security/pool.py",
        snippet="elif self._size > KEPT_MAX or",
        sabotage="elif",
        test=IN_FETCHER + "test_no_more_connections_are_kept_than_allowed",
    ),
    Guard(
        name="signature-window",
        why="A message that was overheard once could be sent again for ever.",
        file=SIGNING,
        snippet="> WINDOW_MS:",
        sabotage="> 10**15:",
        test=IN_SIGNING + "test_a_message_is_good_for_five_minutes[300001-False]",
    ),
    Guard(
        name="signature-compared",
        why="Anybody could send messages in the name of somebody else.",
        file=SIGNING,
        snippet="if not any(fits):",
        sabotage="if False:",
        test=IN_SIGNING + "test_a_version_that_is_not_known_is_not_accepted",
    ),
)

CALLS: tuple[Guard, ...] = (
    Guard(
        name="page-credentials-bound",
        why="A server could have the next page, and with it the token, fetched from another host.",
        file="handlers/paging.py",
        snippet="if same_origin(call.url, url):",
        sabotage="if True:",
        test=IN_HTTP + "test_a_page_elsewhere_gets_no_credentials",
    ),
    Guard(
        name="pages-bounded-together",
        why="A thousand pages would fill the memory of a worker where one may not.",
        file="handlers/http.py",
        snippet="if size > bytes_max:",
        sabotage="if False:",
        test=IN_HTTP + "test_all_pages_together_keep_within_the_limit",
    ),
    Guard(
        name="at-most-once-not-repeated",
        why="A node that asks for at most one call would have made two.",
        file="handlers/requests.py",
        snippet="repeatable=False if context.at_most_once else keyed or None,",
        sabotage="repeatable=keyed or None,",
        test=IN_HTTP + "test_a_call_that_may_have_arrived_is_not_made_again_where_that_is_asked_for",
    ),
    Guard(
        name="page-leads-back",
        why="A server whose cursor stands still would be asked for the same page a hundred times.",
        file="handlers/http.py",
        snippet="if following is not None and following.url in seen:",
        sabotage="if False:",
        test=IN_HTTP + "test_a_page_that_leads_back_ends_it[cursor]",
    ),
    Guard(
        name="size-not-promised",
        why="A node would be promised more of an answer than it can ever get.",
        file="handlers/http.py",
        snippet='"maximum": limits.bytes_max,',
        sabotage='"maximum": 10**12,',
        test=IN_HTTP + "test_nobody_is_promised_more_than_the_deployment_allows",
    ),
    Guard(
        name="webhook-not-redirected",
        why="A signed message would be told to a host that it was not written for.",
        file="handlers/webhook.py",
        snippet="redirects_max=0,",
        sabotage="redirects_max=3,",
        test=IN_WEBHOOK + "test_a_redirect_is_not_followed",
    ),
)
