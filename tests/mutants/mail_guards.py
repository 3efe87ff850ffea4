"""The guards around mail: what a message may hold, whom it reaches, which server is told what."""

from __future__ import annotations

from tests.mutants.guard import Guard

EMAIL = "handlers/email.py"
MESSAGE = "handlers/email_message.py"
SMTP = "handlers/email_smtp.py"
CONNECTIONS_FILE = "security/connections.py"
TESTS = "tests/handlers/test_email.py::"

CONNECTIONS: tuple[Guard, ...] = (
    Guard(
        name="mail-host-checked",
        why="A host in an unusual spelling would be called, whatever programs make of it.",
        file=CONNECTIONS_FILE,
        snippet="        self.egress.check_host(host, port)\n",
        sabotage="",
        test=TESTS + "test_a_server_that_may_not_be_called[2130706433]",
    ),
    Guard(
        name="mail-address-checked",
        why="A document could speak to whatever listens inside the network of a worker.",
        file=CONNECTIONS_FILE,
        snippet="wire.Connector(self.egress,",
        sabotage='wire.Connector(Egress(allow=("0.0.0.0/0:*",)),',
        test=TESTS + "test_a_server_that_may_not_be_called[mail.example]",
    ),
)

MAIL: tuple[Guard, ...] = (
    Guard(
        name="mail-header-injection",
        why="A subject that comes from outside could add recipients and replace the message.",
        file=MESSAGE,
        snippet="    if _BREAK.search(text):",
        sabotage="    if False:",
        test=TESTS + "test_no_field_adds_a_header[changes0]",
    ),
    Guard(
        name="mail-encoded-header-injection",
        why="Whoever decodes a header on the way would find the end of a line in it, and a header below.",
        file=MESSAGE,
        snippet=' and "=?" not in text',
        sabotage="",
        test=TESTS + "test_an_encoded_line_end_stays_encoded[changes0]",
    ),
    Guard(
        name="mail-own-headers",
        why="A header of the config could say something else than the envelope.",
        file=MESSAGE,
        snippet='        if is_own(name):\n            raise Fail("header_invalid"',
        sabotage='        if False:\n            raise Fail("header_invalid"',
        test=TESTS + "test_no_field_adds_a_header[changes9]",
    ),
    Guard(
        name="mail-whole-address",
        why="An address could bring a command to the server along.",
        file=MESSAGE,
        snippet="_ADDRESS.fullmatch(",
        sabotage="_ADDRESS.match(",
        test=TESTS + "test_what_is_no_address[ada@example.com>]",
    ),
    Guard(
        name="mail-recipients-bounded",
        why="One node could write to everybody in a table.",
        file=MESSAGE,
        snippet="    if len(recipients) > RECIPIENTS_MAX:",
        sabotage="    if False:",
        test=TESTS + "test_few_recipients_at_a_time",
    ),
    Guard(
        name="mail-message-bounded",
        why="A server would be sent a message of any size before it can refuse it.",
        file=MESSAGE,
        snippet="    if len(data) > MESSAGE_BYTES_MAX:",
        sabotage="    if False:",
        test=TESTS + "test_a_message_that_is_too_large",
    ),
    Guard(
        name="mail-id-of-the-visit",
        why="A receiver could not tell a repetition from a new message.",
        file=MESSAGE,
        snippet="message_id_of(context.effect_key,",
        sabotage='message_id_of(f"{context.effect_key}{context.attempt}",',
        test=TESTS + "test_attempts_at_a_visit_have_one_message_id",
    ),
    Guard(
        name="mail-dots-doubled",
        why="A line with a dot would end the message, and what follows would be commands.",
        file=SMTP,
        snippet='(b"." if line.startswith(b".") else b"") + line',
        sabotage="line",
        test=TESTS + "test_no_text_ends_its_message[dot]",
    ),
    Guard(
        name="mail-line-ends-alike",
        why="Servers that disagree about the end of a line would disagree about the end of the message.",
        file=SMTP,
        snippet="_LINE_END.split(data",
        sabotage='re.split(rb"\\r\\n", data',
        test=TESTS + "test_only_one_line_is_a_dot_alone_however_lines_end[lf]",
    ),
    Guard(
        name="mail-to-all-or-nobody",
        why="A retry would reach those twice who got the message the first time.",
        file=SMTP,
        snippet="        if refused:\n",
        sabotage="        if len(refused) == len(letter.recipients):\n",
        test=TESTS + "test_refused_recipients_are_named_and_nobody_gets_it",
    ),
    Guard(
        name="mail-encryption-demanded",
        why="Somebody on the way could leave out the offer to encrypt, and read everything.",
        file=SMTP,
        snippet='        if "STARTTLS" not in self._offers:',
        sabotage="        if False:",
        test=TESTS + "test_who_does_not_encrypt_is_told_nothing",
    ),
    Guard(
        name="mail-nothing-before-encryption",
        why="Words that somebody on the way has put in would count as those of the encrypted server.",
        file=SMTP,
        snippet="        if self._ahead:\n",
        sabotage="        if False:\n",
        test=TESTS + "test_words_from_before_the_encryption_do_not_count",
    ),
    Guard(
        name="mail-password-masked",
        why="A server that repeats a password would have it written down in the error of the node.",
        file=SMTP,
        snippet="said = self._mask.text(",
        sabotage="said = str(",
        test=TESTS + "test_a_password_is_in_no_message",
    ),
    Guard(
        name="mail-cut-is-unknown",
        why="A node that is delivered at most once would send a message again that has arrived.",
        file=SMTP,
        snippet="raise Fail(error.code, message, retryable=True, unknown_outcome=True) from error",
        sabotage="raise Fail(error.code, message, retryable=True) from error",
        test=TESTS + "test_a_message_that_was_cut_off_is_sent_again_with_the_same_id",
    ),
    Guard(
        name="mail-taken-is-taken",
        why="A message that was taken would be sent again because the server is slow to say goodbye.",
        file=SMTP,
        snippet="            clock.reschedule(None)\n",
        sabotage="",
        test=TESTS + "test_after_the_message_was_taken_nothing_fails_any_more",
    ),
    Guard(
        name="mail-no-login-in-the-open",
        why="A password would be readable to everybody on the way.",
        file=EMAIL,
        snippet='    if username and tls == "none":\n        hint',
        sabotage="    if False:\n        hint",
        test=TESTS + "test_a_password_never_goes_over_an_open_line",
    ),
    Guard(
        name="mail-only-the-operators-server-is-open",
        why="A document could call a host that only the mail server of the operator was meant to be.",
        file=EMAIL,
        snippet="dialer if named is not None else dialer.opening(",
        sabotage="dialer.opening(",
        test=TESTS + "test_the_operators_own_server_may_be_called",
    ),
)
