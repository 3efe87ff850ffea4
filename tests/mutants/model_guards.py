"""The guards of language models: what is sent to them, and what they may answer."""

from __future__ import annotations

from tests.mutants.guard import Guard

OPENAI = "handlers/llm_openai.py"
TURNS = "handlers/llm_turns.py"
IN_LLM = "tests/handlers/test_llm.py::"
IN_FAULTS = "tests/handlers/test_llm_faults.py::"
IN_SCRIPTED = "tests/handlers/test_llm_scripted.py::"
IN_CLASSIFY = "tests/handlers/test_classify.py::"

MODELS: tuple[Guard, ...] = (
    Guard(
        name="model-headers-sealed",
        why="The client library would send keys and headers of the worker's environment to whatever host is named.",
        file=OPENAI,
        snippet="            del request.headers[name]",
        sabotage="            pass",
        test=IN_LLM + "test_the_key_and_the_headers_of_the_config_are_sent_and_nothing_of_the_environment",
    ),
    Guard(
        name="model-transport-guarded",
        why="A document could reach private addresses by calling them models.",
        file=OPENAI,
        snippet="transport=fetcher.transport(),",
        sabotage="transport=None,",
        test=IN_LLM + "test_the_addresses_of_models_are_guarded_like_all_others",
    ),
    Guard(
        name="model-url-without-credentials",
        why="Credentials in a URL end up in messages and logs.",
        file=OPENAI,
        snippet="    read_url(settings.base_url)\n",
        sabotage="",
        test=IN_LLM + "test_the_addresses_of_models_are_guarded_like_all_others",
    ),
    Guard(
        name="model-redirects-not-followed",
        why="A key and a prompt would go to wherever an endpoint points.",
        file=OPENAI,
        snippet="follow_redirects=False,",
        sabotage="follow_redirects=True,",
        test=IN_LLM + "test_a_redirect_is_not_followed",
    ),
    Guard(
        name="model-client-does-not-retry",
        why="Requests would be repeated and paid for without anything in the log.",
        file=OPENAI,
        snippet="max_retries=0,",
        sabotage="max_retries=1,",
        test=IN_FAULTS + "test_a_failure_quotes_the_provider_and_keeps_its_cause",
    ),
    Guard(
        name="model-cut-stream-noticed",
        why="Half an answer would be taken for a whole one.",
        file=OPENAI,
        snippet="    if not assembly.ended:\n        raise _cut()",
        sabotage="    pass",
        test=IN_FAULTS + "test_a_stream_that_just_ends_was_cut",
    ),
    Guard(
        name="model-first-token-in-time",
        why="A model that does not begin to answer would be waited for as long as for a whole answer.",
        file=OPENAI,
        snippet="first_s = settings.first_token_seconds if question.stream else None",
        sabotage="first_s = None",
        test=IN_FAULTS + "test_a_slow_first_token_ends_the_wait",
    ),
    Guard(
        name="model-refusal-read-in-part",
        why="A refusal of megabytes would keep a worker busy with looking for words in it.",
        file="handlers/llm_errors.py",
        snippet='f"{code} {kind} {message}"[:_WORDS_MAX]',
        sabotage='f"{code} {kind} {message}"',
        test=IN_FAULTS + "test_a_long_refusal_is_not_read_to_its_end",
    ),
    Guard(
        name="model-repair-checked",
        why="An answer that suits its schema no better than the first one would be returned as a value.",
        file=TURNS,
        snippet="    if problems:\n",
        sabotage="    if False:\n",
        test=IN_LLM + "test_there_is_no_second_repair",
    ),
    Guard(
        name="model-key-not-in-documents",
        why="A key would be stored with every version of a workflow.",
        file="handlers/calling.py",
        snippet="if isinstance(secret, str) and secret and not is_template(secret):",
        sabotage="if False:",
        test=IN_LLM + "test_a_key_must_not_stand_in_a_document",
    ),
    Guard(
        name="script-patterns-bounded",
        why="A pattern of a document could keep a worker busy for minutes.",
        file="handlers/llm_scripted.py",
        snippet="        work_of(compiled, prompt)\n",
        sabotage="",
        test=IN_SCRIPTED + "test_a_pattern_that_is_too_much_for_a_prompt_is_not_tried",
    ),
    Guard(
        name="labels-are-closed",
        why="A text could talk a model into a label that nobody has foreseen.",
        file="handlers/classify.py",
        snippet='"label": {"enum": labels}',
        sabotage='"label": {"type": "string"}',
        test=IN_CLASSIFY + "test_another_label_is_repaired_or_fails",
    ),
)
