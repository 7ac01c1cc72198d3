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


def each_apart(jobs):
    """What every job returns, in order; one that dies costs its process, and the next job gets a new one."""
    found = []
    while len(found) < len(jobs):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for job in jobs[len(found) :]:
                signal.alarm(30)
                os.write(writer, (job() + "\n").encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            found += stream.read().split()
        os.waitpid(pid, 0)
        if len(found) < len(jobs):
            found.append("died")
    return found


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
    return bad[0] if bad else problem or ("pass" if words else "silent")


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    probe = load(sys.argv[1])
    cases = [probe.CASES[ident] for ident in sys.argv[2:]]
    texts = {case.id: probe.snippet(case) for case in cases}
    alone = [case for case in cases if not texts[case.id].startswith(probe.CARRIED)]
    by_probe = each_apart([lambda c=case: probe.run_case(c, torch.device("cpu"))["outcome"] for case in alone])
    by_snippet = each_apart([lambda c=case: outcome_of_snippet(probe, texts[c.id]) for case in alone])
    json.dump({case.id: [by_probe[k], by_snippet[k]] for k, case in enumerate(alone)}, sys.stdout)


main()
