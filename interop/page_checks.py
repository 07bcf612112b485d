"""What a page must be for everybody who reads it: each check opens it in a browser and returns what is wrong.

A check has a name, which `page_faults` refers to.
"""

import pathlib

AUDIT = (pathlib.Path(__file__).parent / "audit.js").read_text()
MOST_BYTES = 1_000_000
WIDTHS = (360, 1280)
SCHEMES = ("light", "dark")
# What a screen reader announces by its name.
NAMED = {"link", "region", "image", "img", "table", "heading", "navigation", "DisclosureTriangle", "columnheader",
         "rowheader", "RootWebArea"}


def opened(page, file, width=1280, medium="", **features):
    """Opens a page as somebody has it who prefers these features."""
    page.size(width)
    page.media(medium, **features)
    page.open(file)
    page.evaluate(AUDIT)


def asked(page, *functions):
    return [fault for function in functions for fault in page.evaluate(f"audit.{function}()")]


def silence(page, file):
    """It says nothing to the console, asks for nothing but itself, and is small."""
    opened(page, file)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    faults = [f"console: {event['args']}" for event in page.events("Runtime.consoleAPICalled")]
    faults += [f"exception: {event['exceptionDetails']['text']}" for event in page.events("Runtime.exceptionThrown")]
    faults += [f"log: {event['entry']['text']}" for event in page.events("Log.entryAdded")]
    wanted = [pathlib.Path(file).absolute().as_uri()]
    requests = [event["request"]["url"] for event in page.events("Network.requestWillBeSent")]
    faults += [] if requests == wanted else [f"requests: {requests}"]
    size = pathlib.Path(file).stat().st_size
    return faults + ([f"{size} bytes"] if size >= MOST_BYTES else [])


def reading(page, file):
    """A screen reader meets the verdict first, and a name for everything."""
    opened(page, file)
    page.evaluate("audit.unfold()")
    nodes = page.read()
    roles = [role for role, _, _ in nodes]
    verdict = page.evaluate("audit.contents().verdict")
    faults = [f"a {role} without a name" for role, name, _ in nodes if role in NAMED and not name.strip()]
    first = next((node for node in nodes if node[1] and node[0] not in ("RootWebArea", "main", "region")), None)
    if not first or first[:2] != ("heading", verdict) or first[2].get("level") != 1:
        faults.append(f"what comes first is {first}, not the verdict “{verdict}”")
    if "main" not in roles or roles.index("main") > roles.index("heading"):
        faults.append("the verdict is not in the main part")
    for selector, named in (("svg", {"image", "img"}), ("table", {"table"}), ("thead th", {"columnheader"}),
                            ("tbody th", {"rowheader"}), ("details", {"DisclosureTriangle"}),
                            ("section, [role=region]", {"region"})):
        there = page.evaluate(f"document.querySelectorAll('{selector}').length")
        told = sum(role in named for role in roles)
        faults += [] if there == told else [f"{there} {selector}, of which {told} are told"]
    return faults


def structure(page, file):
    """Language, title, headings, references; tables with heads; nothing told by colour alone; nothing foreign."""
    opened(page, file)
    return asked(page, "structure", "tables", "beyondColour", "foreign")


def colours(page, file):
    """Light and dark differ, and in both everything stands out from its background."""
    faults, found = [], []
    for scheme in SCHEMES:
        opened(page, file, prefers_color_scheme=scheme)
        page.evaluate("audit.unfold()")
        faults += [f"{scheme}: {fault}" for fault in asked(page, "textContrast", "shapeContrast")]
        found.append(page.evaluate("audit.colours()"))
    return faults + [f"both are {one}" for one, other in zip(*found) if one == other]


def widths(page, file):
    """Nothing sticks out, and no label is cut, covered or too small."""
    faults = []
    for width in WIDTHS:
        opened(page, file, width)
        faults += [f"{width}: {fault}" for fault in asked(page, "overflow")]
        page.evaluate("audit.unfold()")
        faults += [f"{width}, unfolded: {fault}" for fault in asked(page, "overflow", "squeezed", "labels")]
    return faults


def paper(page, file):
    """What is folded on the screen is printed, in dark letters."""
    faults = []
    for scheme in SCHEMES:
        # The width of A4 between usual margins.
        opened(page, file, 718, "print", prefers_color_scheme=scheme)
        faults += [f"{scheme}: {fault}" for fault in asked(page, "printed", "squeezed", "textContrast")]
    return faults


def motion(page, file):
    """Who wants no motion has none."""
    opened(page, file, prefers_reduced_motion="reduce")
    return asked(page, "motion")


def keyboard(page, file):
    """Tab reaches everything in order and shows where it is; Enter and Space do what they should."""
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
    """What is wrong on the way through the page by Tab."""
    names, faults = page.evaluate("audit.focusable()"), []
    for number, name in enumerate(names):
        page.press("Tab")
        focused = page.evaluate("audit.focused()")
        if focused["number"] != number:
            return faults + [f"Tab reaches {focused['number']} instead of {number}, {name}"]
        faults += focused["faults"]
    return faults


CHECKS = (silence, reading, structure, colours, widths, paper, motion, keyboard)
