// Checks that run inside the page. Each function returns a list of problems, which should be empty; `focusable` and
// `contents` return what they find.
(() => {
  const MIN_TEXT_CONTRAST = 4.5, MIN_SHAPE_CONTRAST = 3, MIN_LETTER_SIZE = 10;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const words = (text) => text.replace(/\s+/g, " ").trim();
  const named = (element) => `<${element.localName}> “${words(element.textContent).slice(0, 40)}”`;
  const isShown = (element) =>
    element.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true, opacityProperty: true });

  const textNodes = () => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      if (walker.currentNode.data.trim() && !walker.currentNode.parentElement.closest("title, desc")) {
        found.push(walker.currentNode);
      }
    }
    return found;
  };
  const placeOf = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return range.getBoundingClientRect();
  };

  const colour = (text) => {
    const parts = /^rgba?\(([^)]*)\)$/.exec(text);
    if (!parts) throw new Error(`unsupported colour: ${text}`);
    const [red, green, blue, alpha = 1] = parts[1].split(/[,/ ]+/).map(Number);
    return { red, green, blue, alpha };
  };
  const over = (front, back) => {
    const mixed = (one) => front[one] * front.alpha + back[one] * (1 - front.alpha);
    return { red: mixed("red"), green: mixed("green"), blue: mixed("blue"), alpha: 1 };
  };
  const ground = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      layers.push(colour(getComputedStyle(one).backgroundColor));
    }
    return layers.reverse().reduce((back, front) => over(front, back), colour("rgb(255, 255, 255)"));
  };
  // Relative luminance and contrast as WCAG 2 defines them.
  const luminance = ({ red, green, blue }) => {
    const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((left, right) => left - right);
    return (light + 0.05) / (dark + 0.05);
  };
  const seen = (paint, opacity, back) => {
    const front = colour(paint);
    return over({ ...front, alpha: front.alpha * opacity }, back);
  };
  const opacityOf = (element) => {
    let product = 1;
    for (let one = element; one; one = one.parentElement) product *= Number(getComputedStyle(one).opacity);
    return product;
  };

  // Contrast of text with its background.
  const textContrast = () =>
    textNodes().filter((node) => isShown(node.parentElement)).flatMap((node) => {
      const element = node.parentElement, style = getComputedStyle(element), back = ground(element);
      const paint = element instanceof SVGElement ? style.fill : style.color;
      const found = contrast(seen(paint, opacityOf(element), back), back);
      return found < MIN_TEXT_CONTRAST ? [`${named(element)} has a contrast of ${found.toFixed(2)}`] : [];
    });

  // Contrast of curves, bars and dots with their background. Grid lines are decoration.
  const shapeContrast = () =>
    all("svg polyline, svg rect, svg circle, svg line:not(.grid), .meter span, .track span").flatMap((element) => {
      const style = getComputedStyle(element), back = ground(element.closest("svg") ?? element.parentElement);
      const filled = style.fill !== "none";
      const paint = !(element instanceof SVGElement) ? style.backgroundColor
        : element.localName !== "line" && filled ? style.fill : style.stroke;
      if (paint === "none") return [`a <${element.localName}> has no colour`];
      const opacity = opacityOf(element) * Number(filled ? style.fillOpacity : style.strokeOpacity);
      const found = contrast(seen(paint, opacity, back), back);
      return found < MIN_SHAPE_CONTRAST ? [`.${element.getAttribute("class")} has a contrast of ${found.toFixed(2)}`] : [];
    });

  const scroller = (element) => element.closest(".scroll");
  // Content that overflows the window or a box that does not scroll.
  const overflow = () => {
    const root = document.scrollingElement, problems = [];
    if (root.scrollWidth > innerWidth) problems.push(`the page is ${root.scrollWidth} wide on ${innerWidth}`);
    for (const node of textNodes()) {
      const element = node.parentElement, place = placeOf(node);
      if (!isShown(element) || scroller(element)) continue;
      const box = element.closest("svg, figure, td, th, li, p, h1, h2, h3, dd, dt, summary, main");
      const edge = box.getBoundingClientRect();
      const leaves = (left, right) => place.left < left - 1 || place.right > right + 1;
      if (leaves(0, innerWidth)) problems.push(`${named(element)} leaves the window`);
      else if (leaves(edge.left, edge.right)) problems.push(`${named(element)} leaves its box`);
    }
    for (const element of all(".scroll").filter(isShown)) {
      if (element.scrollWidth > element.clientWidth && element.tabIndex !== 0) {
        problems.push("a box scrolls, but no key reaches it");
      }
    }
    for (const element of all("th, td").filter(isShown)) {
      if (element.scrollWidth > element.clientWidth + 1) problems.push(`${named(element)} spills over its neighbour`);
    }
    return problems;
  };

  // Columns so narrow that words break between letters.
  const squeezed = () =>
    textNodes().filter((node) => isShown(node.parentElement) && words(node.data).length > 11).flatMap((node) => {
      const range = document.createRange();
      range.selectNodeContents(node);
      const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size;
      const fits = words(node.data).length / lines >= 3;
      return fits ? [] : [`${named(node.parentElement)} is squeezed into ${lines} lines`];
    });

  // Labels of drawings: large enough, not clipped, not overlapping.
  const labels = () =>
    all("svg").flatMap((svg) => {
      const problems = [], box = svg.getBoundingClientRect(), placed = [];
      for (const label of all("text", svg)) {
        const place = label.getBoundingClientRect();
        const size = parseFloat(getComputedStyle(label).fontSize) * svg.getScreenCTM().a;
        if (size < MIN_LETTER_SIZE) problems.push(`${named(label)} is ${size.toFixed(1)} px high`);
        if (place.left < box.left - 1 || place.right > box.right + 1 || place.top < box.top - 1 ||
            place.bottom > box.bottom + 1) problems.push(`${named(label)} is cut off`);
        const hit = placed.find(([, other]) => place.left < other.right - 1 && other.left < place.right - 1 &&
          place.top < other.bottom - 3 && other.top < place.bottom - 3);
        if (hit) problems.push(`${named(label)} lies over ${named(hit[0])}`);
        placed.push([label, place]);
      }
      return problems;
    });

  const tables = () => {
    const problems = all("table").length ? [] : ["there is no table"];
    for (const table of all("table")) {
      const say = (fault) => problems.push(`${named(table)}: ${fault}`);
      if (!words(table.caption?.textContent ?? "")) say("no caption");
      const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
      const isHead = (cell, scope) => cell.localName === "th" && cell.scope === scope;
      if (!heads.length || !heads.every((cell) => isHead(cell, "col"))) say("no column heads");
      if (heads.some((cell) => !words(cell.textContent))) say("a column without a name");
      const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
      if (!rows.every((row) => isHead(row.cells[0], "row"))) say("no row heads");
      if (rows.some((row) => row.cells.length !== heads.length)) say("rows of other lengths");
    }
    return problems;
  };

  const structure = () => {
    const problems = [], say = (fault) => problems.push(fault);
    if (!/^[a-z]{2}/.test(document.documentElement.lang)) say("no language");
    const verdict = words(document.querySelector("main h1")?.textContent ?? "");
    if (!verdict || !document.title.includes(verdict)) say("the title lacks the verdict");
    if (all("h1").length !== 1) say(`${all("h1").length} headings of the first level`);
    let last = 0;
    for (const heading of all("h1, h2, h3, h4, h5, h6")) {
      const level = Number(heading.localName[1]);
      if (level > last + 1) say(`${named(heading)} comes after level ${last}`);
      if (!words(heading.textContent)) say("a heading without words");
      last = level;
    }
    const ids = all("[id]").map((element) => element.id);
    if (new Set(ids).size !== ids.length) say("duplicate id");
    const references = all("[aria-labelledby], [aria-describedby]").flatMap((element) =>
      `${element.getAttribute("aria-labelledby") ?? ""} ${element.getAttribute("aria-describedby") ?? ""}`.split(" "));
    const links = all("a").map((link) => link.getAttribute("href").slice(1));
    for (const id of [...references, ...links].filter(Boolean)) if (!ids.includes(id)) say(`no element with id ${id}`);
    for (const figure of all("figure")) {
      const isWhole = figure.querySelector("svg, .bars") && figure.querySelector("table");
      if (!isWhole) say(`${named(figure)} lacks its numbers`);
    }
    return problems;
  };

  // No information by colour alone.
  const beyondColour = () => {
    const problems = [];
    for (const answer of all(".said")) {
      const answers = ["✓ Yes", "✗ Yes", "✓ No", "✗ No", "? Undecided", "? Not tested"];
      if (!answers.includes(words(answer.textContent))) problems.push(`${named(answer)} is not an answer`);
    }
    for (const cell of all("td.badge")) {
      const verdicts = ["pass", "fail", "warn", "skip", "error", "inconclusive"];
      if (!verdicts.includes(words(cell.textContent))) problems.push(`${named(cell)} is not a verdict`);
    }
    for (const [tag, line] of [["del", "underline"], ["ins", "underline"]]) {
      const plain = all(tag).some((element) => !getComputedStyle(element).textDecorationLine.includes(line));
      if (plain) problems.push(`<${tag}> has no line`);
      // Most screen readers do not announce these elements.
      const silent = ["none", "normal", '""'];
      if (all(tag).some((element) => silent.includes(getComputedStyle(element, "::before").content))) {
        problems.push(`<${tag}> is not announced`);
      }
    }
    for (const mark of all("svg line.mark")) {
      if (getComputedStyle(mark).strokeDasharray === "none") problems.push("a mark is a line like others");
    }
    return problems;
  };

  // Paper can be neither expanded nor scrolled.
  const printed = () => {
    const lost = textNodes().filter((node) => {
      const place = placeOf(node), element = node.parentElement;
      // Content for screen readers alone is visible elsewhere.
      const isTwice = element.localName === "caption" && getComputedStyle(element).clipPath !== "none";
      return !element.closest("nav") && !isTwice && (!isShown(element) || place.width === 0 || place.height === 0);
    });
    const problems = lost.map((node) => `${named(node.parentElement)} is not printed`);
    const width = document.scrollingElement.scrollWidth;
    if (width > innerWidth) problems.push(`the page is ${width} wide on a paper of ${innerWidth}`);
    for (const element of all("*")) {
      const style = getComputedStyle(element);
      if (["auto", "scroll", "hidden"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1) {
        if (style.clipPath === "none") problems.push(`${named(element)} is cut off on paper`);
      }
    }
    const paper = colour(getComputedStyle(document.body).backgroundColor);
    if (luminance(paper) < 0.9) problems.push("paper is not dark");
    return problems;
  };

  const motion = () => {
    const problems = [];
    if (getComputedStyle(document.documentElement).scrollBehavior !== "auto") problems.push("the page glides");
    for (const element of all("*")) {
      const style = getComputedStyle(element);
      if (parseFloat(style.animationDuration) > 0 || parseFloat(style.transitionDuration) > 0) {
        problems.push(`${named(element)} moves`);
      }
    }
    return problems;
  };

  const foreign = () => {
    const known = new Set(("html head meta title style body main section nav footer article figure figcaption h1 h2 " +
      "h3 p a ul li dl dt dd table caption thead tbody tr th td strong small span br div details summary del ins bdi " +
      "q svg desc line polyline rect circle text").split(" "));
    const problems = [];
    for (const element of all("*")) {
      if (!known.has(element.localName)) problems.push(`${named(element)} is foreign`);
      const handler = [...element.attributes].find(({ name }) => name.startsWith("on"));
      if (handler) problems.push(`${named(element)} has ${handler.name}`);
    }
    const control = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/u;
    const hidden = textNodes().filter((node) => control.test(node.data));
    return [...problems, ...hidden.map((node) => `${named(node.parentElement)} has an invisible character`)];
  };

  const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";
  const outlineOf = (element) => {
    const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(element);
    return { style: outlineStyle, width: outlineStyle === "none" ? 0 : parseFloat(outlineWidth), colour: outlineColor };
  };
  let reachable = [];
  // Focusable elements, in order.
  const focusable = () => {
    reachable = all(FOCUSABLE).filter(isShown);
    reachable.forEach((element) => (element.unfocused = JSON.stringify(outlineOf(element))));
    return reachable.map(named);
  };
  // The focused element, and problems with its visibility.
  const focused = () => {
    const element = document.activeElement, outline = outlineOf(element), problems = [];
    const back = ground(element.parentElement ?? element), place = element.getBoundingClientRect();
    const say = (fault) => problems.push(`${named(element)} ${fault}`);
    if (JSON.stringify(outline) === element.unfocused || outline.width < 2) say("shows no focus");
    else if (contrast(seen(outline.colour, 1, back), back) < MIN_SHAPE_CONTRAST) say("shows a pale focus");
    if (place.bottom <= 0 || place.top >= innerHeight) say("has the focus out of sight");
    return { number: reachable.indexOf(element), faults: problems };
  };

  // Whether a link reached its target.
  const arrived = (number) => {
    const link = all("a")[number], target = document.querySelector(link.getAttribute("href"));
    const top = target?.getBoundingClientRect().top ?? Infinity;
    const went = location.hash === link.getAttribute("href") && top >= -1 && top < innerHeight;
    return went ? [] : [`${named(link)} leads nowhere`];
  };
  // Boxes that scroll horizontally, and whether keys scroll them.
  const wide = () => all(".scroll").flatMap((box, number) => (box.scrollWidth > box.clientWidth ? [number] : []));
  const enter = (number) => (all(".scroll")[number].focus(), document.activeElement === all(".scroll")[number]);
  const moved = async (number) => {
    const box = all(".scroll")[number];
    for (let wait = 0; wait < 40 && box.scrollLeft === 0; wait += 1) await new Promise((done) => setTimeout(done, 25));
    return box.scrollLeft > 0 ? [] : [`no key moves ${named(box)}`];
  };

  // The contents of the page, for comparison with the report.
  const contents = () => ({
    verdict: words(document.querySelector("h1").textContent),
    score: words(document.querySelector(".score")?.textContent ?? ""),
    grade: document.querySelector(".banner").classList[1],
    questions: all(".question").map((question) => words(question.textContent)),
    answers: all(".said").map((answer) => words(answer.textContent)),
    headings: all("h2").map((heading) => words(heading.textContent)),
    tables: all("table").map((table) => ({
      place: table.closest("section").getAttribute("aria-labelledby"),
      caption: words(table.caption.textContent),
      columns: [...table.tHead.rows[0].cells].map((cell) => words(cell.textContent)),
      rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => words(cell.textContent))),
      values: all(".track .value", table).map((dot) => parseFloat(dot.style.left)),
      bars: all(".meter span:not(.zero)", table).map((bar) =>
        parseFloat(bar.style.width) * (bar.classList.contains("less") ? -1 : 1)),
    })),
    drawings: all("svg").map((svg) => ({
      place: svg.closest("section").getAttribute("aria-labelledby"),
      dots: all("circle.dot", svg).map((dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value]),
      noise: all("circle.noise", svg).length,
      after: all("circle.after", svg).length,
      bars: all("rect.lost, rect.kept", svg).length,
      lost: all("rect.lost", svg).length,
    })),
    generations: all(".generation").map((pair) => ({
      base: pair.querySelector(".text.base").textContent, tuned: pair.querySelector(".text.tuned").textContent,
    })),
    text: document.body.textContent,
  });

  window.audit = {
    textContrast, shapeContrast, overflow, squeezed, labels, tables, structure, beyondColour, printed, motion, foreign,
    focusable, focused, arrived, wide, enter, moved, contents, all,
    colours: () => ["body", "a", "thead th"].filter((one) => document.querySelector(one)).map((one) => {
      const style = getComputedStyle(document.querySelector(one));
      return [style.color, style.backgroundColor].join(" on ");
    }),
    unfold: () => all("details").forEach((details) => (details.open = true)),
  };
})();
