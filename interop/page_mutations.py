"""Mutations of a page, each of which its check must detect.

They prove that no check passes by looking at nothing.
"""

import re

# Check, description, pattern and replacement. Every pattern must occur.
FAULTS = [
    ("silence", "a script", r"</main>", "<script>console.log(1)</script></main>"),
    ("silence", "a picture from elsewhere", r"<meta http-equiv[^>]*>", ""),
    ("silence", "a page that is too large", r"</main>", f"</main><!--{'x' * 1_000_000}-->"),
    ("reading", "words before the verdict", r"<main>", "<p>Welcome.</p><main>"),
    ("reading", "a verdict outside of the main part", r"<main>", ""),
    ("reading", "a heading before the verdict", r"<main>", "<main><h2>Overview</h2>"),
    ("reading", "a drawing without a name",
     r'role="img" aria-labelledby="[^"]*"><title.*?</title><desc.*?</desc>', 'role="img">'),
    ("reading", "a drawing without a role",
     r'<svg ([^>]*)role="img" aria-labelledby="[^"]*"', r'<svg \1aria-hidden="true"'),
    ("reading", "a region without a name", r'aria-label="Numbers[^"]*"', 'aria-label=""'),
    ("structure", "no language", r' lang="en"', ""),
    ("structure", "no title", r"<title>.*?</title>", "<title>Report</title>"),
    ("structure", "two first headings", r"<h2 id=\"probes\">(.*?)</h2>", r'<h1 id="probes">\1</h1>'),
    ("structure", "a gap between headings", r"<h2 id=\"run\">(.*?)</h2>", r'<h4 id="run">\1</h4>'),
    ("structure", "a duplicate id", r'id="probes"', 'id="run"'),
    ("structure", "a link to nothing", r'href="#probes"', 'href="#nothing"'),
    ("structure", "a drawing without its numbers", r"(?s)<details>\n.*?</details>", ""),
    ("structure", "a table without column heads", r'<th scope="col"', "<td"),
    ("structure", "a table without row heads", r'<th scope="row"', "<td"),
    ("structure", "a table without a caption", r"<caption[^>]*>.*?</caption>", ""),
    ("structure", "a verdict by colour alone", r'(<td class="badge [a-z]+">)[a-z]+', r"\1●"),
    ("structure", "changes by colour alone", r"</style>", "ins, del { text-decoration: none }</style>"),
    ("structure", "changes that are not announced", r"</style>", "ins::before { content: none }</style>"),
    ("structure", "a script from a report", r"</main>", "<script></script></main>"),
    ("structure", "a handler from a report", r"<main>", '<main onclick="1">'),
    ("structure", "a character that turns texts around", r"</footer>", "\u202e</footer>"),
    ("colours", "pale words", r"--quiet: #55606e", "--quiet: #9aa0a8"),
    ("colours", "pale words in the dark", r"--ink: #e8ebf0", "--ink: #5b6068"),
    ("colours", "pale words in drawings", r"svg text \{ fill: var\(--ink\)", "svg text { fill: var(--line)"),
    ("colours", "a pale curve", r"stroke: var\(--accent\)", "stroke: var(--grid)"),
    ("colours", "no dark scheme", r"prefers-color-scheme: dark", "prefers-color-scheme: none"),
    ("widths", "a wide page", r"</style>", "main { min-width: 30rem }</style>"),
    ("widths", "tables that do not scroll", r"</style>", ".scroll { overflow: visible }</style>"),
    ("widths", "a box that no key reaches", r'tabindex="0"', ""),
    ("widths", "words that do not break", r"</style>", "p { white-space: nowrap }</style>"),
    ("widths", "a column that is too narrow", r"</style>", ".note p { width: 1rem }</style>"),
    ("paper", "a column that is too narrow", r"\.note \{ min-width: 11rem; \}", ".note p { width: 1rem }"),
    ("paper", "a sheet that is too wide", r"</style>", "main { min-width: 60rem }</style>"),
    ("widths", "small labels", r"svg text \{ font-size: 16px; \}", ""),
    ("widths", "labels over each other", r"</style>", "svg text { font-size: 30px !important }</style>"),
    ("widths", "labels that are cut", r'text-anchor="end"', 'text-anchor="start" dx="-100"'),
    ("paper", "folds that stay folded", r"details::details-content \{[^}]*\}", ""),
    ("paper", "tables that are cut", r"\.scroll \{ overflow: visible; border: 0; \}", ".note p { min-width: 90rem }"),
    ("paper", "dark paper", r"@media screen and \(prefers", "@media (prefers"),
    ("motion", "a page that glides", r"@media \(prefers-reduced-motion: reduce\) \{[^}]*\}[^}]*\}", ""),
    ("motion", "bars that grow", r"</style>", ".meter span { transition: width 1s }</style>"),
    ("keyboard", "no focus to be seen", r"</style>", "*:focus-visible { outline: none !important }</style>"),
    ("keyboard", "a pale focus", r"outline: 3px solid var\(--accent\)", "outline: 3px solid var(--grid)"),
    ("keyboard", "another order", r'<a href="#probes"', '<a tabindex="3" href="#probes"'),
    ("keyboard", "a fold that no key reaches", r"<details>", "<details inert>"),
    ("numbers", "another number in a table", r'(<th scope="row" dir="auto">0\.5</th><td class="number">)', r"\g<1>1"),
    ("numbers", "a dot elsewhere", r'(<circle class="dot" cx="[0-9.]+" cy=")', r"\g<1>1"),
    ("numbers", "a longer bar",
     r'class="more" style="left: ([0-9.]+)%; width: [0-9.]+%', r'class="more" style="left: \1%; width: 77%'),
    ("numbers", "noise that is missing", r'<circle class="noise"[^>]*/>', ""),
    ("numbers", "another verdict", r'(<td class="badge [a-z]+">)[a-z]+', r"\1skip"),
    ("numbers", "another score", r"(Composite score )0\.", r"\g<1>1."),
    ("numbers", "other words", r"<ins>(?!underlined)", "<ins>never "),
    ("numbers", "an effect elsewhere", r'class="value" style="left: [0-9.]+%', 'class="value" style="left: 99%'),
    ("numbers", "another effect", r'(<td class="number">)([-0-9.,]+)(<br><small>\[[^<]*</small></td><td class="number">(?:noise|above|below))', r"\g<1>77\3"),
    ("numbers", "an item that is missing", r'<circle class="after"[^>]*/>', ""),
    ("structure", "an answer by colour alone", r'<p class="said">.*?</p>', '<p class="said"></p>'),
]


def broken(text, what, pattern, replacement):
    """Applies a mutation wherever its pattern occurs."""
    found, number = re.subn(pattern, replacement, text)
    assert number, f"the page has nothing to mutate for “{what}”"
    if what == "a picture from elsewhere":
        found = found.replace("</main>", '<img alt="" src="http://127.0.0.1:9/x.png"></main>')
    return found
