"""What was planned, sent and executed, and which rules were broken. Not here: any I/O."""

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

MARK = re.compile(rb"#(\d+)#")
"""How an answer names the request that it belongs to."""

HARMLESS = frozenset({"none", "slow", "chunked", "tiny chunks", "drip", "interim", "connection close"})
"""What a backend may do without harm: its answer is whole and has to reach the client."""

MAX_VIOLATIONS = 50
"""How many broken rules are told in full."""


@dataclass(slots=True)
class Plan:
    """One exchange: what the client sends, and what the backend does with it."""

    id: int
    kind: str
    """`binary`, `json`, `get`, `head`, `post`."""
    fault: str
    delay_s: float
    """How long a slow or late thing takes."""
    elements: int
    """Of the tensor; a relayed body has eight bytes for each."""
    answer_bytes: int
    """Of a relayed answer, beside the mark."""
    answered: bool = False
    """The backend has written its whole answer."""
    raced_with: int = 0
    """The request whose late bytes crossed this request on the wire: nobody could have told whose they were."""
    texts: list[bytes] = field(default_factory=list)
    """The bodies that the backend has sent for it."""

    @property
    def mark(self) -> str:
        """Stands in each answer that belongs to this request."""
        return f"#{self.id}#"

    def array(self) -> np.ndarray:
        """The tensor, which no other request has."""
        return np.arange(self.elements, dtype=np.int64) + self.id * 10_000_000


@dataclass
class Journal:
    """All exchanges of a run, known by their id."""

    plans: dict[int, Plan] = field(default_factory=dict)
    executed: Counter[int] = field(default_factory=Counter)
    """How often the backend read a request to its end."""
    faults: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)
    moods: Counter[str] = field(default_factory=Counter)
    """What endpoints did as a whole."""
    reloads: Counter[str] = field(default_factory=Counter)
    slow: Counter[str] = field(default_factory=Counter)
    """What slow clients did, and what became of them."""
    attacks: Counter[str] = field(default_factory=Counter)
    """What attackers did, and what became of them."""
    probes: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    crossed: set[int] = field(default_factory=set)
    """Requests whose late bytes crossed another on a connection that ended before that one could be read."""
    suspects: list[tuple[Plan, set[int], str]] = field(default_factory=list)
    """Replies with the marks of other requests, to be judged at the end."""

    def violated(self, rule: str, example: str) -> None:
        """Note that *rule* was broken."""
        self.violations[rule] += 1
        if self.violations[rule] <= MAX_VIOLATIONS // 5 and len(self.examples) < MAX_VIOLATIONS:
            self.examples.append(f"{rule}: {example}")

    def execute(self, plan: Plan) -> None:
        """The backend has read the request of *plan* to its end."""
        self.executed[plan.id] += 1
        allowed = 2 if plan.kind in ("get", "head") else 1
        if self.executed[plan.id] > allowed:
            times = f"{self.executed[plan.id]} times"
            self.violated("a request was executed twice", f"{plan.kind} {plan.id} ({plan.fault}) {times}")

    def judge(self, plan: Plan, status: int, body: bytes, header_length: int | None) -> None:
        """Judge the whole reply that a client got."""
        self.replies[f"{plan.kind} {status}"] += 1
        text = body if header_length is None else body[:header_length]
        foreign = {int(mark) for mark in MARK.findall(text)} - {plan.id}
        what = f"{plan.kind} {plan.id} ({plan.fault}) got {status} {text[:200]!r}"
        if foreign:
            # the client may read its reply before the backend finds out that the two have crossed
            self.suspects.append((plan, foreign, f"{what}, which belongs to {sorted(foreign)[:3]}"))
        elif status == 200:
            self._judge_success(plan, body, header_length, what)
        elif b"internal error" in body:
            self.violated("an internal error", what)
        elif status == 408 and (b"backend" in body or plan.kind == "head"):  # a HEAD has no body to be slow with
            self.suspects.append((plan, foreign, f"{what}, which belongs to nobody"))
        elif status == 408:
            self.violated("a client that did not wait was told that it is slow", what)
        elif status in (500, 502, 503) and plan.fault in HARMLESS and plan.answered:
            self.violated("a whole answer did not reach its client", what)

    def _judge_success(self, plan: Plan, body: bytes, header_length: int | None, what: str) -> None:
        if plan.kind == "head":
            if body:
                self.violated("a reply to HEAD had a body", what)
        elif header_length is not None:
            if plan.kind != "binary" or body[header_length:] != plan.array().tobytes():
                self.violated("a tensor was not the request's own", what)
        elif plan.kind == "binary":
            self.violated("a binary output was not binary", what)
        elif body not in plan.texts and not (
            plan.fault == "short length" and any(text.startswith(body) for text in plan.texts)
        ):
            self.violated("a body was not what the backend had sent", what)

    def cut(self, plan: Plan, how: str, *, still_sending: bool) -> None:
        """The reply of a client that stayed broke off, or never came.

        A client that was *still_sending* later requests may lose a reply that stands in its own kernel, when one of
        them ends the connection: nobody else can be blamed for it.
        """
        self.replies[f"{plan.kind} cut"] += 1
        if plan.fault in HARMLESS and plan.answered and not still_sending:
            rule = "a whole answer did not reach its client"
            self.violated(rule, f"{plan.kind} {plan.id} ({plan.fault}) was cut, {how}")

    def close(self) -> None:
        """Judge what could not be judged before: every request has been read."""
        for plan, foreign, what in self.suspects:
            excused = self.crossed | ({plan.raced_with} if plan.raced_with else set())
            if not excused or foreign - excused:
                self.violated("a reply was of another request", what)
            else:
                self.faults["a reply that late bytes had overtaken on the wire"] += 1
        self.suspects.clear()

    def forget(self, plan: Plan) -> None:
        """Nobody waits for its reply any more: let its texts go."""
        plan.texts.clear()
