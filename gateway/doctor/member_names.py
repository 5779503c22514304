"""What members of requests and answers are usually called, in lower case, by what they mean.

A name alone proves nothing: what is concluded from one is said, and for answers their behaviour counts, too.
"""

import re


def snake(name: str) -> str:
    """*name* in lower case with underscores, however a server's language writes it.

    >>> snake("statusCode")
    'status_code'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()


def is_id(name: str) -> bool:
    """Whether *name* is that of a number which only names something, such as `user_id`."""
    return snake(name) in ("id", "ids", "uid") or snake(name).endswith(("_id", "_ids"))


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Of requests

CLIENTS = _names("""
    query question prompt text texts input inputs sentence sentences source_sentence context document documents passage
    passages content message utterance premise hypothesis title body instruction q keyword keywords search_term
""")
"""Members whose text is the client's."""

CLIENTS_WORDS = _names("query question prompt text sentence premise hypothesis passage document utterance")
"""Words in the names of such members, as in `text_1` and `user_prompt`."""

CHOICES = _names("candidate_labels labels candidates choices classes tags")
"""Lists of texts that are the client's, even beside options."""

OPTIONS = _names("""
    model model_id model_name version stream temperature max_tokens max_length max_new_tokens min_length top_k top_p n k
    seed stop truncate truncation truncation_direction normalize normalized raw_scores return_text return_documents
    return_full_text return_all_scores threshold encoding_format dimensions user echo logprobs best_of presence_penalty
    frequency_penalty repetition_penalty language task task_type input_type signature_name explain verbose debug
    multi_label padding pooling use_cache wait_for_model do_sample num_beams num_return_sequences timeout keep_alive
    format api_key request_id session_id timestamp jsonrpc method protocol action op api_version user user_id client_id
""")
"""Members that usually say how a model works, and not on what."""

OPTION_LISTS = _names("stop stop_sequences stop_words outputfilter output_filter response_columns")
"""Lists that are options: all other lists may be data, whatever they are called."""

OPTION_GROUPS = _names("parameters params options config settings generation_config kwargs")
"""Objects of such members."""

COLUMN_NAMES = _names("columns names fields features feature_names header headers cols column_names")
"""The list of the names of a table's columns."""

SHAPES = _names("shape dims dim dimensions")
"""The shape of a tensor whose values are one list."""

RESERVED = _names("id parameters model version row")
"""Names that mean something of the request's own in a body."""

# Of answers

STATES = _names("""
    status success ok error code errcode error_code state failed is_error err errno err_no err_code err_msg ret retcode
    ret_code rc return_code result_code status_code statuscode is_success is_ok has_error has_errors error_message
    error_msg
""")
"""Members that say whether a request succeeded."""

SUCCEEDED = _names("ok success is_ok is_success succeeded")
"""Those that are false where a request failed."""

FAILED = ("failed", "failure", "error", "FAILED", "FAILURE", "ERROR")
"""What a status says then."""

ERROR_MEMBERS = _names("error errors error_message error_msg exception fault detail details message msg reason")
"""Members that only answers to requests that failed have."""

ROW_NUMBERS = _names("index idx i row row_number row_id position number no rank order corpus_id document_index")
"""The number of a row."""

TIMES = _names("""
    took time id created created_at timestamp request_id uuid date latency duration elapsed total_duration load_duration
    prompt_eval_duration eval_duration inference_time processing_time system_fingerprint trace_id
""")
"""What belongs to the request alone: its time, its id."""

TIME_ENDS = ("_ms", "_us", "_ns", "_seconds", "_time", "_duration", "_latency")

COUNTS = _names("usage timings statistics stats billing meta")
"""Objects that count what a request took."""

MEASURES = _names("statistics stats meta")
"""Those of `COUNTS` whose numbers with a point may as well be a result."""

CLASS_MEMBERS = _names("""
    object model model_id model_name model_version model_spec version type name kind dtype datatype shape size dim dims
    dimensions message finish_reason classes columns fields feature_names names count total units api_version
""")
"""What says something about the model or the answer's form, if it is the same in all answers."""
