"""Run by a Python with torch: what snippets give against what the probe gives for the same cases, as JSON on stdout.

Arguments: the probe's path, then case ids. Each side runs in a process of its own, since torch may crash.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import signal
import sys
import warnings

import torch


def load(path):
    spec = importlib.util.spec_from_file_location("probe_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.torch = torch
    return module


def apart(body):
    """What body() returns, from a process of its own: its outcome, or how it died."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(writer, json.dumps(body()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(data.decode()) if data else "crash" if os.WIFSIGNALED(status) else "died"


def outcome_of_snippet(probe, text):
    said = io.StringIO()
    problem = ""
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(text, "snippet", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        return re.match(r"result: (\w+)", str(error)).group(1)
    except Exception as error:
        while error.__context__ is not None:  # the first of two tries is what the probe reports
            error = error.__context__
        problem = probe.classify(error)[0]
    words = re.findall(r"^(?:result|gradient of \w+): (\w+)", said.getvalue(), re.MULTILINE)
    bad = [word for word in words if word != "pass"]
    return bad[0] if bad else problem or ("pass" if words else "said nothing")


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    probe = load(sys.argv[1])
    found = {}
    for ident in sys.argv[2:]:
        case = probe.CASES[ident]
        text = probe.snippet(case)
        if not text.startswith(probe.CARRIED):
            by_probe = apart(lambda case=case: probe.run_case(case, torch.device("cpu"))["outcome"])
            found[ident] = [by_probe, apart(lambda text=text: outcome_of_snippet(probe, text))]
    json.dump(found, sys.stdout)


main()
