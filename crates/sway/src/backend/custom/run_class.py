"""Serves a Python class written for dlm-sway as a backend of `weightloom sway`.

The first line of input names the class; docs/sway-backend-protocol.md describes
the protocol. Uses only the standard library.
"""

import importlib
import inspect
import json
import math
import os
import pathlib
import sys

PROTOCOL = "weightloom-sway"
VERSION = 1


class Spec:
    """The model of the suite."""

    def __init__(self, fields):
        self.__dict__.update(fields)
        if self.adapter is not None:
            self.adapter = pathlib.Path(self.adapter)

    def model_dump(self):
        return dict(self.__dict__)

    def __repr__(self):
        return "Spec(%s)" % ", ".join("%s=%r" % pair for pair in self.__dict__.items())


class Unusable(Exception):
    """The class cannot be used; `kind` names the reason in the protocol."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def describe(error):
    return "%s: %s" % (type(error).__name__, error)


def load(python):
    """Imports the class."""
    sys.path.insert(0, python["folder"])
    try:
        found = importlib.import_module(python["module"])
    except BaseException as error:
        raise Unusable("import", describe(error))
    for name in python["class"].split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise Unusable("attribute", describe(error))
    return found


def instantiate(found, model):
    """Creates an instance of the class."""
    spec = Spec(model)
    arguments = {"base_spec": spec, "adapter_path": spec.adapter}
    if not callable(found):
        raise Unusable("signature", "%r is not callable" % (found,))
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        signature = None
    if signature is not None:
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise Unusable("signature", describe(error))
    try:
        instance = found(**arguments)
    except BaseException as error:
        raise Unusable("constructor", describe(error))
    missing = [name for name in ("as_base", "as_finetuned") if not callable(getattr(instance, name, None))]
    if missing:
        raise Unusable("not_differential", "missing methods: %s" % ", ".join(missing))
    return instance


def capabilities(backend):
    methods = {
        "scalable": "as_scaled_adapter",
        "null_calibrated": "as_null_adapter",
        "preflight": "preflight_finite_check",
    }
    found = ["differential"]
    found += [name for name, method in methods.items() if callable(getattr(backend, method, None))]
    return found


def identity(backend):
    method = getattr(backend, "cache_identity", None)
    if not callable(method):
        return None
    try:
        found = method()
    except BaseException as error:
        raise Unusable("constructor", "cache_identity: %s" % describe(error))
    return None if found is None else str(found)


def number(value):
    """A finite number, or `nan`, `inf` or `-inf` as a string."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def numbers(values):
    values = values.tolist() if hasattr(values, "tolist") else values
    return [number(value) for value in values]


def maybe(value, convert):
    return None if value is None else convert(value)


class Views:
    """The views of a backend; one is open at a time."""

    def __init__(self, backend):
        self.backend = backend
        self.wanted = None
        self.manager = None
        self.view = None

    def open(self, wanted):
        if wanted == self.wanted:
            return self.view
        self.close()
        kind = wanted["kind"]
        if kind == "base":
            manager = self.backend.as_base()
        elif kind == "tuned":
            manager = self.backend.as_finetuned()
        elif kind == "scaled":
            manager = self.backend.as_scaled_adapter(wanted["strength"])
        elif kind == "noise":
            scales = {key: wanted[key] for key in ("init_scale", "rank_scale")}
            manager = self.backend.as_null_adapter(wanted["seed"], **scales)
        else:
            raise ValueError("unknown view %s" % kind)
        self.view = manager.__enter__()
        self.manager, self.wanted = manager, wanted
        return self.view

    def close(self):
        manager, self.manager, self.view, self.wanted = self.manager, None, None, None
        if manager is not None:
            manager.__exit__(None, None, None)


def answer(backend, views, request):
    query = request["query"]
    kind = query["kind"]
    if kind == "preflight":
        views.close()
        ok, reason = backend.preflight_finite_check()
        return {"ok": bool(ok), "reason": str(reason)}
    view = views.open(request["view"])
    if kind == "next":
        found = view.next_token_dist(query["prompt"], top_k=query["top_k"])
        ids = found.token_ids
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        return {
            "tokens": [token if isinstance(token, str) else int(token) for token in ids],
            "logprobs": numbers(found.logprobs),
            "vocabulary": maybe(getattr(found, "vocab_size", None), int),
            "tail": maybe(getattr(found, "tail_logprob", None), number),
        }
    if kind == "completion":
        return {"total": number(view.logprob_of(query["prompt"], query["completion"]))}
    if kind == "text":
        found = view.rolling_logprob(query["text"])
        return {
            "logprobs": numbers(found.logprobs),
            "tokens": int(found.num_tokens),
            "total": number(found.total_logprob),
        }
    if kind in ("generate", "sample"):
        text = view.generate(
            query["prompt"],
            max_new_tokens=query["max_new_tokens"],
            temperature=query.get("temperature", 0.0),
            top_p=query.get("top_p", 1.0),
            seed=query.get("seed", 0),
        )
        return {"text": str(text)}
    raise ValueError("unknown query %s" % kind)


def main():
    # Redirect the output of the class, which would corrupt the protocol.
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8", newline="\n")
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def send(message):
        responses.write(json.dumps(message, allow_nan=False) + "\n")
        responses.flush()

    hello = json.loads(requests.readline())
    try:
        backend = instantiate(load(hello["python"]), hello["model"])
        greeting = {"capabilities": capabilities(backend), "identity": identity(backend)}
    except Unusable as error:
        send({"error": {"kind": error.kind, "message": str(error)}})
        return
    send({"protocol": PROTOCOL, "version": VERSION, **greeting})
    views = Views(backend)
    for line in requests:
        request = json.loads(line)
        try:
            response = {"id": request["id"], "answer": answer(backend, views, request)}
        except Exception as error:
            response = {"id": request["id"], "error": describe(error)}
        send(response)
    views.close()
    close = getattr(backend, "close", None)
    if callable(close):
        close()


main()
