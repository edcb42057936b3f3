"""Runs one file's view for weir, which starts this by `python3 -c`.

Lines of JSON: first the file, to which the answer is its name and filter; then a payload a line, to
which the answer is a summary and fields, or an error. docs/how-to/add-a-protocol-view.md.
"""

import json
import operator
import os
import resource
import signal
import traceback

MEMORY_MAX = 512 << 20  # bytes
FIELDS_MAX = 500
DEPTH_MAX = 8
TEXT_MAX = 400  # characters of a name or value
# Seconds after which the kernel ends this process. weir does so earlier, while it runs.
TIME_MAX = 12

FORMS = "(name, value), (name, value, start, end) or (name, value, start, end, parts)"


def text(value):
    value = value if isinstance(value, str) else str(value)
    # A lone surrogate is no JSON.
    cut = value[:TEXT_MAX] + ("…" if len(value) > TEXT_MAX else "")
    return cut.encode("utf-8", "replace").decode("utf-8")


def complaint(path, error, shown):
    """FILE:LINE: the error, with the last line of the file that it came by."""
    if isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno
    else:
        came = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in came if frame.f_code.co_filename == path]
        line = lines[-1] if lines else None
    what = traceback.format_exception_only(type(error), error)[-1].strip()
    return text(f"{shown}:{line}: {what}" if line else f"{shown}: {what}")


def load(path, source):
    """The file's name, filter and function."""
    names = {"__name__": "weir_view", "__file__": path}
    exec(compile(source, path, "exec", dont_inherit=True), names)
    name = names.get("name", os.path.splitext(os.path.basename(path))[0])
    for key, value in (("name", name), ("match", names.get("match"))):
        if not isinstance(value, str) or not value.strip():
            raise TypeError(f"`{key}` must be a text: " + {
                "name": "the protocol's name",
                "match": "a pcap filter, such as match = \"udp port 4242\"",
            }[key])
    if not callable(names.get("view")):
        raise TypeError("`view` must be a function of the payload: def view(payload)")
    return name, names["match"], names["view"]


def flat(fields, depth, size, out):
    """Adds the fields and their parts to `out`, as far as there is room."""
    for field in fields:
        if len(out) >= FIELDS_MAX:
            return
        if not isinstance(field, (tuple, list)) or len(field) not in (2, 4, 5):
            raise TypeError(f"a field is {FORMS}, not {text(repr(field))}")
        name, value = field[:2]
        start, end = field[2:4] or (0, 0)
        parts = field[4] if len(field) == 5 else ()
        start, end = (min(max(operator.index(at), 0), size) for at in (start, end))
        out.append((depth, text(name), text(value), start, max(start, end)))
        if parts and depth < DEPTH_MAX:
            flat(parts, depth + 1, size, out)


def answer(view, payload):
    said = view(payload)
    if said is None:
        return {"none": True}
    if isinstance(said, str):
        said = (said, ())
    if not isinstance(said, tuple) or len(said) != 2:
        raise TypeError(f"view returns None, a summary, or (summary, fields), not {text(repr(said))}")
    summary, fields = said
    out = []
    flat(fields, 0, len(payload), out)
    return {"summary": text(summary), "fields": out}


def main():
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # The file reads nothing here, and what it prints goes nowhere.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def put(value):
        answers.write(json.dumps(value).encode() + b"\n")
        answers.flush()

    first = json.loads(asked.readline())
    path = first["file"]
    signal.setitimer(signal.ITIMER_REAL, TIME_MAX)
    try:
        name, match, view = load(path, first["source"])
    except BaseException as error:
        put({"error": complaint(path, error, path)})
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    put({"name": text(name), "match": match})
    for line in asked:
        payload = bytes.fromhex(line.decode())
        signal.setitimer(signal.ITIMER_REAL, TIME_MAX)
        try:
            said = answer(view, payload)
        except BaseException as error:
            # A screen has little room.
            said = {"error": complaint(path, error, os.path.basename(path))}
        signal.setitimer(signal.ITIMER_REAL, 0)
        put(said)


main()
