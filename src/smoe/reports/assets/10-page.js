// Starts the page: fills its parts, sorts tables, changes between light and dark, and prepares printing.

const PICTURES = new Set();
const PAGE = JSON.parse(document.getElementById("data").textContent);

function sortBy(table, column, button) {
  const head = button.closest("th");
  const isUp = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
  const keyOf = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined
      ? cell.textContent.trim()
      : cell.dataset.value === ""
        ? null
        : Number(cell.dataset.value);
  };
  const rows = [...table.tBodies[0].rows].map((row, number) => [keyOf(row), number, row]);
  rows.sort(([a, first], [b, second]) => {
    // Cells without a number are last in both directions.
    if (a === null || b === null) return a === b ? first - second : a === null ? 1 : -1;
    const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
    return order === 0 ? first - second : isUp ? order : -order;
  });
  table.tBodies[0].append(...rows.map(([, , row]) => row));
  announce(`sorted by ${button.textContent}, ${isUp ? "ascending" : "descending"}`);
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = element(
      "button",
      { type: "button", class: "sort", onclick: () => sortBy(table, column, button) },
      head.textContent,
    );
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
  });
}

const FILL = {
  curves: (box, run) => showCurves(box, run),
  "routing-epochs": (box, run) => showRoutingEpochs(box, run),
  errors: (box, run) => showErrors(box, run),
  routing: (box, run) => {
    const scope = box.closest("[data-scope]");
    new RoutingPanel(box, [run], {
      use: scope.querySelector('[data-part="use"]'),
      filters: scope.querySelector('[data-part="filters"]'),
    });
  },
  "compare-curves": (box) => showCurvesTogether(box, PAGE.runs),
  "compare-routing": (box) =>
    new RoutingPanel(
      box,
      PAGE.runs.filter((run) => run.gates.length),
    ),
};

// Parts inside of a closed `details` have no width: they are filled when it is opened.
function fillParts(scope) {
  for (const box of scope.querySelectorAll("[data-part]")) {
    const closed = box.closest("details:not([open])");
    if (box.dataset.filled || closed || !(box.dataset.part in FILL)) continue;
    box.dataset.filled = "yes";
    FILL[box.dataset.part](box, PAGE.runs[Number(box.dataset.run ?? 0)]);
  }
}

function chooseTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  document.getElementById("theme").setAttribute("aria-pressed", isDark ? "false" : "true");
  repaint();
}

function repaint() {
  for (const picture of PICTURES) if (picture.view) picture.paint();
}

// On paper all runs are open, and the lines on pictures are black whatever the theme is.
function beforePrinting() {
  for (const details of document.querySelectorAll("details.run")) details.open = true;
  fillParts(document);
  document.documentElement.dataset.printing = "yes";
  repaint();
}

function afterPrinting() {
  delete document.documentElement.dataset.printing;
  repaint();
}

// A link to a part inside of a closed run opens the run.
function followLink() {
  const target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
  const run = target?.closest("details.run") ?? target?.querySelector(":scope > details.run");
  if (run && !run.open) {
    run.open = true;
    fillParts(run);
    target.scrollIntoView();
  }
}

async function start() {
  await readArrays();
  document.getElementById("theme").addEventListener("click", chooseTheme);
  for (const table of document.querySelectorAll("table.sortable")) makeSortable(table);
  for (const details of document.querySelectorAll("details.run"))
    details.addEventListener("toggle", () => fillParts(details));
  fillParts(document);
  addEventListener("beforeprint", beforePrinting);
  addEventListener("afterprint", afterPrinting);
  addEventListener("hashchange", followLink);
  followLink();
  document.documentElement.dataset.ready = "yes";
}

start();
