// Elements of the page. Text is only ever set as text, so that no name of a run or layer can become markup.

function element(name, attributes = {}, ...children) {
  const made =
    name === "svg" || name in SVG_NAMES
      ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) made.append(child);
  }
  return made;
}

const SVG_NAMES = { g: 1, path: 1, line: 1, rect: 1, circle: 1, text: 1, polyline: 1 };

let numIds = 0;

function freshId(stem) {
  numIds += 1;
  return `${stem}-${numIds}`;
}

function labelled(text, control) {
  control.id ||= freshId("control");
  return element("div", { class: "control" }, element("label", { for: control.id }, text), control);
}

function choice(options, onChange) {
  const select = element("select", { onchange: () => onChange(select.value) });
  for (const [value, text] of options) select.append(element("option", { value }, text));
  return select;
}

// A slider with its value in words beside it; `words` turns the number into them.
function slider(text, { min = 0, max, value = 0, step = 1, words = String, onChange }) {
  const output = element("output", {}, words(value));
  const input = element("input", { type: "range", min, max, step, value, "aria-valuetext": words(value) });
  const update = () => {
    output.textContent = words(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    update();
    onChange(Number(input.value));
  });
  const control = labelled(text, input);
  output.setAttribute("for", input.id);
  control.append(output);
  return { control, input, update };
}

// One box for all pictures; it follows the pointer.
function showTip(lines, x, y) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...lines.map((line, number) => element("div", { class: number ? "" : "tip-head" }, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
  const top = y + 14 + box.height > innerHeight ? y - 14 - box.height : y + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

// For readers of a screen: said after a key was pressed.
function announce(text) {
  document.getElementById("live").textContent = text;
}

function format(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

// A share from 0 to 1 as a number of percent with three digits.
function percent(share) {
  return format(Number((100 * share).toPrecision(3)));
}

function withUnits(value, units) {
  return units ? `${format(value)} ${units}` : format(value);
}

// A table of numbers behind a line that opens it; it is made when it is first opened.
function numbersTable(caption, heads, makeRows) {
  const details = element("details", { class: "numbers" }, element("summary", {}, "Numbers as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const table = element("table", {}, element("caption", {}, caption));
    table.append(
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          heads.map((head) => element("th", { scope: "col" }, head)),
        ),
      ),
    );
    const body = element("tbody");
    for (const [first, ...others] of makeRows()) {
      body.append(
        element(
          "tr",
          {},
          element("th", { scope: "row" }, first),
          others.map((cell) => element("td", {}, cell)),
        ),
      );
    }
    table.append(body);
    details.append(element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": caption }, table));
  });
  return details;
}
