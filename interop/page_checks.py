"""Accessibility and layout checks: each opens a page in a browser and returns a list of problems.

`page_mutations` refers to the checks by name.
"""

import pathlib

AUDIT = (pathlib.Path(__file__).parent / "audit.js").read_text()
MAX_BYTES = 1_000_000
WIDTHS = (360, 1280)
SCHEMES = ("light", "dark")
# Roles that a screen reader announces with a name.
NAMED = {"link", "region", "image", "img", "table", "heading", "navigation", "DisclosureTriangle", "columnheader",
         "rowheader", "RootWebArea"}


def opened(page, file, width=1280, medium="", **features):
    """Opens a page with these media features."""
    page.size(width)
    page.media(medium, **features)
    page.open(file)
    page.evaluate(AUDIT)


def asked(page, *functions):
    return [fault for function in functions for fault in page.evaluate(f"audit.{function}()")]


def silence(page, file):
    """Nothing on the console, no requests, and a limited size."""
    opened(page, file)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    faults = [f"console: {event['args']}" for event in page.events("Runtime.consoleAPICalled")]
    faults += [f"exception: {event['exceptionDetails']['text']}" for event in page.events("Runtime.exceptionThrown")]
    faults += [f"log: {event['entry']['text']}" for event in page.events("Log.entryAdded")]
    wanted = [pathlib.Path(file).absolute().as_uri()]
    requests = [event["request"]["url"] for event in page.events("Network.requestWillBeSent")]
    faults += [] if requests == wanted else [f"requests: {requests}"]
    size = pathlib.Path(file).stat().st_size
    return faults + ([f"{size} bytes"] if size >= MAX_BYTES else [])


def reading(page, file):
    """A screen reader gets the verdict first, and a name for everything."""
    opened(page, file)
    page.evaluate("audit.unfold()")
    nodes = page.read()
    roles = [role for role, _, _ in nodes]
    verdict = page.evaluate("audit.contents().verdict")
    faults = [f"a {role} without a name" for role, name, _ in nodes if role in NAMED and not name.strip()]
    first = next((node for node in nodes if node[1] and node[0] not in ("RootWebArea", "main", "region")), None)
    if not first or first[:2] != ("heading", verdict) or first[2].get("level") != 1:
        faults.append(f"the first element is {first}, not the verdict “{verdict}”")
    if "main" not in roles or roles.index("main") > roles.index("heading"):
        faults.append("the verdict is not in the main part")
    for selector, named in (("svg", {"image", "img"}), ("table", {"table"}), ("thead th", {"columnheader"}),
                            ("tbody th", {"rowheader"}), ("details", {"DisclosureTriangle"}),
                            ("section, [role=region]", {"region"})):
        there = page.evaluate(f"document.querySelectorAll('{selector}').length")
        announced = sum(role in named for role in roles)
        faults += [] if there == announced else [f"{there} {selector}, of which {announced} are announced"]
    return faults


def structure(page, file):
    """Language, title, headings and references; table headers; no information by colour alone; no foreign content."""
    opened(page, file)
    return asked(page, "structure", "tables", "beyondColour", "foreign")


def colours(page, file):
    """Light and dark schemes differ, and both have enough contrast."""
    faults, found = [], []
    for scheme in SCHEMES:
        opened(page, file, prefers_color_scheme=scheme)
        page.evaluate("audit.unfold()")
        faults += [f"{scheme}: {fault}" for fault in asked(page, "textContrast", "shapeContrast")]
        found.append(page.evaluate("audit.colours()"))
    return faults + [f"both are {one}" for one, other in zip(*found) if one == other]


def widths(page, file):
    """Nothing overflows, and no label is clipped, covered or too small."""
    faults = []
    for width in WIDTHS:
        opened(page, file, width)
        faults += [f"{width}: {fault}" for fault in asked(page, "overflow")]
        page.evaluate("audit.unfold()")
        faults += [f"{width}, unfolded: {fault}" for fault in asked(page, "overflow", "squeezed", "labels")]
    return faults


def paper(page, file):
    """Collapsed content is printed, in dark letters."""
    faults = []
    for scheme in SCHEMES:
        # The width of A4 between usual margins.
        opened(page, file, 718, "print", prefers_color_scheme=scheme)
        faults += [f"{scheme}: {fault}" for fault in asked(page, "printed", "squeezed", "textContrast")]
    return faults


def motion(page, file):
    """Respects `prefers-reduced-motion`."""
    opened(page, file, prefers_reduced_motion="reduce")
    return asked(page, "motion")


def keyboard(page, file):
    """Tab reaches everything in order with a visible focus; Enter and Space work."""
    opened(page, file, prefers_reduced_motion="reduce")
    faults = tabs(page)
    opened(page, file, prefers_reduced_motion="reduce")
    page.evaluate("audit.unfold()")
    faults += tabs(page)
    opened(page, file, prefers_reduced_motion="reduce")
    for number in range(page.evaluate("document.querySelectorAll('a').length")):
        page.evaluate(f"document.querySelectorAll('a')[{number}].focus()")
        page.press("Enter")
        faults += page.evaluate(f"audit.arrived({number})")
    for number in range(page.evaluate("document.querySelectorAll('summary').length")):
        page.evaluate(f"document.querySelectorAll('summary')[{number}].focus()")
        for key, is_open in (("Enter", True), (" ", False)):
            page.press(key)
            if page.evaluate(f"document.querySelectorAll('details')[{number}].open") is not is_open:
                faults.append(f"{key!r} does not work on fold {number}")
    opened(page, file, WIDTHS[0], prefers_reduced_motion="reduce")
    page.evaluate("audit.unfold()")
    for number in page.evaluate("audit.wide()")[:3]:
        page.press("ArrowRight") if page.evaluate(f"audit.enter({number})") else None
        faults += page.evaluate(f"audit.moved({number})")
    return faults


def tabs(page):
    """Problems on the way through the page by Tab."""
    names, faults = page.evaluate("audit.focusable()"), []
    for number, name in enumerate(names):
        page.press("Tab")
        focused = page.evaluate("audit.focused()")
        if focused["number"] != number:
            return faults + [f"Tab reaches {focused['number']} instead of {number}, {name}"]
        faults += focused["faults"]
    return faults


CHECKS = (silence, reading, structure, colours, widths, paper, motion, keyboard)
