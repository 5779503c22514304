"""Which values of answers are outputs, by their names and by what other requests have shown of them.

Not here: sending requests (`trials`), and words for the user beside the reason why something is left out.
"""

from dataclasses import dataclass, field
from typing import Any

from gateway.doctor.answered import Answers, Found, Left
from gateway.doctor.filling import is_close
from gateway.doctor.member_names import CLASS_MEMBERS, ROW_NUMBERS, STATES, TIME_ENDS, TIMES, snake
from gateway.doctor.trials import AGAIN, ALL, FIRST, GROUP, LAST, TURNED, Trials, is_count


@dataclass
class Choice:
    """The outputs, and what was found about them."""

    outputs: dict[str, Found] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    """Values that could be outputs, and why they are not."""
    order: Found | None = None
    """The number of each row, where answers have them in another order."""
    unstable: frozenset[str] = frozenset()
    """Outputs that differ for the same request."""
    states: dict[str, Any] = field(default_factory=dict)
    """What may say that a request succeeded, by path."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def in_order(self, found: Found, index: int) -> Any:
        """The value of *found* in the answer with *index*, its rows in the request's order."""
        if self.order is None:
            return found.values[index]
        return _sorted(found.values[index], self.order.values[index])


def choose(trials: Trials, answers: Answers) -> Choice:
    """Choose the outputs of *answers*, which are those of *trials*."""
    choice = Choice()
    trial_at = {trial.what: index for index, trial in enumerate(trials.answered)}
    again = trial_at.get(AGAIN)
    unstable = (
        set()
        if again is None
        else {name for name, found in answers.found.items() if found.values[again] != found.values[0]}
    )
    for name, found in answers.found.items():
        why = _why_left_out(found, trials, is_unstable=name in unstable)
        if why:
            choice.left.append(Left(found.path, why))
        else:
            choice.outputs[name] = found
        if _may_be_state(found):
            choice.states[found.path] = found.values[0]
    _leave_lone_constants(choice, trials)
    if not choice.outputs:  # better too much than nothing
        choice.outputs, choice.left = dict(answers.found), []
    choice.unstable = frozenset(unstable & choice.outputs.keys())
    if trials.mode == ALL:
        _judge_rows(choice, trials, answers, trial_at)
    return choice


def _names(found: Found) -> list[str]:
    return [snake(step) for step in found.place if isinstance(step, str)]


def _is_constant(found: Found) -> bool:
    """Whether all answers have the same value, or all rows of all answers."""
    rows = [row for value in found.values for row in (value if isinstance(value, list) else [value])]
    is_same_in_rows = all(row == rows[0] for row in rows)
    return is_same_in_rows or all(value == found.values[0] for value in found.values)


def _why_left_out(found: Found, trials: Trials, *, is_unstable: bool) -> str:
    """Why *found* is no output, by its name and by how it behaves; empty if it is one."""
    name = ["", *_names(found)][-1]
    if name in ROW_NUMBERS and _counts(found):
        return "it is the number of each row"
    if is_count(found, is_unstable=is_unstable):
        return "it counts what the request took"
    if trials.mode == ALL and _counts_rows(found, trials):
        return "it counts the rows of the request"
    if (name in TIMES or name.endswith(TIME_ENDS)) and not _is_result(found, name, trials, is_unstable=is_unstable):
        how = "it differs for the same request" if is_unstable else "its name says that it is the request's own"
        return f"{how}, as times and ids do"
    if _is_constant(found) and (name in CLASS_MEMBERS or name in STATES):
        return "it is the same in all tries, and its name says that it is no result"
    return ""


def _is_result(found: Found, name: str, trials: Trials, *, is_unstable: bool) -> bool:
    """Whether *found* is a result, though its *name* is that of a time or an id: of rows, or of what was found."""
    if trials.follows_rows(found) and found.datatype not in ("INT64", "BYTES"):
        return True
    return name in ("id", "date") and None in found.place and not is_unstable and not _is_constant(found)


def _leave_lone_constants(choice: Choice, trials: Trials) -> None:
    """Leave out what is one value beside rows, and the same in all tries."""
    if trials.mode != ALL or not any(trials.follows_rows(found) for found in choice.outputs.values()):
        return
    for name, found in list(choice.outputs.items()):
        if _is_constant(found) and not trials.follows_rows(found) and len(found.values) > 1:
            del choice.outputs[name]
            choice.left.append(Left(found.path, "it is the same in all tries, and has no rows"))


def _counts(found: Found) -> bool:
    """Whether all its values are the numbers of rows, in any order."""
    if found.datatype != "INT64" or any(len(shape) > 1 for shape in found.shapes):
        return False
    lists = [value if isinstance(value, list) else [value] for value in found.values]
    return all(sorted(each) in ([*range(len(each))], [*range(1, len(each) + 1)]) for each in lists)


def _counts_rows(found: Found, trials: Trials) -> bool:
    """Whether *found* is one number, which was that of the request's rows in all tries, of which there were several."""
    sizes = [trials.n_rows_of(trial) for trial in trials.answered]
    return found.datatype == "INT64" and len(set(sizes)) > 1 and list(found.values) == sizes


def _may_be_state(found: Found) -> bool:
    """Whether *found* is one value beside the outputs, the same in all tries, that may say that a request succeeded."""
    is_plain = all(isinstance(step, str) for step in found.place) and found.shapes[0] == ()
    is_named = bool(found.place) and snake(str(found.place[-1])) in STATES
    return is_plain and is_named and _is_constant(found) and not isinstance(found.values[0], float)


# Rows: their order, and whether they depend on each other


def _sorted(values: list[Any], numbers: list[int]) -> list[Any]:
    return [value for _, value in sorted(zip(numbers, values, strict=True), key=lambda pair: pair[0])]


def _judge_rows(choice: Choice, trials: Trials, answers: Answers, trial_at: dict[str, int]) -> None:
    """Find out whether answers have rows in the request's order, and whether a row is answered alone as in a group."""
    trial_pair = [trial_at[what] for what in (GROUP, TURNED) if what in trial_at]
    rows = [found for found in choice.outputs.values() if trials.follows_rows(found)]
    _tell_whole(choice, choice.outputs.keys() - {found.name for found in rows})
    if not rows:
        return
    rows = [found for found in rows if found.name not in choice.unstable]
    if len(trial_pair) < 2 or not any(_tells_order(found, trial_pair[0]) for found in rows):
        choice.notes.append("the order of rows was not found out: leave `batch` off unless you know that they keep it")
    elif trials.n_rows_of(trials.answered[trial_at[GROUP]]) > 1:
        numbers = list(filter(_permutes, filter(trials.follows_rows, answers.found.values())))
        if _find_order(choice, rows, numbers, *trial_pair):
            _judge_dependence(choice, trials, rows, trial_at)


def _tell_whole(choice: Choice, names: set[str]) -> None:
    """Note the outputs called *names*, if there are any: they are of the whole request."""
    if names:
        listed = ", ".join(f"`{name}`" for name in sorted(names))
        choice.notes.append(f"{listed}: not one for each row, but for the whole request. So leave `batch` off")


def _find_order(choice: Choice, rows: list[Found], numbers: list[Found], group: int, turned: int) -> bool:
    """Whether *rows* are in the request's order, or in that of one of *numbers*, which becomes the choice's `order`."""
    for number in (None, *numbers):
        choice.order = number
        if all(_keeps(choice, found, group, turned) for found in rows if found is not number):
            if number is not None:
                choice.outputs.pop(number.name, None)
            return True
    choice.order = None
    choice.problems.append(
        "rows in reverse are not answered in reverse, and nothing in the answer tells which row is which: clients get "
        "the server's order, and `batch` is unsafe, it would give clients the rows of others"
    )
    return False


def _tells_order(found: Found, group: int) -> bool:
    """Whether the rows of *found* in the answer to *group* are others if they are read backwards, or only one."""
    rows = found.values[group]
    return len(rows) == 1 or not is_close(rows, rows[::-1])


def _keeps(choice: Choice, found: Found, group: int, turned: int) -> bool:
    """Whether *found* has its rows in reverse in the answer to the rows of *group* in reverse, which is *turned*."""
    return is_close(choice.in_order(found, group), choice.in_order(found, turned)[::-1])


def _judge_dependence(choice: Choice, trials: Trials, rows: list[Found], trial_at: dict[str, int]) -> None:
    """Find out whether the first and the last row alone are answered as in their group."""
    group = trial_at[GROUP]
    rows = [found for found in rows if found is not choice.order]
    n_rows = trials.n_rows_of(trials.answered[group])
    for what, row in ((FIRST, 0), (LAST, n_rows - 1)):
        alone = trial_at.get(what)
        if alone is None:
            words = [trial.words for trial in trials.done if trial.what == what]
            choice.notes.append(f"one row alone was not answered ({(words or ['not tried'])[0]})")
            return
        together = {found.name: choice.in_order(found, group)[row] for found in rows}
        moved = [found.name for found in rows if not is_close(found.values[alone][0], together[found.name])]
        if moved:
            listed = ", ".join(f"`{name}`" for name in moved)
            choice.problems.append(
                f"{listed}: a row alone is answered otherwise than in a group, so it depends on the other rows. "
                "`batch` is unsafe: it would mix the rows of several clients"
            )
            return


def _permutes(found: Found) -> bool:
    """Whether all its values are the numbers of rows from 0 on, in any order."""
    is_numbers = found.datatype == "INT64" and all(len(shape) == 1 for shape in found.shapes)
    return is_numbers and all(sorted(value) == [*range(len(value))] for value in found.values)
