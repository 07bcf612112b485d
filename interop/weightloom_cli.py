"""The `weightloom` command, and ranks that save and load checkpoints."""

import json
import pathlib
import subprocess

SECONDS = 60


class Weightloom:
    def __init__(self, weightloom, ranks):
        self.weightloom, self.ranks_program = weightloom, ranks

    def call(self, *arguments):
        """The JSON output of `weightloom … --json`."""
        return json.loads(output([self.weightloom, "--json", *map(str, arguments)]))

    def convert(self, source, format, *options, name=None):
        """Converts to a new folder beside the source; returns it."""
        source = pathlib.Path(source)
        target = source.with_name(f"{name or source.name}.to-{format}")
        self.call("convert", source, target, "--to", format, *options)
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
        raise RuntimeError(f"{pathlib.Path(command[0]).name} exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
