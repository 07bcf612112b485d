"""Compares the numbers on a page with its report."""

BARE = str.maketrans("", "", ",σ+")
# All other kinds are in the category `adherence`.
CATEGORIES = {
    "section_internalization": "attribution", "paraphrase_invariance": "attribution", "preference_flip": "attribution",
    "style_fingerprint": "calibration", "calibration_drift": "calibration", "leakage": "calibration",
    "external_perplexity": "calibration", "adapter_ablation": "ablation", "null_adapter": "baseline",
}


def differences(found, report):
    """Differences between a page, as returned by `audit.contents()`, and its report; and the number of comparisons."""
    return Comparison(found, report).all()


class Comparison:
    def __init__(self, found, report):
        self.found, self.report, self.faults, self.count = found, report, [], 0

    def all(self):
        self.verdict()
        self.forest()
        self.items()
        self.categories()
        self.probes()
        self.curves("adapter_ablation", "lambdas", "mean_divergence_per_lambda")
        self.curves("prompt_collapse", "context_lengths", "mean_divergence_per_length")
        gain = "own_lift" if self.report["statistics"] == "paired" else "effective_sis"
        # Gains are shown in per cent.
        self.bars("section_internalization", gain, ["per_section"], factor=100)
        self.bars("layers", "share", ["layers", "parts"])
        self.nulls()
        self.generations()
        return self.faults, self.count

    def same(self, what, shown, wanted):
        self.count += 1
        if shown != wanted:
            self.faults.append(f"{what}: {shown!r} is not {wanted!r}")

    def near(self, what, shown, wanted):
        """Numbers are shown with four decimals or three significant digits; a dash means none."""
        self.count += 1
        if wanted is None:
            return self.same(what, shown, "—")
        try:
            apart = abs(float(shown.translate(BARE)) - wanted)
        except ValueError:
            return self.faults.append(f"{what}: {shown!r} is not a number")
        if apart > max(5.1e-5, 5.1e-3 * abs(wanted)):
            self.faults.append(f"{what}: {shown} is not {wanted}")

    def tables(self, place):
        return [table for table in self.found["tables"] if table["place"] == place]

    def drawings(self, place):
        return [drawing for drawing in self.found["drawings"] if drawing["place"] == place]

    def verdict(self):
        score, wanted = self.report["score"], "There is no score"
        if any(probe["verdict"] not in ("error", "skip") for probe in self.report["probes"]):
            wanted = f"Composite score {score['overall']:.2f} of 1"
        tally, _, shown = self.found["score"].partition(". ")
        self.same("score", shown.rstrip("."), wanted)
        numbers = [int(word) for word in tally.split(": ")[-1].split() if word.isdigit()]
        if self.report["probes"]:
            self.same("tally", sum(numbers), len(self.report["probes"]))

    def forest(self):
        """Rows of the forest plot, and on which side of the limit each effect is."""
        table = next(iter(self.tables("effects")), {"rows": [], "columns": [], "values": []})
        wanted = [probe for probe in self.report["probes"] if probe["raw"] is not None]
        self.same("rows of the forest plot", len(table["rows"]), len(wanted))
        places = iter(table["values"])
        for row, probe in zip(table["rows"], wanted):
            name, evidence = probe["name"], probe["evidence"]
            value, _, ends = row[3].partition("[")
            self.same(f"{name}, effect", value.translate(BARE), unsigned(f"{probe['raw']:.3f}"))
            self.same(f"{name}, its interval", ends,
                      "{:.3f}, {:.3f}]".format(*probe["ci_95"]) if probe["ci_95"] else "")
            noise, limit = evidence.get("null_samples"), evidence.get("raw_limit")
            if not noise and limit is None:
                self.same(f"{name}, limit", row[4], "—")
                continue
            place = next(places)
            if noise:
                below = probe["verdict"] == "pass" and probe["raw"] < min(noise)
                distance = min(noise) - probe["raw"] if below else probe["raw"] - max(noise)
            else:
                distance = probe["raw"] - limit if evidence["raw_passes"] == "above" else limit - probe["raw"]
            self.count += 1
            if distance * (place - 50) < 0 or not 0 <= place <= 100:
                self.faults.append(f"{name}: {probe['raw']} is drawn at {place} %")
            ends = [*(probe["ci_95"] or []), probe["raw"], 0.0]
            furthest = max(abs(end - probe["raw"] + distance) if evidence.get("raw_passes") != "below" or noise
                           else abs(distance - (end - probe["raw"])) for end in ends)
            if furthest and not (noise and below):
                self.near(f"{name}, place", f"{place - 50:.2f}", 46 * distance / furthest)

    def items(self):
        """Every item, as a row and in the drawings of probes that fail."""
        by_name = {}
        for table in self.tables("failing") + self.tables("items"):
            by_name.setdefault(table["caption"].split(": ")[0], table)
        drawn = self.drawings("failing")
        failing = []
        for probe in self.report["probes"]:
            items = probe["evidence"].get("items") or []
            if not items:
                continue
            if probe["verdict"] in ("fail", "warn"):
                failing.append(items)
            if ": " in probe["name"] or probe["name"] not in by_name:
                continue
            rows = by_name[probe["name"]]["rows"]
            self.same(f"{probe['name']}, items", len(rows), len(items))
            for values, column in ((sorted(item["tuned"] for item in items), 2),
                                   (sorted(item["base"] for item in items), 1)):
                shown = sorted((row[column] for row in rows), key=lambda text: float(text.translate(BARE)))
                for text, value in zip(shown, values):
                    self.near(f"{probe['name']}, item", text, value)
        self.same("probes drawn item by item", len(drawn), len(failing))
        for drawing, items in zip(drawn, failing):
            self.same("items drawn", max(drawing["after"], drawing["bars"]), len(items))

    def categories(self):
        score = self.report["score"]
        rows = self.tables("categories")[0]["rows"]
        self.same("categories", sorted(row[0] for row in rows), sorted(score["components"]))
        # A category without counted probes has no score.
        uncounted = {"error", "skip"} | ({"inconclusive"} if self.report["statistics"] == "paired" else set())
        known = {CATEGORIES.get(probe["kind"], "adherence") for probe in self.report["probes"]
                 if probe["verdict"] not in uncounted and probe["score"] is not None}
        for name, shown, weight, _ in rows:
            self.same(name, shown, f"{score['components'][name]:.2f}" if name in known else "—")
            self.same(name, weight, f"{score['weights'][name]:.2f}")

    def probes(self):
        table = next(iter(self.tables("probes")), {"rows": [], "columns": []})
        self.same("number of probes", len(table["rows"]), len(self.report["probes"]))
        for row, probe in zip(table["rows"], self.report["probes"]):
            name, cell = probe["name"], dict(zip(table["columns"], row))
            self.same(name, cell["Probe"], name + probe["kind"])
            self.same(f"{name}, verdict", cell["Verdict"], probe["verdict"])
            value, _, ends = cell["Value and 95 % interval"].partition("[")
            for column, shown, wanted, digits in (
                    ("score", cell["Score"], probe["score"], 2), ("value", value, probe["raw"], 3),
                    ("z", cell["z-score"], probe["z_score"], 2)):
                text = "—" if wanted is None else unsigned(f"{wanted:.{digits}f}")
                self.same(f"{name}, {column}", shown.translate(BARE), text)
            self.same(f"{name}, interval", ends, "{:.3f}, {:.3f}]".format(*probe["ci_95"]) if probe["ci_95"] else "")
            for column, key in (("p", "p_value"), ("adjusted p", "p_adjusted")):
                if column in cell:
                    wanted = probe.get(key)
                    text = "—" if wanted is None else "< 0.001" if wanted < 0.001 else f"{wanted:.3f}"
                    self.same(f"{name}, {column}", cell[column], text)

    def curves(self, place, x, y):
        wanted = [list(zip(probe["evidence"][x], probe["evidence"][y]))
                  for probe in self.report["probes"] if probe["evidence"].get(y)]
        self.same(f"curves in {place}", len(self.tables(place)), len(wanted))
        for table, drawing, points in zip(self.tables(place), self.drawings(place), wanted):
            self.same(place, len(table["rows"]), len(points))
            for row, point in zip(table["rows"], points):
                for shown, value in zip(row, point):
                    self.near(place, shown, value)
            self.same(f"{place}, dots", len(drawing["dots"]), len(points))
            for places, values in zip(zip(*drawing["dots"]), zip(*points)):
                self.straight(f"{place}, drawn", places, values)

    def straight(self, what, places, values):
        """Positions in a drawing are a linear function of the values."""
        low, high = min(range(len(values)), key=values.__getitem__), max(range(len(values)), key=values.__getitem__)
        if values[low] == values[high]:
            return
        for place, value in zip(places, values):
            self.count += 1
            share = (value - values[low]) / (values[high] - values[low])
            if abs(places[low] + share * (places[high] - places[low]) - place) > 0.2:
                self.faults.append(f"{what}: {value} is at {place}")

    def rounded(self, what, shown, wanted, largest):
        """Numbers of a column have as many decimals: three, or one if there are numbers from 10; whole ones none."""
        if not 0.01 <= largest < 1e6:
            return self.near(what, shown, wanted)
        self.count += 1
        decimals = len(shown.partition(".")[2])
        apart = abs(float(shown.translate(BARE)) - wanted)
        if apart > 0.51 * 10**-decimals or decimals < (1 if largest >= 10 else 3) and apart > 1e-12:
            self.faults.append(f"{what}: {shown} is not {wanted}")

    def bars(self, place, value, keys, factor=1):
        wanted = [probe["evidence"][key] for probe in self.report["probes"] for key in keys
                  if value in next(iter(probe["evidence"].get(key) or []), {})]
        self.same(f"tables in {place}", len(self.tables(place)), len(wanted))
        for table, items in zip(self.tables(place), wanted):
            self.same(place, len(table["rows"]), len(items))
            largest = max((abs(factor * item[value]) for item in items), default=0)
            for row, item in zip(table["rows"], items):
                self.rounded(f"{place}, {row[0]}", row[1], factor * item[value], largest)
            self.straight(f"{place}, drawn", table["bars"], [item[value] for item in items])

    def nulls(self):
        by_kind = next((probe["evidence"]["per_kind_raw_samples"] for probe in self.report["probes"]
                        if probe["evidence"].get("per_kind_raw_samples")), {})
        wanted = [(probe, samples) for probe in self.report["probes"] if probe["raw"] is not None
                  and (samples := probe["evidence"].get("null_samples") or by_kind.get(probe["kind"]))]
        shown = self.tables("nulls")
        # The page notes drawings that it leaves out.
        left_out = f"{len(wanted) - len(shown)} more charts of “Comparison with noise” are omitted"
        if len(shown) != len(wanted):
            self.same("drawings left out", left_out in self.found["text"], True)
        for table, drawing, (probe, samples) in zip(shown, self.drawings("nulls"), wanted):
            values = dict(table["rows"])
            self.near(probe["name"], values["Adapter"], probe["raw"])
            mean = sum(samples) / len(samples)
            for name, number in (("minimum", min(samples)), ("mean", mean), ("maximum", max(samples))):
                self.near(f"{probe['name']}, {name}", values[f"Noise, {name}"], number)
            beyond = sum(sample >= probe["raw"] for sample in samples)
            self.same(probe["name"], values["Noise at or above the adapter"], f"{beyond} of {len(samples)}")
            self.same(f"{probe['name']}, dots", drawing["noise"], len(samples))

    def generations(self):
        wanted = [pair for probe in self.report["probes"] for pair in probe["evidence"].get("generations", [])]
        for shown, pair in zip(self.found["generations"], wanted):
            for side, key in (("base", "base"), ("tuned", "ft")):
                self.same(f"after {pair['prompt']!r}", shown[side], visible(pair[key]))
        cut = len(self.found["generations"]) < len(wanted)
        self.same("truncated texts are noted", "pairs of texts are shown" in self.found["text"], cut)


def unsigned(number):
    """A zero has no sign."""
    return number if float(number) else number.removeprefix("-")


def visible(text):
    """Signs for what cannot be seen, as pages show it."""
    def sign(letter):
        code = ord(letter)
        if letter in "\n\t":
            return letter
        if code < 0x20:
            return chr(0x2400 + code)
        if code == 0x7F:
            return "\u2421"
        hidden = 0x80 <= code <= 0x9F or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
        return "\ufffd" if hidden else letter
    return "".join(map(sign, text))
