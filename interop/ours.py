"""Our side: the `weightloom` program, and ranks that save and load."""

import json
import pathlib
import subprocess

SECONDS = 60


class Ours:
    def __init__(self, weightloom, ranks):
        self.weightloom, self.ranks_program = weightloom, ranks

    def call(self, *arguments):
        """What `weightloom … --json` answers."""
        return json.loads(output([self.weightloom, "--json", *map(str, arguments)]))

    def convert(self, source, form, *options, name=None):
        """Converts into a new folder beside the source and returns it."""
        source = pathlib.Path(source)
        target = source.with_name(f"{name or source.name}.to-{form}")
        self.call("convert", source, target, "--to", form, *options)
        return target

    def fingerprint(self, path):
        return self.call("fingerprint", path)["fingerprint"]

    def ranks(self, action, checkpoint, tensors, mesh, **rest):
        """Saves or loads on the ranks of a mesh; returns the number of tensors."""
        job = {"action": action, "checkpoint": str(checkpoint), "tensors": str(tensors), "mesh": mesh} | rest
        return int(output([self.ranks_program, json.dumps(job)]))


def output(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{pathlib.Path(command[0]).name} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
