// What a script inside the page can see of it. Each function returns the faults it finds, in words, so that an empty
// list is what is wanted; `focusable` and `contents` return what is there.
(() => {
  const LEAST_TEXT = 4.5, LEAST_SHAPE = 3, LEAST_LETTERS = 10;
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
    if (!parts) throw new Error(`a colour that this script does not read: ${text}`);
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

  // Letters against what is behind them.
  const textContrast = () =>
    textNodes().filter((node) => isShown(node.parentElement)).flatMap((node) => {
      const element = node.parentElement, style = getComputedStyle(element), back = ground(element);
      const paint = element instanceof SVGElement ? style.fill : style.color;
      const found = contrast(seen(paint, opacityOf(element), back), back);
      return found < LEAST_TEXT ? [`${named(element)} has a contrast of ${found.toFixed(2)}`] : [];
    });

  // Curves, bars and dots against what is behind them. Lines of a grid help nobody who reads the numbers.
  const shapeContrast = () =>
    all("svg polyline, svg rect, svg circle, svg line:not(.grid), .meter span").flatMap((element) => {
      const style = getComputedStyle(element), back = ground(element.closest("svg") ?? element.parentElement);
      const filled = style.fill !== "none";
      const paint = !(element instanceof SVGElement) ? style.backgroundColor
        : element.localName !== "line" && filled ? style.fill : style.stroke;
      if (paint === "none") return [`a <${element.localName}> has no colour`];
      const opacity = opacityOf(element) * Number(filled ? style.fillOpacity : style.strokeOpacity);
      const found = contrast(seen(paint, opacity, back), back);
      return found < LEAST_SHAPE ? [`.${element.getAttribute("class")} has a contrast of ${found.toFixed(2)}`] : [];
    });

  const scroller = (element) => element.closest(".scroll");
  // What sticks out of the window, or out of a box that does not scroll.
  const overflow = () => {
    const root = document.scrollingElement, faults = [];
    if (root.scrollWidth > innerWidth) faults.push(`the page is ${root.scrollWidth} wide on ${innerWidth}`);
    for (const node of textNodes()) {
      const element = node.parentElement, place = placeOf(node);
      if (!isShown(element) || scroller(element)) continue;
      const box = element.closest("svg, figure, td, th, li, p, h1, h2, h3, dd, dt, summary, main");
      const edge = box.getBoundingClientRect();
      const leaves = (left, right) => place.left < left - 1 || place.right > right + 1;
      if (leaves(0, innerWidth)) faults.push(`${named(element)} leaves the window`);
      else if (leaves(edge.left, edge.right)) faults.push(`${named(element)} leaves its box`);
    }
    for (const element of all(".scroll").filter(isShown)) {
      if (element.scrollWidth > element.clientWidth && element.tabIndex !== 0) {
        faults.push("a box scrolls, but no key reaches it");
      }
    }
    for (const element of all("th, td").filter(isShown)) {
      if (element.scrollWidth > element.clientWidth + 1) faults.push(`${named(element)} spills over its neighbour`);
    }
    return faults;
  };

  // Columns so narrow that words stand one letter below the other.
  const squeezed = () =>
    textNodes().filter((node) => isShown(node.parentElement) && words(node.data).length > 11).flatMap((node) => {
      const range = document.createRange();
      range.selectNodeContents(node);
      const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size;
      const fits = words(node.data).length / lines >= 3;
      return fits ? [] : [`${named(node.parentElement)} is squeezed into ${lines} lines`];
    });

  // Words of drawings: large enough, inside, and not over each other.
  const labels = () =>
    all("svg").flatMap((svg) => {
      const faults = [], box = svg.getBoundingClientRect(), placed = [];
      for (const label of all("text", svg)) {
        const place = label.getBoundingClientRect();
        const size = parseFloat(getComputedStyle(label).fontSize) * svg.getScreenCTM().a;
        if (size < LEAST_LETTERS) faults.push(`${named(label)} is ${size.toFixed(1)} px high`);
        if (place.left < box.left - 1 || place.right > box.right + 1 || place.top < box.top - 1 ||
            place.bottom > box.bottom + 1) faults.push(`${named(label)} is cut off`);
        const hit = placed.find(([, other]) => place.left < other.right - 1 && other.left < place.right - 1 &&
          place.top < other.bottom - 3 && other.top < place.bottom - 3);
        if (hit) faults.push(`${named(label)} lies over ${named(hit[0])}`);
        placed.push([label, place]);
      }
      return faults;
    });

  const tables = () => {
    const faults = all("table").length ? [] : ["there is no table"];
    for (const table of all("table")) {
      const say = (fault) => faults.push(`${named(table)}: ${fault}`);
      if (!words(table.caption?.textContent ?? "")) say("no caption");
      const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
      const isHead = (cell, scope) => cell.localName === "th" && cell.scope === scope;
      if (!heads.length || !heads.every((cell) => isHead(cell, "col"))) say("no column heads");
      if (heads.some((cell) => !words(cell.textContent))) say("a column without a name");
      const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
      if (!rows.every((row) => isHead(row.cells[0], "row"))) say("no row heads");
      if (rows.some((row) => row.cells.length !== heads.length)) say("rows of other lengths");
    }
    return faults;
  };

  const structure = () => {
    const faults = [], say = (fault) => faults.push(fault);
    if (!/^[a-z]{2}/.test(document.documentElement.lang)) say("the language is not told");
    const verdict = words(document.querySelector("main h1")?.textContent ?? "");
    if (!verdict || !document.title.includes(verdict)) say("the title does not tell the verdict");
    if (all("h1").length !== 1) say(`${all("h1").length} headings of the first level`);
    let last = 0;
    for (const heading of all("h1, h2, h3, h4, h5, h6")) {
      const level = Number(heading.localName[1]);
      if (level > last + 1) say(`${named(heading)} comes after level ${last}`);
      if (!words(heading.textContent)) say("a heading without words");
      last = level;
    }
    const ids = all("[id]").map((element) => element.id);
    if (new Set(ids).size !== ids.length) say("an id stands twice");
    const references = all("[aria-labelledby], [aria-describedby]").flatMap((element) =>
      `${element.getAttribute("aria-labelledby") ?? ""} ${element.getAttribute("aria-describedby") ?? ""}`.split(" "));
    const links = all("a").map((link) => link.getAttribute("href").slice(1));
    for (const id of [...references, ...links].filter(Boolean)) if (!ids.includes(id)) say(`nothing is called ${id}`);
    for (const figure of all("figure")) {
      const isWhole = figure.querySelector("svg, .bars") && figure.querySelector("table");
      if (!isWhole) say(`${named(figure)} lacks its numbers`);
    }
    return faults;
  };

  // Whatever is told by a colour is told by something else as well.
  const beyondColour = () => {
    const faults = [];
    for (const cell of all("td.badge")) {
      const verdicts = ["pass", "fail", "warn", "skip", "error", "inconclusive"];
      if (!verdicts.includes(words(cell.textContent))) faults.push(`${named(cell)} is no verdict`);
    }
    for (const [tag, line] of [["del", "line-through"], ["ins", "underline"]]) {
      const plain = all(tag).some((element) => !getComputedStyle(element).textDecorationLine.includes(line));
      if (plain) faults.push(`<${tag}> has no line`);
      // Most screen readers say nothing of these elements.
      const silent = ["none", "normal", '""'];
      if (all(tag).some((element) => silent.includes(getComputedStyle(element, "::before").content))) {
        faults.push(`<${tag}> is not told apart in words`);
      }
    }
    for (const mark of all("svg line.mark")) {
      if (getComputedStyle(mark).strokeDasharray === "none") faults.push("a mark is a line like others");
    }
    return faults;
  };

  // On paper nothing can be unfolded or scrolled.
  const printed = () => {
    const lost = textNodes().filter((node) => {
      const place = placeOf(node), element = node.parentElement;
      // What only screen readers are told stands elsewhere, too.
      const isTwice = element.localName === "caption" && getComputedStyle(element).clipPath !== "none";
      return !element.closest("nav") && !isTwice && (!isShown(element) || place.width === 0 || place.height === 0);
    });
    const faults = lost.map((node) => `${named(node.parentElement)} is not printed`);
    const width = document.scrollingElement.scrollWidth;
    if (width > innerWidth) faults.push(`the page is ${width} wide on a paper of ${innerWidth}`);
    for (const element of all("*")) {
      const style = getComputedStyle(element);
      if (["auto", "scroll", "hidden"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1) {
        if (style.clipPath === "none") faults.push(`${named(element)} is cut off on paper`);
      }
    }
    const paper = colour(getComputedStyle(document.body).backgroundColor);
    if (luminance(paper) < 0.9) faults.push("paper is not dark");
    return faults;
  };

  const motion = () => {
    const faults = [];
    if (getComputedStyle(document.documentElement).scrollBehavior !== "auto") faults.push("the page glides");
    for (const element of all("*")) {
      const style = getComputedStyle(element);
      if (parseFloat(style.animationDuration) > 0 || parseFloat(style.transitionDuration) > 0) {
        faults.push(`${named(element)} moves`);
      }
    }
    return faults;
  };

  const foreign = () => {
    const known = new Set(("html head meta title style body main section nav footer article figure figcaption h1 h2 " +
      "h3 p a ul li dl dt dd table caption thead tbody tr th td strong small span br div details summary del ins bdi " +
      "q svg desc line polyline rect circle text").split(" "));
    const faults = [];
    for (const element of all("*")) {
      if (!known.has(element.localName)) faults.push(`${named(element)} is foreign`);
      const handler = [...element.attributes].find(({ name }) => name.startsWith("on"));
      if (handler) faults.push(`${named(element)} has ${handler.name}`);
    }
    const control = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/u;
    const hidden = textNodes().filter((node) => control.test(node.data));
    return [...faults, ...hidden.map((node) => `${named(node.parentElement)} has a character that nobody sees`)];
  };

  const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";
  const outlineOf = (element) => {
    const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(element);
    return { style: outlineStyle, width: outlineStyle === "none" ? 0 : parseFloat(outlineWidth), colour: outlineColor };
  };
  let reachable = [];
  // What keys should reach, in order, with the number of each.
  const focusable = () => {
    reachable = all(FOCUSABLE).filter(isShown);
    reachable.forEach((element) => (element.unfocused = JSON.stringify(outlineOf(element))));
    return reachable.map(named);
  };
  // Which of them has the focus, and what cannot be seen of that.
  const focused = () => {
    const element = document.activeElement, outline = outlineOf(element), faults = [];
    const back = ground(element.parentElement ?? element), place = element.getBoundingClientRect();
    const say = (fault) => faults.push(`${named(element)} ${fault}`);
    if (JSON.stringify(outline) === element.unfocused || outline.width < 2) say("shows no focus");
    else if (contrast(seen(outline.colour, 1, back), back) < LEAST_SHAPE) say("shows a pale focus");
    if (place.bottom <= 0 || place.top >= innerHeight) say("has the focus out of sight");
    return { number: reachable.indexOf(element), faults };
  };

  // Whether a link led to its target.
  const arrived = (number) => {
    const link = all("a")[number], target = document.querySelector(link.getAttribute("href"));
    const top = target?.getBoundingClientRect().top ?? Infinity;
    const went = location.hash === link.getAttribute("href") && top >= -1 && top < innerHeight;
    return went ? [] : [`${named(link)} leads nowhere`];
  };
  // Boxes that are wider than there is room, and whether keys move them.
  const wide = () => all(".scroll").flatMap((box, number) => (box.scrollWidth > box.clientWidth ? [number] : []));
  const enter = (number) => (all(".scroll")[number].focus(), document.activeElement === all(".scroll")[number]);
  const moved = async (number) => {
    const box = all(".scroll")[number];
    for (let wait = 0; wait < 40 && box.scrollLeft === 0; wait += 1) await new Promise((done) => setTimeout(done, 25));
    return box.scrollLeft > 0 ? [] : [`no key moves ${named(box)}`];
  };

  // What the page says, for comparing with the report.
  const contents = () => ({
    verdict: words(document.querySelector("h1").textContent),
    score: words(document.querySelector(".score").textContent),
    headings: all("h2").map((heading) => words(heading.textContent)),
    tables: all("table").map((table) => ({
      place: table.closest("section").getAttribute("aria-labelledby"),
      caption: words(table.caption.textContent),
      columns: [...table.tHead.rows[0].cells].map((cell) => words(cell.textContent)),
      rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => words(cell.textContent))),
      bars: all(".meter span:not(.zero)", table).map((bar) =>
        parseFloat(bar.style.width) * (bar.classList.contains("less") ? -1 : 1)),
    })),
    drawings: all("svg").map((svg) => ({
      place: svg.closest("section").getAttribute("aria-labelledby"),
      dots: all("circle.dot", svg).map((dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value]),
      noise: all("circle.noise", svg).length,
    })),
    writings: all(".writing .text").map((text) => {
      const parts = [...text.children];
      const without = (tag) => parts.filter((one) => one.localName !== tag).map((one) => one.textContent).join("");
      return { base: without("ins"), tuned: without("del") };
    }),
    text: document.body.textContent,
  });

  window.audit = {
    textContrast, shapeContrast, overflow, squeezed, labels, tables, structure, beyondColour, printed, motion, foreign,
    focusable, focused, arrived, wide, enter, moved, contents,
    colours: () => ["body", "a", "thead th"].map((one) => {
      const style = getComputedStyle(document.querySelector(one));
      return [style.color, style.backgroundColor].join(" on ");
    }),
    unfold: () => all("details").forEach((details) => (details.open = true)),
  };
})();
