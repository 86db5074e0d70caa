// The parts of a run's report that follow its numbers: curves, changes of the routing, errors.

// Keys of one score belong together: train/loss and validation/loss; accuracy and its parts.
function scoreGroups(values) {
  const groups = new Map();
  for (const key of Object.keys(values)) {
    if (key.startsWith("routing/") || key === "nonfinite_errors") continue;
    const base = key
      .replace(/^(train|validation)\//, "")
      .split("/")[0]
      .replace(/ of the plain net$/, "");
    if (!groups.has(base)) groups.set(base, []);
    groups.get(base).push(key);
  }
  return groups;
}

function seriesOf(run, keys, name = (key) => key) {
  const texts = keys.map((key) => JSON.stringify(run.curves.values[key]));
  return keys.map((key, number) => ({
    name: name(key),
    x: run.curves.epochs,
    y: run.curves.values[key],
    colour: CURVES[number % CURVES.length],
    // A curve that lies on an earlier one has gaps, through which that one is seen.
    dash: texts.indexOf(texts[number]) < number ? "8 8" : DASHES[Math.floor(number / CURVES.length) % DASHES.length],
  }));
}

function spansDecades(series) {
  const known = series.flatMap((one) => one.y).filter((value) => value !== null);
  return known.length > 1 && Math.min(...known) > 0 && Math.max(...known) / Math.min(...known) > 300;
}

// A chart with a choice of what it shows, a logarithmic axis, and its numbers as a table.
class ChosenChart {
  constructor(parent, caption, options, makeContent) {
    this.makeContent = makeContent;
    this.caption = caption;
    this.select = choice(
      options.map((option) => [option, option]),
      () => this.update(true),
    );
    this.log = element("input", { type: "checkbox", onchange: () => this.update(false) });
    const controls = element(
      "div",
      { class: "controls" },
      labelled("Show", this.select),
      labelled("Logarithmic axis", this.log),
    );
    parent.append(controls);
    this.chart = new LineChart(parent, caption);
    this.table = element("div");
    parent.append(this.table);
  }

  update(isNew) {
    const content = this.makeContent(this.select.value);
    if (isNew) this.log.checked = spansDecades(content.series);
    const title = `${this.caption}: ${this.select.value}`;
    this.chart.show({ title, isLog: this.log.checked, ...content });
    const epochs = [...new Set(content.series.flatMap((one) => one.x))].sort((a, b) => a - b);
    this.table.replaceChildren(
      numbersTable(title, ["epoch", ...content.series.map((one) => one.name)], () =>
        epochs.map((epoch) => [
          String(epoch),
          ...content.series.map((one) => format(one.y[one.x.indexOf(epoch)] ?? null)),
        ]),
      ),
    );
  }
}

function showCurves(parent, run) {
  const groups = scoreGroups(run.curves.values);
  const chart = new ChosenChart(parent, `Curves of ${run.label}`, [...groups.keys()], (base) => ({
    series: seriesOf(run, groups.get(base)),
    references: run.references.filter((one) => one.metric === base).map((one) => [one.name, one.value]),
  }));
  const watched = run.monitor.key.replace(/^validation\//, "").split("/")[0];
  if (groups.has(watched)) chart.select.value = watched;
  chart.update(true);
}

function showCurvesTogether(parent, runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.curves.values)))].filter(
    (key) => key !== "nonfinite_errors",
  );
  const chart = new ChosenChart(parent, "Curves of all runs", keys, (key) => ({
    series: runs.map((run, number) => ({
      name: run.label,
      x: run.curves.epochs,
      y: run.curves.values[key] ?? run.curves.epochs.map(() => null),
      colour: CURVES[number % CURVES.length],
      dash: DASHES[Math.floor(number / CURVES.length) % DASHES.length],
    })),
  }));
  if (keys.includes(runs[0].monitor.key)) chart.select.value = runs[0].monitor.key;
  chart.update(true);
}

const ROUTING_CHARTS = {
  "Choices that changed": ["routing/changed", "routing/changed_since_start", "routing/reordered"],
  "Use, certainty, information": [
    "routing/experts_in_use",
    "routing/certainty",
    "routing/region_information",
    "routing/damped",
  ],
};

function showRoutingEpochs(parent, run) {
  // With one expert at each pixel there is no order that could change.
  const isSingle = run.gates.length > 0 && run.gates.every((gate) => gate.numSelected === 1);
  const isShown = (name) => name in run.curves.values && !(isSingle && name === "routing/reordered");
  const known = (names) => names.filter(isShown);
  const options = Object.keys(ROUTING_CHARTS).filter((name) => known(ROUTING_CHARTS[name]).length);
  const chart = new ChosenChart(parent, `Routing of ${run.label} by epoch`, options, (name) => ({
    unit: " %",
    series: seriesOf(run, known(ROUTING_CHARTS[name]), (key) => key.replace("routing/", "").replaceAll("_", " ")).map(
      (one) => ({ ...one, y: one.y.map((value) => (value === null ? null : 100 * value)) }),
    ),
  }));
  chart.update(true);
}

// Errors at each pixel, and beside them the gain over a plain net where there is one.
function showErrors(parent, run) {
  const select = choice(
    run.errors.map((error, number) => [String(number), error.name]),
    () => update(),
  );
  const hasGain = run.errors.some((error) => error.gain);
  const grid = element("div", { class: hasGain ? "side-by-side" : "" });
  const figures = [new ErrorFigure(grid, `Errors of ${run.label}`, fillError)];
  if (hasGain) figures.push(new ErrorFigure(grid, `Gain of ${run.label} over the plain net`, fillGain));
  const pictures = figures.map((figure) => figure.picture);
  const controls = element(
    "div",
    { class: "controls" },
    run.errors.length > 1 ? labelled("Show", select) : null,
    ...placeControls(run.errors[0].places, pictures),
  );
  parent.append(controls, grid);
  const update = () => figures.forEach((figure) => figure.show(run.errors[Number(select.value)]));
  update();
}

class ErrorFigure {
  // fill(error) returns values, what their colours mean, and words about them.
  constructor(parent, label, fill) {
    this.fill = fill;
    this.figure = element("figure", { class: "routing" });
    this.head = element("strong");
    this.figure.append(this.head);
    this.picture = new FieldPicture(this.figure, label);
    this.legend = element("div");
    this.caption = element("figcaption");
    this.figure.append(this.legend, this.caption);
    parent.append(this.figure);
  }

  show(error) {
    const filled = this.fill(error);
    this.figure.hidden = filled === null;
    if (!filled) return;
    const { values, stops, low, high, units, head, words } = filled;
    const colours = new Uint8ClampedArray(3 * values.length);
    values.forEach((value, cell) => {
      colours.set(
        Number.isNaN(value) ? [150, 150, 150] : ramp(stops, high > low ? (value - low) / (high - low) : 0.5),
        3 * cell,
      );
    });
    this.head.textContent = head;
    this.picture.setPlaces(error.places);
    this.picture.show(colours, (cell) => describeError(error, cell), words);
    this.legend.replaceChildren(colourBar(stops, low, high, units));
    this.caption.textContent = words;
  }
}

function sortedNumbers(values) {
  const known = Float64Array.from(values.filter((value) => !Number.isNaN(value))).sort();
  const quantile = (share) => known[Math.min(known.length - 1, Math.floor(share * known.length))] ?? 0;
  return { known, quantile };
}

function fillError(error) {
  const values = numbersCache(error.values);
  const { known, quantile } = sortedNumbers(values);
  const words =
    `Error at each pixel over all samples of the split; the median is ${withUnits(quantile(0.5), error.units)}, ` +
    `the largest ${withUnits(known[known.length - 1], error.units)}.`;
  // Some pixels far off must not make all others look the same.
  const [low, high] = [quantile(0.01), quantile(0.99)];
  return { values, stops: VIRIDIS, low, high, units: error.units, head: error.name, words };
}

function fillGain(error) {
  if (!error.gain) return null;
  const values = numbersCache(error.gain);
  const { known, quantile } = sortedNumbers(values);
  const reach = Math.max(Math.abs(quantile(0.02)), Math.abs(quantile(0.98)), 1e-12);
  const better = percent(known.filter((value) => value > 0).length / known.length);
  const median = format(Number(quantile(0.5).toPrecision(3)));
  const words =
    `Share of the error of ${error.plainName} that this run removes at each pixel, at least -100 %; blue is better. ` +
    `It is better at ${better} % of the pixels; the median gain is ${median} %.`;
  const head = `Gain over ${error.plainName}`;
  return { values, stops: DIVERGING, low: -reach, high: reach, units: "%", head, words };
}

function describeError(error, cell) {
  const gains = error.gain ? numbersCache(error.gain) : null;
  return [
    describePlace(error.places, cell),
    `${error.name}: ${withUnits(numbersCache(error.values)[cell], error.units)}`,
    ...(gains ? [`gain over ${error.plainName}: ${format(Number(gains[cell].toPrecision(3)))} %`] : []),
  ];
}
