"""What strangers send is read in time and memory in proportion to its size: every pattern, cache, split and collection of ours.

Whoever adds one adds a line to a table here, after thinking of who fills it; the failure says which.
"""

import ast
import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.stories import foreign_bytes
from tests.stories.foreign_bytes import Found, pattern_of

HERE = "tests/stories/test_foreign_bytes.py"


@dataclass(frozen=True)
class Read:
    """`begins`: what leads into the pattern; `longest`: characters that reach it, where something before it counts them."""

    begins: tuple[str, ...] = ()
    longest: int = 10_000


PATTERNS: Mapping[str, Read] = {
    "discovery/check.py _HEADERS": Read(),
    "discovery/check.py _HEADERS 2": Read(),
    "discovery/check.py _HEADERS 3": Read(),
    "discovery/check.py _REVISION": Read(('"a.', 'W/"a.a.')),
    "discovery/metadata/document.py _ENTITY_TAG": Read(('W/"',)),
    "discovery/filesystem/file_events.py is_network_filesystem": Read(),
    "discovery/instance.py _HOST_NAME": Read(),
    "discovery/instance.py _LABEL": Read(),
    "discovery/instance.py _SUBDOMAIN": Read(longest=200),
    "discovery/kubernetes/pods/selection.py _POOL_NAME": Read(longest=253),
    "discovery/kubernetes/pods/selection.py _MATCH_LABEL": Read(("a=", "a/b=")),
    "discovery/kubernetes/pods/selection.py _REQUIREMENT": Read(
        ("a", "a in (", "a in (b,", "!", "a/", "a ="), longest=4096
    ),
    "discovery/kubernetes/slices/source.py _SERVICE_NAME": Read(),
    "discovery/etcd/connection.py _BEFORE_REASON": Read(
        (
            "failed to connect to all addresses; last error: ",
            "failed to connect to all addresses; last error: UNKNOWN: ",
            "failed to connect to all addresses; last error: UNKNOWN: a ",
        )
    ),
    "registry/filesystem/cleanup.py _TEMPORARY": Read((".a.",), longest=255),
    "dispatcher/broker/urls.py _SCHEME": Read(),
    "dispatcher/broker/contract/validation.py _CONTROL": Read(),
    "dispatcher/broker/contract/validation.py _NAME": Read(),
    "dispatcher/broker/capacity/budget.py _DECIMAL": Read(("1.", "+")),
    "dispatcher/config/config_file.py _VARIABLE": Read(("${",)),
    "dispatcher/cli/flags.py _AUTHORITY": Read(("://",)),
    "dispatcher/delivery/route.py _NAME": Read(),
    "dispatcher/delivery/verdict.py _ENVOY_DISCONNECTED": Read(
        ("upstream connect error or disconnect/reset before headers. ",)
    ),
    "dispatcher/delivery/verdict.py _ENVOY_UNSENT": Read(("no healthy", "upstream connect error or ")),
    "epp/config/embedded_configs.py _SEPARATOR": Read(("---", "--", "\n---")),
    "epp/config/embedded_configs.py _in_text": Read(("\n", "\n ")),
    "dispatcher/delivery/route.py _PATH": Read(("/", "/a?")),
    "dispatcher/delivery/route.py _PLAIN": Read(),
    "dispatcher/delivery/route.py _VALUE": Read(),
    "epp/scraping/engines.py _PAIR": Read(("a=", 'a="', "a ")),
    "epp/scraping/engines.py _PREFIX": Read(("a{", "a ")),
    "epp/config/flag_values.py _number": Read(),
    "epp/decisions/query.py _NUMBER": Read(),
    "epp/questions/request_file.py _REQUEST_LINE": Read(("POST ", "POST / "), longest=8192),
    "epp/questions/request_file.py _split": Read(("\n",)),
    "epp/flow_control/orderings.py _MILLISECONDS": Read(("+",), longest=63),
    "adsum/http1/response.py _CHUNK_SIZE": Read(("1", "1;")),
    "adsum/http1/response.py _FIELD_LINES": Read(("\r\n", "\r\na", "\r\na:")),
    "adsum/http1/response.py _FIELD": Read(("\r\nconnection:",)),
    "adsum/http1/response.py _LENGTH": Read(),
    "adsum/http1/response.py _STATUS": Read(("HTTP/1.1 200 ",)),
    "adsum/addresses.py _LABEL": Read(longest=253),
    "adsum/addresses.py split_authority": Read(),
    "adsum/config/yaml_document.py _PART": Read(("1.",)),
    "adsum/config/yaml_document.py module": Read(("+", "1.")),
    "adsum/config/problems.py _QUOTED": Read(),
    "adsum/units.py _GO_PART": Read(("1.", "."), longest=128),
    "adsum/units.py _PART": Read(("1.",), longest=128),
    "adsum/errors.py _ERRNO": Read(("[Errno ",)),
    "adsum/prometheus_page.py _ESCAPE": Read(),
    "adsum/prometheus_page.py _LABEL": Read(("a=", 'a="')),
    "adsum/prometheus_page.py _SAMPLE": Read(("{", '{a="', " 1", " 1 1")),
    "adsum/tracing/trace_context.py NOT_RECORDED": Read(("00-", "00-" + "a" * 32)),
    "adsum/tracing/trace_context.py _VERSION_00": Read(("00-", "00-" + "a" * 32), longest=55),
    "adsum/units.py _QUANTITY": Read(("1.", "+")),
    "adsum/units.py _SIZE": Read(),
    "epp/telemetry/labels.py _UNSAFE": Read(),
    "epp/scraping/metrics_page.py _COUNT": Read(),
    "epp/scraping/metrics_page.py _LIMIT": Read(),
    "epp/scraping/metrics_page.py _WORD": Read(),
    "epp/request/subset.py _IPV4": Read(("1.2.3.4:",)),
    "epp/ext_proc/protocol.py _STATUS": Read(),
    "epp/ext_proc/protocol.py _ATTEMPTS": Read(),
    "epp/config/document.py _PROBE_PATH": Read(("/",)),
    "epp/request/subset.py _port": Read(),
    "epp/envoy/flags.py _header_name": Read(),
    "epp/ext_proc/model_fields.py _BRACKETS": Read(),
    "epp/ext_proc/model_fields.py _MEMBERS": Read(('"', '"a":"', '"a":1,', '"a" ')),
    "epp/ext_proc/model_fields.py _STRUCTURE": Read(),
    "epp/ext_proc/model_fields.py _TEXT": Read(("\\", "a\\")),
    "epp/ext_proc/model_restorer.py _CHUNK": Read(('{"', '{"a":"', '{"a":1,', '{"a" ')),
    "epp/ext_proc/model_restorer.py _LINE_END": Read(),
    "epp/request/form_model.py _BOUNDARY": Read(('boundary="', "boundary=")),
    "epp/request/form_model.py _MODEL_FIELD": Read(
        ("content-disposition:", "content-disposition: ;", 'content-disposition:;name="model"')
    ),
    "epp/wire/http2/header_blocks.py parse_timeout": Read(),
    "epp/response/object_scanner.py BELOW": Read(('{"', "[{", '"\\', "[[{", '{"a":[')),
    "epp/response/object_scanner.py _STRING_REST": Read(("\\",)),
    "epp/response/object_scanner.py _TOKEN": Read(),
    "epp/response/usage_reader.py _USAGE": Read(('"usage"', '"usage":', '"usage" ')),
    "registry/document.py _ENTITY_TAG": Read(('"',)),
    "registry/document.py _LIST_ELEMENT": Read(('"',)),
    "registry/document.py _SECONDS": Read(("1.",)),
    "registry/kubernetes/pod.py _LABEL_LINE": Read(('a="',)),
}
"""Each is read with what it is made to choke on, after each of `begins` and after nothing."""

CACHES: Mapping[str, str] = {
    "epp/request/subset.py _parse": "4 lists of at most MAX_DESTINATIONS destinations, each in bounded headers or metadata",
    "dispatcher/delivery/route.py _cached_decoded_path": "256 paths of at most _MAX_CACHED characters",
    "epp/ext_proc/answers.py _message_head": "numbers",
    "epp/ext_proc/answers.py _trace_parts": "the kinds of routing answers",
    "epp/ext_proc/answers.py _without_state": "the kinds of routing answers",
    "epp/ext_proc/answers.py cached_route": "destinations of our endpoints",
    "epp/ext_proc/answers.py unchanged": "the kinds of messages",
    "epp/ext_proc/answers.py without_length": "the kinds of headers",
    "epp/request/inference_api.py _known_suffix": "256 ends of paths of 64 characters",
    "epp/request/subset.py _canonical_cached": "8,192 addresses of at most _MAX_ADDRESS characters",
    "epp/wire/server/body_message.py _before": "numbers",
    "adsum/entry_points.py _declared_plugins": "8 groups, of what is installed on this machine",
}
"""What bounds each, in entries and in the bytes of one."""

SPLITS: Mapping[str, str] = {
    "adsum/web/access.py _read_token": "_LONGEST_TOKEN bytes of the operator's file",
    "adsum/web/live_feed.py LiveFeed": "one document of ours",
    "adsum/addresses.py check_host": "the operator's URL or endpoints file",
    "adsum/http1/response.py HeaderFields": "_MAX_HEAD bytes",
    "adsum/http1/response.py ResponseReader": "_MAX_HEAD bytes",
    "adsum/http1/response.py ResponseReader 2": "_MAX_HEAD bytes",
    "dispatcher/process.py serve_until_signalled": "our own ready line",
    "epp/process.py serve": "our own ready line",
    "adsum/entry_points.py in_one_line": "a message of an installed package",
    "discovery/etcd/keys.py component_of": "four parts",
    "discovery/etcd/url.py _members": "_MAX_MEMBERS",
    "discovery/etcd/url.py _prefix": "_MAX_PREFIX",
    "discovery/filesystem/file_events.py is_network_filesystem": "the kernel's",
    "discovery/filesystem/file_events.py is_network_filesystem 2": "the kernel's",
    "discovery/filesystem/file_events.py is_network_filesystem 3": "the kernel's",
    "discovery/kubernetes/api/credentials.py _exists": "the operator's $KUBECONFIG",
    "discovery/kubernetes/opening.py _pods": "the operator's URL",
    "discovery/kubernetes/pods/pod_set.py _active_ports": "an annotation: the API server bounds them to 256 KiB",
    "discovery/kubernetes/api/refusal.py rule_for": "a path of ours",
    "discovery/static/endpoints_file.py parse_hosts": "the operator's URL",
    "adsum/config/yaml_document.py parse_yaml": "the operator's file",
    "adsum/config/problems.py yaml_problem": "a message of the YAML reader",
    "discovery/static/source.py _one_line": "a message of the YAML reader",
    "registry/kubernetes/pod.py parse_labels": "the labels of our own Pod, as the kubelet writes them",
    "epp/config/tls_rules.py suite_names": "the operator's flag",
    "epp/config/worker_source.py _target_ports": "the operator's flag",
    "epp/endpoints/datastore.py Datastore": "two splits at most",
    "epp/envoy/flags.py parse": "the operator's flag",
    "epp/request/inference_api.py _known_suffix": "_MAX_SUFFIX characters",
    "epp/scheduling/affinity/sessions.py CookieSessionId": "_MAX_COOKIES characters",
    "epp/request/subset.py _parse": "its separators are counted before: MAX_DESTINATIONS",
    "epp/scraping/engines.py Series": "the operator's configuration",
    "epp/scraping/engines.py _alternatives": "the operator's configuration",
    "epp/scraping/metrics_page.py _names": "_MAX_LINE_BYTES bytes",
    "epp/questions/picker_client.py PickerClient": "500 bytes",
    "epp/questions/request_file.py _split": "MAX_BYTES of the user's own file",
    "adsum/tracing/exporting.py _parts_of_headers": "the operator's environment",
    "epp/telemetry/metrics_auth.py MetricsAuth": "the first line of our own error",
    "epp/telemetry/profile.py _stack": "the path of a source file",
    "epp/telemetry/exposition.py negotiate_format": "a header field as aiohttp bounds it: 8,190 bytes",
    "epp/telemetry/exposition.py negotiate_format 2": "a part of the same",
    "dispatcher/broker/redis/ledger.py QUOTA_SCRIPT": "a file of this package",
    "dispatcher/broker/redis/records.py dead_letter": "three splits at most",
    "dispatcher/delivery/route.py _decoded_path": "the path of a message, whose size its queue bounds",
}
"""What bounds the text that each takes apart, or the parts."""

COLLECTIONS: Mapping[str, str] = {
    "registry/filesystem/locks.py _held": "weak: the locks that this process holds",
    "discovery/memory.py _named_stores": "weak: the stores that somebody uses",
    "epp/ext_proc/protocol.py _header_cache": "_MAX_CACHED headers of at most _MAX_CACHED_BYTES bytes",
}
"""What bounds each."""


@pytest.mark.parametrize(
    ("table", "look", "listed", "line"),
    [
        ("PATTERNS", foreign_bytes.patterns, PATTERNS, "Read((what leads into it, ...)),"),
        ("CACHES", foreign_bytes.caches, CACHES, '"what bounds its entries, and the bytes of one",'),
        ("SPLITS", foreign_bytes.splits, SPLITS, '"what bounds its text or its parts",'),
        ("COLLECTIONS", foreign_bytes.collections, COLLECTIONS, '"what bounds it",'),
    ],
    ids=["patterns", "caches", "splits", "collections"],
)
def test_every_one_is_known(
    table: str, look: Callable[[], dict[str, Found]], listed: Mapping[str, object], line: str
) -> None:
    found = look()
    new, old = sorted(found.keys() - listed.keys()), sorted(listed.keys() - found.keys())
    to_do = [f'add to {table} in {HERE} the line\n    "{name}": {line}' for name in new]
    to_do += [f'take out of {table} in {HERE}, since it is no more, "{name}"' for name in old]
    assert not to_do, "\n" + "\n".join(to_do)


def test_every_cache_says_how_many_it_keeps() -> None:
    for name, found in foreign_bytes.caches().items():
        node = ast_text(found)
        assert "None" not in node, f"{name} keeps everything: {node}"
        assert not node.endswith(".cache"), f"{name} keeps everything: {node}"


def ast_text(found: Found) -> str:
    return ast.unparse(found.node)


UNITS = (
    *(
        "a",
        "1",
        "0",
        " ",
        "\t",
        '"',
        "'",
        "\\",
        "=",
        ",",
        ";",
        ":",
        "-",
        ".",
        "/",
        "{",
        "}",
        "$",
        "[",
        "@",
        "\n",
        "\r",
        "\0",
    ),
    *(
        "a=",
        'a="',
        'a="\\"',
        "a ",
        " a",
        "1.",
        "1:",
        "1s",
        "a.",
        "a-",
        "-a",
        "a,",
        '",',
        '"a',
        "://",
        "${a",
        "\\a",
        "; name=model",
    ),
    *(
        "name=",
        "boundary=",
        "[Errno 1",
        "\r\nconnection:",
        "content-disposition:",
        "wait=1,",
        'a="",',
        "a;a=",
        "255.",
        "1e",
    ),
)
ENDS = ("", "\0", '"', "}", "\n!")
SECONDS = 0.25
"""Of processor time: 10,000 characters take a millisecond at most where each is looked at a few times, and seconds where
each is looked at again from each other one."""


def slowest(pattern: re.Pattern[Any], methods: Iterable[str], read: Read) -> tuple[float, str]:
    """The longest time that one of the subjects took, and how it begins; ends at the first that takes too long."""
    worst, what = 0.0, ""
    for method, begin, unit, end in itertools.product(methods, ("", *read.begins), UNITS, ENDS):
        text = (begin + unit * (read.longest // len(unit)) + end)[: read.longest + len(begin) + len(end)]
        subject: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
        empty: Any = b"" if isinstance(subject, bytes) else ""
        started = time.thread_time()
        if method == "sub":
            pattern.sub(empty, subject)
        elif method == "finditer":
            list(pattern.finditer(subject))
        else:
            getattr(pattern, method)(subject)
        took = time.thread_time() - started
        if took > worst:
            worst, what = took, f"{method} of {begin + unit * 2!r}... {end!r}"
        if worst > SECONDS:
            break
    return worst, what


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_time_in_proportion(name: str) -> None:
    found = foreign_bytes.patterns().get(name)
    if found is None:
        pytest.skip("it is no more, as another test says")
    worst, what = slowest(pattern_of(found), found.methods, PATTERNS[name])
    assert worst < SECONDS, (
        f"{name}, line {found.line}: {what} took {worst:.1f} s; make its quantifiers possessive"
    )
