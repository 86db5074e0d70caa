"use strict";
// Fills the page with charts and pictures. Text is only ever set as text: no name of a run or layer becomes markup.

const PAGE = JSON.parse(document.getElementById("data").textContent);
const SVG_NAMES = new Set(["svg", "path", "line", "rect", "circle", "text", "title", "style"]);

function element(name, attributes = {}, ...children) {
  const made = SVG_NAMES.has(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

const labelled = (text, ...controls) =>
  element("label", { class: "control" }, element("span", {}, text), controls);

function choice(options, onChange) {
  const select = element("select", { onchange: () => onChange(select.value) });
  select.append(...options.map(([value, text]) => element("option", { value }, text)));
  return select;
}

// A slider over names; `set` shows one of them, and hides a slider that has no other.
function slider(text, onChange) {
  const input = element("input", { type: "range", min: 0, oninput: () => onChange(Number(input.value)) });
  const output = element("output");
  const control = labelled(text, input, output);
  const set = (value, names) => {
    Object.assign(input, { max: names.length - 1, value });
    output.textContent = names[value];
    input.setAttribute("aria-valuetext", names[value]);
    control.hidden = names.length < 2;
  };
  return { control, set };
}

function format(value, digits = 5) {
  if (value == null || Number.isNaN(value)) return "none";
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(Math.min(3, digits - 1));
  return String(Number(value.toPrecision(digits)));
}

const percent = (share) => format(100 * share, 3);
const css = (colour) => `rgb(${colour.join(" ")})`;

// A button that saves what is shown: a picture as PNG, a chart as SVG, a table as CSV.
function saveButton(kind, name, content) {
  const words = () => name().match(/[\p{L}\p{N}]+/gu) ?? ["saved"];
  const file = () => `${words().join("-").slice(0, 80)}.${kind.toLowerCase()}`;
  const onclick = () => element("a", { href: content(), download: file() }).click();
  return element("button", { type: "button", class: "save", onclick }, `Save ${kind}`);
}

// A cell that looks like a formula is made a text.
const quoted = (cell) => `"${cell.textContent.trim().replace(/^[=+@]/, "'$&").replaceAll('"', '""')}"`;

function addSaving(table) {
  const lines = () => [...table.rows].map((row) => [...row.cells].map(quoted).join(","));
  const href = () => `data:text/csv;charset=utf-8,${encodeURIComponent(lines().join("\r\n"))}`;
  const name = table.caption.textContent;
  table.caption.append(" ", saveButton("CSV", () => name, href));
}

// One box for all pictures, beside the pointer; and one for readers of a screen, said after a key was pressed.
const tip = document.getElementById("tip");
const live = document.getElementById("live");

function showTip(lines, x, y) {
  tip.replaceChildren(...lines.map((line) => element("div", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 14 + width > innerWidth ? x - 14 - width : x + 14)}px`;
  tip.style.top = `${Math.max(4, y + 14 + height > innerHeight ? y - 14 - height : y + 14)}px`;
}

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

// A drawing that answers the pointer and the arrow keys: point(x, y) and step(right, down) return [lines, x, y] in
// shares of its width and height, or null.
function answer(drawing, { point, step, leave }) {
  const tell = (found) => {
    const box = drawing.getBoundingClientRect();
    tip.hidden = true;
    if (found) showTip(found[0], box.left + found[1] * box.width, box.top + found[2] * box.height);
    return found;
  };
  const at = (event) => {
    const box = drawing.getBoundingClientRect();
    return point((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  };
  drawing.addEventListener("pointermove", (event) => tell(at(event)));
  for (const kind of ["pointerleave", "blur"]) {
    drawing.addEventListener(kind, () => {
      tip.hidden = true;
      leave();
    });
  }
  drawing.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const found = tell(step(...ARROWS[event.key]));
    if (found) live.textContent = found[0].join(", ");
  });
}

// The arrays of the page: one compressed block.
const KINDS = { u8: Uint8Array, u16: Uint16Array, i32: Int32Array };
const known = new Map();
let block;

async function readBlock() {
  const bytes = Uint8Array.from(atob(document.getElementById("arrays").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  block = await new Response(stream).arrayBuffer();
}

// Numbers that were rounded to 65,535 levels, NaN where there is none; indices, of which some are stored as steps.
function read(reference) {
  if (!known.has(reference)) {
    const { type, at, count, low, step, steps } = reference;
    let values = new KINDS[type](block, at, count);
    if (step !== undefined) values = Float64Array.from(values, (level) => (level === 65535 ? NaN : low + level * step));
    if (steps) values = values.slice();
    for (let index = 1; steps && index < count; index += 1) values[index] += values[index - 1];
    known.set(reference, values);
  }
  return known.get(reference);
}

// Curves by epoch, drawn anew when the width changes.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const DASHES = ["", "6 3", "2 3"];

// The mark of a colour in a legend: a square, or a line with dashes.
function swatch(colour, text, dash) {
  const line = { d: "M0 7H24", stroke: colour, "stroke-width": dash === undefined ? 14 : 3, "stroke-dasharray": dash };
  const mark = element("svg", { width: dash === undefined ? 14 : 24, height: 14, "aria-hidden": "true" });
  mark.append(element("path", line));
  return Object.assign(element("span", { class: "legend-entry" }, mark, text), { colours: [colour] });
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const number = Math.max(1, Math.floor(high / step + 1e-9) - first + 1);
  return Array.from({ length: number }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

class Chart {
  constructor(parent) {
    this.current = -1;
    this.box = element("div", { class: "chart" });
    this.legend = element("div", { class: "legend" });
    const style = "text { font: 12px sans-serif; fill: #59626d } .grid { stroke: #d5dae0 } .reference { stroke: #59626d }";
    const href = () => {
      const copy = this.svg.cloneNode(true);
      const names = this.content.series.map(({ name, colour }, index) =>
        element("text", { x: 70, y: 38 + 15 * index, style: `fill: ${colour}` }, name),
      );
      copy.append(element("style", {}, style), ...names);
      return `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    };
    parent.append(this.box, this.legend, saveButton("SVG", () => this.content.title, href));
    new ResizeObserver(() => this.box.clientWidth !== this.width && this.draw()).observe(this.box);
  }

  // content: title, words, xName, labels of steps, unit, isLog, references [[text, value]], and series [{ name, x, y,
  // colour, dash }].
  show(content) {
    this.content = content;
    this.legend.replaceChildren(...content.series.map(({ name, colour, dash }) => swatch(colour, name, dash)));
    this.draw();
  }

  draw() {
    const { title, series, references, unit, isLog, xName, labels, words } = this.content ?? {};
    this.width = this.box.clientWidth;
    if (!this.width || !title) return;
    const width = this.width;
    const height = Math.round(Math.max(220, Math.min(340, width * 0.5)));
    const isShown = (value) => value != null && (!isLog || value > 0);
    const known = series.flatMap(({ x, y }) => x.filter((_, index) => isShown(y[index])));
    const steps = [...new Set(known)].sort((a, b) => a - b);
    if (!steps.length) {
      this.box.replaceChildren(element("p", { class: "note" }, "There are no numbers to draw."));
      return;
    }
    const lines = references.filter(([, value]) => isShown(value));
    const values = [series.map(({ y }) => y), lines.map(([, value]) => value)].flat(2).filter(isShown);
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    [low, high] = isLog ? [low / 1.3, high * 1.3] : [low - room, high + room];

    const [left, right, top, bottom] = [62, width - 14, unit ? 24 : 12, height - 36];
    const half = labels.length ? 0.5 : 0;
    const each = (right - left) / (steps.at(-1) - steps[0] + 2 * half || 1);
    const toX = (x) => left + (x - steps[0] + half) * each;
    const scale = isLog ? Math.log : Number;
    const toY = (y) => bottom - ((scale(y) - scale(low)) / (scale(high) - scale(low))) * (bottom - top);
    const wasFocused = document.activeElement === this.svg;
    const label = `${title}. ${words} Arrow keys move along the curves.`;
    this.svg = element("svg", { width, height, role: "img", tabindex: 0, "aria-label": label });
    const draw = (name, attributes, text) => this.svg.append(element(name, attributes, text));
    const write = (text, x, y, anchor, name) => draw("text", { x, y, "text-anchor": anchor, class: name }, text);

    const powers = isLog ? ticks(Math.log10(low), Math.log10(high), 5).filter(Number.isInteger) : [];
    for (const tick of isLog ? powers.map((power) => 10 ** power) : ticks(low, high, 5)) {
      draw("line", { class: "grid", x1: left, x2: right, y1: toY(tick), y2: toY(tick) });
      write(format(tick), left - 8, toY(tick) + 4, "end");
    }
    write(unit.trim(), 4, 12, "start");
    const whole = ticks(steps[0], steps.at(-1), Math.max(2, Math.floor(width / 80))).filter(Number.isInteger);
    // Names of regions stand in two lines, and no curve joins them.
    for (const step of whole) write(labels[step] ?? step, toX(step), height - (half && step % 2 ? 4 : 19), "middle");
    if (!half) write(xName, (left + right) / 2, height - 4, "middle");
    for (const [text, value] of lines) {
      const y = toY(value);
      draw("line", { class: "reference", x1: left, x2: right, y1: y, y2: y });
      if (text) write(`${text} ${format(value)}`, right, y > top + 20 ? y - 5 : y + 14, "end");
    }
    for (const { x, y, colour, dash } of series) {
      const points = x.map((step, index) => (isShown(y[index]) ? [toX(step), toY(y[index])] : null));
      const path = points.map((point, index) => (point ? `${points[index - 1] ? "L" : "M"}${point.join(" ")}` : ""));
      const line = { fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash };
      if (!half) draw("path", { d: path.join(""), ...line });
      for (const point of points.length <= 40 ? points.filter(Boolean) : []) {
        draw("circle", { cx: point[0], cy: point[1], r: half ? 5 : 2.6, fill: colour });
      }
    }
    const cursor = element("path", { class: "cursor" });
    this.svg.append(cursor);

    const tell = (index, y) => {
      this.current = index;
      const x = toX(steps[index]);
      cursor.setAttribute("d", `M${x} ${top}V${bottom}`);
      return [this.describe(steps[index]), x / width, y];
    };
    answer(this.svg, {
      point: (x, y) => {
        const distances = steps.map((step) => Math.abs(toX(step) - x * width));
        return tell(distances.indexOf(Math.min(...distances)), y);
      },
      step: (direction) => tell(Math.max(0, Math.min(steps.length - 1, this.current + direction)), 0.15),
      leave: () => cursor.removeAttribute("d"),
    });
    this.box.replaceChildren(this.svg);
    if (wasFocused) this.svg.focus();
  }

  describe(step) {
    const { series, unit, xName, labels } = this.content;
    const found = series.map(({ name, x, y }) => [name, y[x.indexOf(step)]]).filter(([, value]) => value != null);
    return [`${xName} ${labels[step] ?? step}`, ...found.map(([name, value]) => `${name}: ${format(value)}${unit}`)];
  }
}

// Charts of which one is chosen, with a logarithmic axis if wanted, and its numbers as a table.
function showCharts(parent, charts, caption) {
  if (!charts.length) return parent.append("There are no numbers to draw.");
  const select = choice(charts.map(({ name }, number) => [number, name]), () => update(true));
  const log = element("input", { type: "checkbox", onchange: () => update(false) });
  parent.append(element("div", { class: "controls" }, labelled("Show", select), labelled("Logarithmic axis", log)));
  const chart = new Chart(parent);
  const table = element("table");
  const named = { class: "scroll", tabindex: 0, role: "group", "aria-label": `${caption}, numbers` };
  const numbers = [element("summary", {}, "Numbers as a table"), element("div", named, table)];
  parent.append(element("details", { class: "numbers" }, numbers));

  const update = (isNew) => {
    const { name, unit, references, words, xName, labels, log: isWide, series: chosen } = charts[Number(select.value)];
    if (isNew) log.checked = isWide;
    const texts = chosen.map(([, , y]) => String(y));
    const series = chosen.map(([label, x, y], number) => {
      // A curve that lies on an earlier one has gaps, through which that one is seen.
      const isCovered = texts.indexOf(texts[number]) < number;
      const dash = isCovered ? "8 8" : DASHES[Math.floor(number / COLOURS.length) % DASHES.length];
      return { name: label, x, y, colour: COLOURS[number % COLOURS.length], dash };
    });
    const title = `${caption}: ${name}`;
    chart.show({ title, words, series, references, unit, isLog: log.checked, xName, labels });
    const steps = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b);
    const heads = [xName, ...series.map((one) => one.name)].map((head) => element("th", { scope: "col" }, head));
    const rows = steps.map((step) => {
      const cells = series.map(({ x, y }) => element("td", {}, format(y[x.indexOf(step)])));
      return element("tr", {}, element("th", { scope: "row" }, labels[step] ?? String(step)), cells);
    });
    const head = element("thead", {}, element("tr", {}, heads));
    table.replaceChildren(element("caption", {}, title), head, element("tbody", {}, rows));
    addSaving(table);
  };
  update(true);
}

// What a pixel is called: # in the form of its places is an index, @ its coordinates.
function placeText(places, cell) {
  const indices = places.shape.map((size, axis) => {
    const stride = places.shape.slice(axis + 1).reduce((product, next) => product * next, 1);
    return Math.floor(cell / stride) % size;
  });
  if (places.lines) places.split ??= new TextDecoder().decode(read(places.lines)).split("\n");
  const coordinates = places.split?.[cell] ?? places.texts?.map((texts, axis) => texts[indices[axis]]).join(" ");
  const numbers = indices.map((index) => index * places.step);
  return places.form.replace(/[#@]/g, (letter) => (letter === "@" ? coordinates : numbers.shift()));
}

// A picture of coloured pixels, through an image that holds the number of the pixel at each dot.
class Picture {
  constructor(label) {
    this.label = label;
    this.canvas = element("canvas", { tabindex: 0, role: "img" });
    this.mark = element("div", { class: "mark", hidden: true });
    this.head = element("strong");
    this.legend = element("div", { class: "legend" });
    this.caption = element("figcaption");
    this.field = element("div", { class: "field" });
    const save = saveButton("PNG", () => `${label} ${this.head.textContent}`, () => this.draw());
    this.figure = element("figure", {}, this.head, this.field, this.legend, this.caption, save);
    answer(this.canvas, {
      point: (x, y) => this.describeAt(Math.floor(x * this.view.width), Math.floor(y * this.view.height)),
      step: (right, down) => this.move(right, down),
      leave: () => this.setCursor(null),
    });
  }

  // colour(cell) is a list of red, green and blue; describe(cell) is a list of lines below the place.
  show({ places, viewNumber, colour, describe, words, head, legend, caption }) {
    const view = places.views[Math.min(viewNumber, places.views.length - 1)];
    if (this.view !== view) this.setCursor(null);
    Object.assign(this, { places, view, describe, cells: read(view.cells) });
    const colours = Array.from({ length: places.shape.reduce((a, b) => a * b) }, (_, cell) => colour(cell));
    const light = view.light ? read(view.light) : null;
    const image = new ImageData(view.width, view.height);
    this.cells.forEach((next, dot) => {
      if (next === 0) return;
      const brightness = light ? light[dot] / 255 : 1;
      colours[next - 1].forEach((part, index) => (image.data[4 * dot + index] = part * brightness));
      image.data[4 * dot + 3] = 255;
    });
    Object.assign(this.canvas, { width: view.width, height: view.height, className: view.light ? "" : "grid" });
    this.canvas.getContext("2d").putImageData(image, 0, 0);
    this.canvas.setAttribute("aria-label", `${this.label}. ${words} Arrow keys move over the pixels.`);
    const spans = view.ticks.map((axis, number) =>
      axis.map(([share, text]) => {
        const place = `${number ? "top" : "left"}: ${100 * share}%`;
        return element("span", { class: number ? "down" : "across", style: place }, text);
      }),
    );
    this.field.style.setProperty("--ratio", view.ratio);
    this.field.classList.toggle("with-ticks", view.ticks.flat().length > 0);
    this.field.replaceChildren(this.canvas, this.mark, ...spans.flat());
    this.head.textContent = head;
    this.legend.replaceChildren(...legend);
    this.caption.replaceChildren(...caption.map((line) => element("div", {}, line)));
  }

  // The picture above its heading and legend, as a file.
  draw() {
    const width = this.view.width * Math.ceil(1000 / this.view.width);
    const height = Math.round(width / this.view.ratio);
    const made = element("canvas", { width, height: height + 90 });
    const pen = made.getContext("2d");
    const fill = (colour, ...box) => (pen.fillStyle = colour) && pen.fillRect(...box);
    Object.assign(pen, { imageSmoothingEnabled: false, font: "24px sans-serif" });
    fill("#fff", 0, 0, width, height + 90);
    pen.drawImage(this.canvas, 0, 0, width, height);
    const entries = [{ textContent: `${this.head.textContent || this.label}:` }, ...this.legend.childNodes];
    entries.reduce((x, { colours = [], textContent }) => {
      const wide = colours.length > 1 ? 256 : 24 * colours.length;
      colours.forEach((colour, index) => fill(colour, x + index, height + 34, wide - index, 24));
      pen.fillStyle = "#1b1f24";
      pen.fillText(textContent, x + wide + 8, height + 55);
      return x + wide + pen.measureText(textContent).width + 32;
    }, 0);
    return made.toDataURL();
  }

  cellAt(x, y) {
    const isInside = x >= 0 && y >= 0 && x < this.view.width && y < this.view.height;
    return isInside ? this.cells[y * this.view.width + x] - 1 : -1;
  }

  describeAt(x, y) {
    const cell = this.cellAt(x, y);
    if (cell < 0) return null;
    const lines = [placeText(this.places, cell), ...this.describe(cell)];
    return [lines, (x + 0.5) / this.view.width, (y + 0.5) / this.view.height];
  }

  // One step is to the middle of the next pixel of the data in that direction.
  move(right, down) {
    const { width, height } = this.view;
    let [x, y] = this.cursor ?? [width >> 1, height >> 1];
    const before = this.cellAt(x, y);
    if (this.cursor) {
      do [x, y] = [x + right, y + down];
      while (x >= 0 && y >= 0 && x < width && y < height && [before, -1].includes(this.cellAt(x, y)));
      const cell = this.cellAt(x, y);
      let length = 0;
      while (cell >= 0 && this.cellAt(x + right * (length + 1), y + down * (length + 1)) === cell) length += 1;
      [x, y] = cell < 0 ? this.cursor : [x + right * (length >> 1), y + down * (length >> 1)];
    } else if (before < 0) {
      const first = this.cells.findIndex((cell) => cell > 0);
      [x, y] = [first % width, Math.floor(first / width)];
    }
    this.setCursor([x, y]);
    return this.describeAt(x, y);
  }

  setCursor(cursor) {
    this.cursor = cursor;
    this.mark.hidden = !cursor;
    if (!cursor) return;
    this.mark.style.left = `${(100 * (cursor[0] + 0.5)) / this.view.width}%`;
    this.mark.style.top = `${(100 * (cursor[1] + 0.5)) / this.view.height}%`;
  }
}

const GREY = [196, 200, 206];

// The routing of one run, or of several side by side, and known regions: sliders over layers, experts and epochs.
class RoutingPanel {
  constructor(parent, runs, ...experts) {
    Object.assign(this, { runs, experts });
    const gates = runs.flatMap((run) => run.gates);
    // Where one expert is selected, the first choice is all there is, and has the colours of the experts.
    const isSingle = gates.every((gate) => gate.numSelected === 1);
    const start = isSingle && gates.every((gate) => gate.use.filter(Boolean).length <= 12) ? "first" : "all";
    this.state = { gate: 0, mode: start, expert: 0, view: null, frame: Infinity };
    const modes = [
      ...(start === "first" ? [] : [["all", "All choices: like colours share experts"]]),
      ...(gates.some((gate) => gate.embedding) ? [["embedding", "Embedding of the gate in three colours"]] : []),
      ["first", isSingle ? "Expert of each pixel" : "First choice of each pixel"],
      ["one", "One expert"],
    ];
    this.mode = choice(modes, (mode) => this.change({ mode }));
    this.layer = slider("Layer", (gate) => this.change({ gate, view: null, frame: Infinity }));
    this.choose = (expert) => this.change({ expert, mode: "one" });
    this.gateOf = ({ gates }) => gates[Math.min(this.state.gate, gates.length - 1)];
    this.expert = slider("Expert", this.choose);
    this.view = slider("View", (view) => this.change({ view }));
    this.film = slider("Epoch", (frame) => this.change({ frame }));
    const showing = labelled("Show", this.mode);
    const controls = [this.layer.control, showing, this.expert.control, this.view.control, this.film.control];
    this.pictures = runs.map((run) => new Picture(runs.length > 1 ? `Routing of ${run.label}` : "Routing"));
    this.truth = new Picture("Known regions");
    const figures = [...this.pictures, this.truth].map((picture) => picture.figure);
    const isBeside = figures.length > 2 || gates[0].regions;
    parent.append(
      element("div", { class: "controls" }, controls),
      element("div", { class: isBeside ? "side-by-side" : "" }, figures),
    );
    this.change({});
  }

  change(changes) {
    Object.assign(this.state, changes);
    const gate = this.gateOf(this.runs[0]);
    const expert = (this.state.expert = Math.min(this.state.expert, gate.numExperts - 1));
    const numGates = Math.max(...this.runs.map((run) => run.gates.length));
    this.layer.set(this.state.gate, Array.from({ length: numGates }, (_, number) => `${number + 1}: ${gate.name}`));
    this.expert.set(expert, gate.use.map((_, number) => `expert ${number}`));
    const { views, start } = PAGE.places[gate.places];
    this.view.set((this.state.view ??= start), views.map(({ name }) => name));
    this.mode.value = this.state.mode;
    // The order of experts at a pixel, and the embedding, are those of the weights that are shown.
    const isFilm = this.state.mode !== "embedding" && (this.state.mode !== "first" || gate.numSelected === 1);
    const frames = isFilm ? gate.frames.map(([name]) => name || "the weights shown here") : [""];
    this.film.set(Math.min(this.state.frame, frames.length - 1), frames);
    this.runs.forEach((run, number) => this.showPicture(run, this.pictures[number], isFilm));
    this.truth.figure.hidden = !gate.regions;
    if (gate.regions) this.showRegions(gate);
    this.experts.forEach((box) => this.showExperts(box));
  }

  // Experts of other runs have the colours of those of the first run that serve the same pixels.
  own(gate, expert) {
    return PAGE.experts[gate.partners?.[expert] ?? expert];
  }

  showRegions(gate) {
    const regions = read(gate.regions);
    const colour = (region) => this.own(gate, gate.regionColours[region]);
    const found = [...new Set(regions)].sort((a, b) => a - b);
    const words = "Known regions, in the colours of the experts that serve most of them.";
    this.truth.show({
      head: "Known regions",
      colour: (cell) => colour(regions[cell]),
      describe: (cell) => [`known region ${regions[cell]}`],
      legend: found.map((region) => swatch(css(colour(region)), `region ${region}`)),
      caption: [words],
      viewNumber: this.state.view,
      ...{ places: PAGE.places[gate.places], words },
    });
  }

  showPicture(run, picture, isFilm) {
    const gate = this.gateOf(run);
    const frames = gate.frames.length - 1;
    const number = isFilm ? Math.min(this.state.frame, frames) : frames;
    const [choices, scores] = [read(gate.frames[number][1]), number === frames ? read(gate.scores) : null];
    const expertAt = (rank, cell) => choices[rank * gate.numPixels + cell];
    const regions = gate.regions && read(gate.regions);
    const describe = (cell) => {
      const lines = Array.from({ length: gate.numScored }, (_, rank) => {
        const score = scores ? `: score ${format(scores[rank * gate.numPixels + cell], 3)}` : "";
        return `expert ${expertAt(rank, cell)}${score}`;
      });
      if (gate.numSelected > gate.numScored) lines.push(`and ${gate.numSelected - gate.numScored} more`);
      return regions ? [...lines, `known region ${regions[cell]}`] : lines;
    };
    const { colour, legend, words } = this.colour(gate, expertAt);
    picture.show({
      head: this.runs.length > 1 ? run.label : regions ? "Routing" : "",
      caption: gate.caption,
      viewNumber: this.state.view,
      ...{ places: PAGE.places[gate.places], colour, describe, legend, words },
    });
  }

  colour(gate, expertAt) {
    const ranks = Array.from({ length: gate.numSelected }, (_, rank) => rank);
    const cells = Array.from({ length: gate.numPixels }, (_, cell) => cell);
    if (this.state.mode === "first" || (this.state.mode === "all" && gate.numSelected === 1 && gate.numExperts <= 12)) {
      const used = [...new Set(cells.map((cell) => expertAt(0, cell)))].sort((a, b) => a - b);
      const words = `First choices: ${used.length} of ${gate.numExperts} experts.`;
      const entries = used.map((expert) => swatch(css(this.own(gate, expert)), `expert ${expert}`));
      return { colour: (cell) => this.own(gate, expertAt(0, cell)), legend: used.length > 12 ? [words] : entries, words };
    }
    if (this.state.mode === "one") {
      const partner = gate.partners ? gate.partners.indexOf(this.state.expert) : this.state.expert;
      const expert = partner < 0 ? Math.min(this.state.expert, gate.numExperts - 1) : partner;
      const isServed = (cell) => ranks.some((rank) => expertAt(rank, cell) === expert);
      const words = `expert ${expert} serves ${percent(cells.filter(isServed).length / gate.numPixels)} % of the pixels`;
      const colour = (cell) => (isServed(cell) ? this.own(gate, expert) : GREY);
      const legend = [swatch(css(this.own(gate, expert)), words), swatch(css(GREY), "others")];
      return { colour, legend, words: `${words}.` };
    }
    if (this.state.mode === "embedding" && gate.embedding) {
      const colours = read(gate.embedding);
      const words = "Pixels of like colours are alike to the gate: three components of what it has learned of each.";
      return { colour: (cell) => [...colours.subarray(3 * cell, 3 * cell + 3)], legend: [words], words };
    }
    const [base, added] = gate.colourMap;
    const words = "Pixels of like colours share experts.";
    const part = (cell, index) => ranks.reduce((sum, rank) => sum + added[expertAt(rank, cell)][index], base[index]);
    const colour = (cell) => [0, 1, 2].map((index) => Math.max(0, Math.min(255, part(cell, index))));
    return { colour, legend: [words], words };
  }

  // The use and the filters of experts are part of the page: those of this layer are shown.
  showExperts(box) {
    for (const one of box.children) one.hidden = Number(one.dataset.gate) !== this.state.gate;
    for (const button of box.querySelectorAll("[data-expert]")) {
      const expert = Number(button.dataset.expert);
      button.setAttribute("aria-pressed", String(this.state.mode === "one" && this.state.expert === expert));
      button.onclick = () => this.choose(expert);
    }
  }
}

// Errors at each pixel, and beside them the gains over other predictions; or samples, with input, truth and prediction.
function showMaps(parent, run, entries) {
  const state = { entry: 0, view: null };
  const select = slider("Show", (entry) => change({ entry }));
  const view = slider("View", (number) => change({ view: number }));
  const count = Math.max(...entries.map(({ maps }) => maps.length));
  const pictures = Array.from({ length: count }, () => new Picture(`Map of ${run.label}`));
  const figures = pictures.map((picture) => picture.figure);
  parent.append(
    element("div", { class: "controls" }, select.control, view.control),
    element("div", { class: figures.length > 1 ? "side-by-side" : "" }, figures),
  );
  const change = (changes) => {
    Object.assign(state, changes);
    const { places: number, maps } = entries[state.entry];
    select.set(state.entry, entries.map(({ name }) => name));
    const places = PAGE.places[number];
    view.set((state.view ??= places.start), places.views.map(({ name }) => name));
    figures.forEach((figure, index) => (figure.hidden = index >= maps.length));
    maps.forEach(({ values, low, high, units, palette, head, words }, index) => {
      const [numbers, colours] = [read(values), PAGE.palettes[palette]];
      const level = (value) => (high > low ? Math.max(0, Math.min(1, (value - low) / (high - low))) : 0.5);
      const style = `background: linear-gradient(to right, ${colours.map(css).join(", ")})`;
      const strip = Object.assign(element("span", { class: "strip", style }), { colours: colours.map(css) });
      pictures[index].show({
        colour: (cell) => (Number.isNaN(numbers[cell]) ? GREY : colours[Math.round(255 * level(numbers[cell]))]),
        describe: (cell) => maps.map((one) => `${one.name}: ${format(read(one.values)[cell])} ${one.units}`.trim()),
        legend: [format(low, 3), strip, `${format(high, 3)} ${units}`],
        caption: [words],
        viewNumber: state.view,
        ...{ places, head, words: `${head}. ${words}` },
      });
    });
  };
  change({});
}

function makeSortable({ tHead, tBodies: [body] }) {
  const heads = [...tHead.rows[0].cells];
  const keyOf = ({ dataset, textContent }) => (dataset.value === undefined ? textContent.trim() : dataset.value);
  const sort = (column, name) => {
    const direction = heads[column].getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    heads.forEach((head, number) => head.setAttribute("aria-sort", number === column ? direction : "none"));
    const rows = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
    rows.sort(([a], [b]) => {
      // Cells without a number are last in both directions.
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = a - b || String(a).localeCompare(b, undefined, { numeric: true });
      return direction === "ascending" ? order : -order;
    });
    body.append(...rows.map(([, row]) => row));
    live.textContent = `sorted by ${name}, ${direction}`;
  };
  heads.forEach((head, column) => {
    const name = head.textContent;
    head.replaceChildren(element("button", { type: "button", class: "sort", onclick: () => sort(column, name) }, name));
    head.setAttribute("aria-sort", "none");
  });
}

const FILL = {
  errors: (box, run) => showMaps(box, run, run.errors),
  examples: (box, run) => showMaps(box, run, run.examples),
  routing: (box, run) => {
    const part = (name) => box.closest("[data-scope]").querySelector(`[data-part="${name}"]`);
    new RoutingPanel(box, [run], part("use"), part("filters"));
  },
  "compare-curves": (box) => showCharts(box, PAGE.together, "Curves of all runs"),
  "compare-routing": (box) => new RoutingPanel(box, PAGE.runs.filter((run) => run.gates.length)),
};

// Parts inside of a closed run are filled when it is opened.
function fillParts() {
  for (const box of document.querySelectorAll("[data-part]:not([data-filled])")) {
    if (box.closest("details:not([open])")) continue;
    box.dataset.filled = "yes";
    const [key, run] = [box.dataset.part, PAGE.runs[Number(box.dataset.run ?? 0)]];
    if (run.charts[key]) showCharts(box, run.charts[key], `${box.closest("section").ariaLabel}, ${run.label}`);
    else FILL[key]?.(box, run);
  }
}

// A link to a closed run opens it.
function followLink() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const run = target?.closest("details.run") ?? target?.querySelector(":scope > details.run");
  if (run) run.open = true;
}

async function start() {
  await readBlock();
  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll("table").forEach(addSaving);
  const runs = [...document.querySelectorAll("details.run")];
  for (const run of runs) run.addEventListener("toggle", fillParts);
  fillParts();
  // On paper all runs are open.
  addEventListener("beforeprint", () => {
    for (const run of runs) run.open = true;
    fillParts();
  });
  addEventListener("hashchange", followLink);
  followLink();
  document.documentElement.dataset.ready = "yes";
}

start();
